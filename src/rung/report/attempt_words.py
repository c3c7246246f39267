"""The phrases for one attempt of a climb that the terminal and the page share: what was predicted, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from rung.records.climb import Attempt, Result
from rung.records.measured import Check, Ratio
from rung.report import breakdowns, units
from rung.timing.other_gpus import differs

MARKS = {
    "kept": "✓",
    "reverted": "↩",
    "no-op": "=",
    "inapplicable": "·",
    "not yet": "·",
    "inconclusive": "?",
    "failed": "✗",
}
OTHER = "other reasons"
SOME = 5  # names that a line lists


def folded(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The attempts, those that were never measured, for one and the same reason, as one: its `rung` names them all."""
    found: list[Attempt] = []
    by_reason: dict[tuple[str, str], Attempt] = {}
    for attempt in attempts:
        reason = units.clean(attempt.verdict), units.clean(attempt.why)
        if attempt.log or not reason[0]:
            found.append(attempt)
        elif first := by_reason.get(reason):
            first.rung, first.title, first.changes = f"{first.rung}, {attempt.rung}", "", ""
        else:
            by_reason[reason] = replace(attempt)
            found.append(by_reason[reason])
    return found


def grouped(attempts: Sequence[Attempt]) -> dict[str, list[str]]:
    """The names of what was never measured, by the kind of its reason: what only waits first, what is of no kind last."""
    found: dict[str, list[str]] = {}
    for attempt in attempts:
        verdict, group = units.clean(attempt.verdict), units.clean(attempt.group)
        if verdict == "not yet":
            group = f"not yet: {units.clean(attempt.why).rstrip('.')}"
        elif verdict == "no-op":
            group = "already in effect, or without effect here"
        found.setdefault(group or OTHER, []).append(name(attempt))
    return dict(
        sorted(found.items(), key=lambda pair: (not pair[0].startswith("not yet"), pair[0] == OTHER, -len(pair[1])))
    )


def some(names: Sequence[str]) -> str:
    """Those of a list that a line has room for."""
    if len(names) <= SOME + 1:
        return ", ".join(names)
    return f"{', '.join(names[:SOME])} and {len(names) - SOME} more"


def name(attempt: Attempt) -> str:
    return units.clean(attempt.rung) or "rung"


def predicted(attempt: Attempt) -> str:
    between = units.span(attempt.prediction)
    return f"{between}×" if between else units.NONE


def expected(attempt: Attempt) -> str:
    """Which gain of that range is expected; empty where that is not known."""
    value = attempt.prediction.expected if attempt.prediction else None
    return "" if units.number(value) is None else f"expected {units.ratio(value)}"


def off(attempt: Attempt) -> str:
    """How far a prediction was from what was measured; empty where nothing was decided."""
    points = units.number(attempt.prediction_error)
    return "" if points is None else f"{points:.0f}% of a step from what was expected"


def full_prediction(attempt: Attempt) -> str:
    """Such as "1.20–2.00×, expected 1.30×"."""
    return ", ".join(part for part in (predicted(attempt), expected(attempt)) if part)


def outcome(attempt: Attempt) -> str:
    """The prediction, and how what was measured compares with it; empty where nothing was predicted."""
    if not attempt.prediction:
        return ""
    text = full_prediction(attempt)
    if attempt.forecast:
        text += f". What was measured is {units.clean(attempt.forecast)} the range"
        text += f", {off(attempt)}" if off(attempt) else ""
    return f"{text}. It rests on {rests_on(attempt)}." if rests_on(attempt) else f"{text}."


def rests_on(attempt: Attempt) -> str:
    """What a prediction follows from: the shares of the two largest parts that the rung works on."""
    shares = attempt.prediction.shares if attempt.prediction else {}
    numbers = [(key, units.number(share)) for key, share in shares.items()]
    named = [f"{breakdowns.part(key, attempt.clock)} {n:.0%}" for key, n in numbers if n is not None][:2]
    return f"{', '.join(named)} of the step" if named else ""


def other_gpus(attempt: Attempt) -> str:
    """Such as "restarts 3 and 5 on GPU 1, where a step takes 1.30× as long"; empty where all ran on the first."""
    said = []
    for gpu in attempt.other_gpus or ():
        numbers = f"restart{'s' if len(gpu.restarts) > 1 else ''} {' and '.join(map(str, gpu.restarts))}"
        pace = f", where a step takes {gpu.step:.2f}× as long" if differs(gpu) else ""
        said.append(f"{numbers} on {units.clean(gpu.gpu)}{pace}")
    return "; ".join(said)


def speedup(attempt: Attempt) -> Ratio | None:
    return attempt.comparison.speedup if attempt.comparison else None


def stands(attempt: Attempt, result: Result | None) -> bool:
    """Whether an attempt was kept; or is the answer, though its time was over before it was decided."""
    of_answer = result is not None and bool(result.kept) and attempt.stack == result.kept
    return attempt.verdict == "kept" or (attempt.verdict == "inconclusive" and of_answer)


def worst(attempt: Attempt) -> Check | None:
    return attempt.verification.worst if attempt.verification else None


def candidate_time(attempt: Attempt) -> float | None:
    candidate = (attempt.times or {}).get("candidate")
    return candidate.value if candidate else None


def candidate_memory(attempt: Attempt) -> float | None:
    return units.peak((attempt.memory or {}).get("candidate"))


def pays_back(attempt: Attempt) -> str:
    """Such as "41 s more to prepare, paid back after 3,200 steps"; empty where preparing takes about as long."""
    record = attempt.pay_back
    longer = units.number(record.seconds) if record else None
    if not record or longer is None or longer < 1:
        return ""
    text = f"{units.seconds(longer)} more to prepare"
    return f"{text}, paid back after {units.count(record.steps)} steps" if record.steps else f"{text}, never paid back"


def effect(attempt: Attempt) -> str:
    """Whether what the rung should do beside being faster was seen, and with which figures."""
    record = attempt.effect
    if not record or not record.should:
        return ""
    seen = "seen" if record.shown is True else "not seen" if record.shown is False else "unknown"
    return f"{units.clean(record.should)}: {seen} ({units.clean(record.says)})"
