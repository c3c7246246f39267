"""Several climbs beside each other: what each gave, and what became of each rung."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rung.report import units, words
from rung.report.layout import Cell, Column, table_of

MARKS = words.MARKS | {"refused": "!"}
OUTCOMES = {
    "kept": "faster and verified",
    "reverted": "not faster, or taken back",
    "refused": "did not compute the same",
    "failed": "did not run",
    "inconclusive": "not decided",
    "no-op": "changed nothing",
    "not yet": "waits for another rung",
    "inapplicable": "does not apply",
}
_NOT_TRIED = ("inapplicable", "not yet", "no-op")
_COLORS = {"confirmed": "green", "verified": "green", "provisional": "yellow"}


@dataclass(frozen=True)
class Estimate:
    """A ratio and its interval, where there is one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What became of a rung: one of OUTCOMES, and what it gave over the best before it, where it was timed."""

    verdict: str
    speedup: Estimate | None
    why: str


@dataclass(frozen=True)
class Climb:
    """One run directory. status: of its recipe, or how the climb stands; speedup: over the untouched model, over_plain: over the best
    plain torch.compile; steps in ns, memory in bytes, of the untouched model and the answer; first_answer, verified, took: seconds
    from the beginning. rungs: by name, the last try of each."""

    directory: str
    model: str
    mode: str
    numerics: str
    device: str
    software: str
    status: str
    kept: list[str]
    speedup: Estimate | None
    over_plain: Estimate | None
    step_before: float | None
    step_after: float | None
    memory_before: float | None
    memory_after: float | None
    first_answer: float | None
    verified: float | None
    took: float | None
    rungs: dict[str, Outcome] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.model} ({', '.join(part for part in (self.mode, self.numerics) if part)})"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def climb_of(data: dict[str, Any]) -> Climb:
    """data: as `rung.runs.Run.data` gives it."""
    manifest, result = units.section(data, "manifest"), units.section(data, "result")
    workload, times, memory = (
        units.section(manifest, "workload"),
        units.section(result, "times"),
        units.section(result, "memory"),
    )
    kept = words.kept(data)
    history = [row for row in result.get("history") or [] if isinstance(row, dict)]
    state = words.standing(data)
    recipe = units.clean(result.get("status")) if kept else "nothing kept"
    return Climb(
        directory=units.clean(data.get("directory")),
        model=units.one_line(workload.get("name") or manifest.get("target") or "workload"),
        mode=units.clean(workload.get("mode")),
        numerics=units.clean(manifest.get("numerics")),
        device=words.device(manifest),
        software=words.versions(manifest),
        status=recipe if state == "complete" else f"{recipe}, {state}" if kept else state,
        kept=kept,
        speedup=_estimate(result.get("speedup")) if kept else None,
        over_plain=_estimate(result.get("over_plain")) if kept else None,
        step_before=units.number(words.before(data).get("value")),
        step_after=units.number(units.section(times, "best").get("value")) if kept else None,
        memory_before=units.peak(memory.get("baseline") or units.section(data, "baseline").get("memory")),
        memory_after=units.peak(memory.get("best")) if kept else None,
        first_answer=_first(history, ("provisional", "verified", "confirmed")),
        verified=_first(history, ("verified", "confirmed")),
        took=units.number(result.get("seconds") or manifest.get("spent_seconds")),
        rungs={words.name(attempt): _outcome(attempt) for attempt in words.attempts(data)},
    )


def _estimate(record: Any) -> Estimate | None:
    value, low, high = (units.number(units.section(record).get(name)) for name in ("value", "low", "high"))
    return None if value is None else Estimate(value, low, high)


def _first(history: Sequence[dict[str, Any]], statuses: Sequence[str]) -> float | None:
    return next((units.number(row.get("seconds")) for row in history if row.get("status") in statuses), None)


def _outcome(attempt: dict[str, Any]) -> Outcome:
    verdict = units.clean(attempt.get("verdict"))
    refused = verdict == "failed" and units.section(attempt, "verification").get("passed") is False
    return Outcome(
        "refused" if refused else verdict, _estimate(words.speedup(attempt)), units.clean(attempt.get("why"))
    )


def tried(climbs: Sequence[Climb]) -> tuple[list[str], int]:
    """(the rungs that some climb tried: those that most climbs kept first; how many no climb tried)."""
    names = dict.fromkeys(name for climb in climbs for name in climb.rungs)
    verdicts = {name: [climb.rungs[name].verdict for climb in climbs if name in climb.rungs] for name in names}
    shown = [name for name in names if any(verdict not in _NOT_TRIED for verdict in verdicts[name])]
    shown.sort(key=lambda name: -verdicts[name].count("kept"))
    return shown, len(names) - len(shown)


def climbs_lines(climbs: Sequence[Climb], width: int = 100, color: bool = False) -> list[str]:
    """A row a climb; then a row a rung, with a column a climb."""
    heads = ("speedup", "over\nplain", "step\nfrom, to", "memory\nfrom, to", "first\nanswer", "verified\nafter")
    columns = [Column("#", right=True), Column("workload", wraps=True), Column("recipe"), *(Column(h) for h in heads)]
    rows = [
        [
            Cell(str(number)),
            Cell(climb.name, "bold"),
            Cell(climb.status.replace(", ", "\n"), _COLORS.get(climb.status, "")),
            Cell(_stacked(climb.speedup)),
            Cell(_stacked(climb.over_plain)),
            Cell(f"{units.duration(climb.step_before)}\n{units.duration(climb.step_after)}"),
            Cell(f"{units.data_size(climb.memory_before)}\n{units.data_size(climb.memory_after)}"),
            Cell(units.seconds(climb.first_answer)),
            Cell(units.seconds(climb.verified)),
        ]
        for number, climb in enumerate(climbs, 1)
    ]
    lines = [*table_of(columns, rows, width, color), "", *_on(climbs, width), *_rungs(climbs, width, color), ""]
    return lines + [f"{number:>2}  {climb.directory}" for number, climb in enumerate(climbs, 1)]


def _stacked(estimate: Estimate | None) -> str:
    if estimate is None:
        return units.NONE
    return "\n".join(part for part in (units.ratio(estimate.value), units.span(estimate)) if part)


def _on(climbs: Sequence[Climb], width: int) -> list[str]:
    """Where they ran; of several devices, which ran where."""
    where: dict[str, list[str]] = {}
    for number, climb in enumerate(climbs, 1):
        where.setdefault(", ".join(part for part in (climb.device, climb.software) if part), []).append(str(number))
    if len(where) == 1:
        return units.wrapped(f"All on {next(iter(where))}.", width)
    text = "; ".join(f"{', '.join(numbers)} on {device}" for device, numbers in where.items())
    return units.wrapped(f"{text}. Each speedup is against the untouched model on the same device.", width)


def _rungs(climbs: Sequence[Climb], width: int, color: bool) -> list[str]:
    """A row a rung, a mark a climb: in blocks of as many climbs as fit."""
    names, left = tried(climbs)
    if not names:
        return []
    margin = min(max(map(len, names)), 28)
    room = max(1, (width - margin - 2) // 4)
    lines: list[str] = []
    seen = set()
    for begin in range(0, len(climbs), room):
        block = climbs[begin : begin + room]
        lines += ["", f"{'rung':<{margin}}  {''.join(f'{begin + k:>3} ' for k in range(1, len(block) + 1))}".rstrip()]
        for name in names:
            verdicts = [climb.rungs[name].verdict if name in climb.rungs else "" for climb in block]
            seen |= set(verdicts)
            marks = "".join(f"{MARKS.get(verdict, ''):>3} " for verdict in verdicts)
            lines.append(f"{name[:margin]:<{margin}}  {marks}".rstrip())
    legend = ", ".join(f"{MARKS[verdict]} {verdict} ({what})" for verdict, what in OUTCOMES.items() if verdict in seen)
    more = f" {left} more rungs were tried in none of them." if left else ""
    return [*lines, "", *units.wrapped(f"{legend}.{more}", width)]
