"""Several climbs beside each other, on a terminal and as a page: what each gave, and what became of each rung; a run in a list."""

from __future__ import annotations

from collections.abc import Sequence

from rung.records.climb import Attempt, Climb, ClimbRun, Moment, Outcome
from rung.records.measured import Figure, Ratio
from rung.report import attempt_words, units, words
from rung.report.embedded import Links, page_of
from rung.report.forest_chart import effect, forest
from rung.report.layout import Cell, Column, table_of

MARKS = attempt_words.MARKS | {"refused": "!"}
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


def climb_of(run: ClimbRun) -> Climb:
    manifest, result, kept = run.manifest, run.result, words.kept(run)
    answer = result if kept else None
    history = (result.history if result else None) or []
    memory = (result.memory if result else None) or {}
    before, after = words.before(run), words.result_time(run, "best") if kept else None
    state = words.standing(run)
    recipe = units.clean(answer.status) if answer else "nothing kept"
    return Climb(
        directory=units.clean(run.directory),
        model=units.one_line(manifest.workload.name or manifest.target or "workload"),
        mode=units.clean(manifest.workload.mode),
        numerics=units.clean(manifest.numerics),
        device=words.device(manifest),
        software=words.versions(manifest),
        status=recipe if state == "complete" else f"{recipe}, {state}" if kept else state,
        kept=kept,
        speedup=_ratio(answer.speedup) if answer else None,
        over_plain=_ratio(answer.over_plain) if answer else None,
        step_before=units.number(before.value) if before else None,
        step_after=units.number(after.value) if after else None,
        memory_before=units.peak(memory.get("baseline") or (run.baseline.memory if run.baseline else None)),
        memory_after=units.peak(memory.get("best")) if kept else None,
        first_answer=_first(history, ("provisional", "verified", "confirmed")),
        verified=_first(history, ("verified", "confirmed")),
        took=units.number((result.seconds if result else None) or manifest.spent_seconds),
        rungs={attempt_words.name(attempt): _outcome(attempt) for attempt in run.attempts},
    )


def _ratio(figure: Figure | Ratio | None) -> Ratio | None:
    """With what is known of it, which is no infinity."""
    value = units.number(figure.value) if figure else None
    if figure is None or value is None:
        return None
    return Ratio(value=value, low=units.number(figure.low), high=units.number(figure.high))


def _first(history: Sequence[Moment], statuses: Sequence[str]) -> float | None:
    return next((units.number(row.seconds) for row in history if row.status in statuses), None)


def _outcome(attempt: Attempt) -> Outcome:
    verdict = units.clean(attempt.verdict)
    refused = verdict == "failed" and attempt.verification and not attempt.verification.passed
    return Outcome(
        verdict="refused" if refused else verdict,
        speedup=_ratio(attempt_words.speedup(attempt)),
        why=units.clean(attempt.why),
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


def run_line(run: ClimbRun) -> str:
    """A run in a list: where, what, how it stands and what it gave."""
    manifest, result = run.manifest, run.result
    gain = units.interval(result.speedup) if result and result.speedup else "no recipe"
    status = f", {units.clean(result.status)}" if result and result.status else ""
    ended = gain + status + (", ended early" if words.ended_early(run) else "")
    outcome = ended if manifest.status == "complete" else words.standing(run)
    options = "".join(f" --{name} {value}" for name, value in (manifest.options or {}).items())
    what = f"{manifest.workload.name}{options} ({manifest.workload.mode}, {manifest.numerics})"
    return "  ".join(units.one_line(part) for part in (run.directory, what, outcome))


def _stacked(estimate: Ratio | None) -> str:
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


def page(climbs: Sequence[Climb], nav: Links = ()) -> str:
    """The page as text. nav: as in `page_of`."""
    from markupsafe import Markup

    names, left = tried(climbs)
    seen = {climb.rungs[name].verdict for climb in climbs for name in names if name in climb.rungs}
    return page_of(
        "climbs.html",
        ("page", "tables", "export"),
        nav=nav,
        climbs=climbs,
        names=names,
        left=left,
        marks=MARKS,
        legend=[(verdict, what) for verdict, what in OUTCOMES.items() if verdict in seen],
        forests=[
            (title, Markup(_forest(climbs, [getattr(climb, key) for climb in climbs], title)))
            for title, key in (
                ("Over the untouched model", "speedup"),
                ("Over the best plain torch.compile", "over_plain"),
            )
            if any(getattr(climb, key) for climb in climbs)
        ],
    )


def _forest(climbs: Sequence[Climb], estimates: Sequence[Ratio | None], title: str) -> str:
    rows = [
        effect(
            f"{number} {climb.model}, {climb.status}",
            estimate,
            css="kept" if climb.status == "confirmed" else "tried",
        )
        for number, (climb, estimate) in enumerate(zip(climbs, estimates, strict=True), 1)
        if estimate
    ]
    return forest([row for row in rows if row], f"Speedups: {title.lower()}")
