"""The verdict on a candidate, its secondary gains, and what it does to the answer."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack

from msgspec import UNSET

from rung.engine.disturbed import compiled_anew
from rung.ladder.climb.answer import PROVISIONAL_GAIN, offer, take_back, verified_answer
from rung.ladder.climb.begin import finish_survey
from rung.ladder.climb.busy_cpu import busy_clause, doubt_of_record, waited_for_cores
from rung.ladder.climb.checks import (
    end_checks,
    end_shape_checks,
    may_pass,
    named,
    once_more,
    part_of,
    refusal,
    verified,
)
from rung.ladder.climb.modes import the_best
from rung.ladder.climb.prefetch import prefetch_next
from rung.ladder.climb.schedule import OVER, confirmation_seconds, trial_budget
from rung.ladder.climb.state import OutOfTime, Profile, State
from rung.ladder.climb.tamper_checks import reason_to_distrust
from rung.ladder.climb.unfinished import discard, save_verified
from rung.launch import WorkerFailed
from rung.measure import Comparison
from rung.quantities import duration
from rung.records.climb import Attempt, OverShapes, PayBack, Plain
from rung.records.compare import Interleaved
from rung.records.progress import Judged, Warned
from rung.records.record import record_of
from rung.rungs import Rung
from rung.timing.tasks import Task, end_all
from rung.timing.workers import open_worker
from rung.verify.verdict import joined

progress = logging.getLogger(__name__)

DISTURBED = 1.5  # times, between two measurements of the untouched workload
# Times the best so far, of a candidate that is faster with confidence: verified, it is worth more than the best confirmed.
WORTH_MORE = 1.02


def rejection(record: Attempt, rung: Rung, comparison: Comparison, slower_at_most: float) -> tuple[str, str] | None:
    """The verdict and its reason, where a rung is rejected for its times: it is not faster, and has no secondary gain at a step that is slower by
    no more than this share. None where it may be kept."""
    answer, speedup = comparison.answer, comparison.speedup
    if answer == "faster":
        why = reason_to_distrust(record, speedup.value)
        return ("reverted", why) if why else None
    if speedup.low > 1 - slower_at_most and secondary_gain(record, rung):
        return None
    anew = (record.compiled_while_timed or {}).get("candidate", 0)
    but = f" ({compiled_anew(anew)})" if anew else ""
    if answer == "slower":
        if waited := waited_for_cores(record):
            return "inconclusive", f"it was slower while {waited}; climb again while the machine does nothing else."
        return "reverted", f"it is slower than the best so far{but}{busy_clause(record)}."
    if record.cut:
        times = f"{comparison.restarts} restart{'' if comparison.restarts == 1 else 's'}"
        return "inconclusive", f"the budget ended after {times}; `--resume` tries it again."
    if doubt := doubt_of_record(record):
        return "inconclusive", f"the interval includes 1, so it is not kept and stays provisional{but}: {doubt}."
    return "inconclusive", f"the interval includes 1: no gain was shown, so it is not kept{but}{busy_clause(record)}."


def verify_and_judge(state: State, record: Attempt, checks: Sequence[Task], gain: float, profile: Profile) -> None:
    """Waits for the verification of a candidate that is faster, and gives the verdict. gain: over the best so far. Where it is large, the
    verification may take the time that was kept for confirming (rule 6)."""
    began = time.monotonic()

    def reserved() -> float:
        sure = record.comparison and record.comparison.answer == "faster"
        return 0.0 if sure and gain >= WORTH_MORE else confirmation_seconds(state)

    def left() -> float:
        if kept := reserved():
            return state.left() - kept
        begun = all(task.running or task.done for task in checks)
        return state.left() + (OVER * (state.request.budget or 0.0) if begun else 0.0)

    if state.survey_task:
        state.pool.wait(lambda: finish_survey(state, wait=False) or all(task.done for task in checks), state.left)
    progress.info("verifying in %s", " and ".join(named(part_of(task)) for task in checks))

    def decided() -> bool:
        prefetch_next(state, record.stack, profile, record.without or ())
        save_verified(state, record.stack, {part_of(t): found for t in checks if (found := verified(t))})
        return all(task.done for task in checks) or any(map(refusal, checks))

    if not state.pool.wait(decided, left):
        end_all(checks)
        raise OutOfTime
    record.verified_seconds = max(
        t.since_open("verify") if "verify" in t.took else time.monotonic() - began for t in checks
    )
    refused = [task for task in checks if refusal(task)]
    end_all(checks)
    if not refused and any(task.error and may_pass(task.error) for task in checks):
        checks = _one_at_a_time(state, checks, reserved())
    if failed := next((task.error for task in checks if task.error), None):
        record.verdict, record.why = "failed", failed.sentence
        return
    # What one precision refuses needs no other.
    found = joined([answer for task in refused or checks if (answer := verified(task))])
    record.verification, record.gain = found, gain
    if why := next(filter(None, map(refusal, refused or checks)), ""):
        record.verdict, record.why = "reverted", f"{why}."
        return
    record.verdict, record.why = "kept", "verified, and faster with confidence."
    if record.modes is not UNSET and len(record.restarts or ()) == 1:
        record.why = "verified, and faster in one restart so far; the confirmation takes more."
    elif record.comparison and record.comparison.cut:
        which = "the one restart" if len(record.restarts or ()) == 1 else "each restart"
        record.why = f"verified, and faster in {which} that the budget allowed."
    elif len(record.restarts or ()) == 1:
        record.why = "verified, and faster: one restart showed a gain larger than the spread between processes."


def _one_at_a_time(state: State, checks: Sequence[Task], reserved: float) -> list[Task]:
    """Repeats checks that failed for lack of memory, or whose code could not be loaded. Each has the machine's memory alone. reserved: seconds of
    the budget that must be left."""
    end_all(
        held for held in (state.best_worker, state.candidate_worker, state.baseline_worker, state.next_worker) if held
    )
    end_checks(state)
    end_shape_checks(state)
    state.next_worker, state.next_checks = None, []
    return once_more(state, checks, lambda numerics: ("verify", {"numerics": numerics}), reserved)


def mark_failed(state: State, record: Attempt, error: WorkerFailed) -> None:
    """Records why an attempt failed. A worker that was stopped because the budget was over did not fail."""
    if error.kind == "hung" and trial_budget(state) <= 1:
        mark_cut_short(record)
    else:
        record.verdict, record.why = "failed", error.sentence


def mark_cut_short(record: Attempt) -> None:
    record.verdict, record.cut = "inconclusive", True
    record.why = "the budget ended before a verdict; `--resume` continues."


def record_verdict(state: State, record: Attempt, profile: Profile) -> None:
    kind = "attempt" if record.modes is UNSET else "plain"
    if state.best_worker:
        state.best_worker.reclaimable = False  # what is tried next is timed beside it
    if record.verdict == "kept":
        state.kept = list(record.stack)
        record.breakdown = profile.breakdown
        state.set_profile(profile)
        state.add(record)
        discard(state, kind)
        offer(state, verified_answer(state, record, state.gain_over_baseline()), kept=True)
        state.replaced_answers = [a for a in state.replaced_answers if a.status != "provisional"]
    else:
        state.add(record)
        if not record.cut:  # where it was only cut short, what was seen of it still holds
            discard(state, kind)
            if not doubt_of_record(record):
                wrong = record.verdict == "reverted" and bool(record.verification)
                take_back(state, state.provisional_stack or record.stack, record.why.rstrip("."), wrong=wrong)
    state.provisional_stack = []
    state.say(Judged(record))


def restore_best(state: State) -> None:
    """Restores the best so far from the attempts in the run directory.

    A climb may have been killed between recording an attempt and offering its answer, or between refuting an answer and correcting its
    attempts. Then the second step follows now."""
    for record in state.attempts:
        if record.plain and record.plain.rungs:
            state.plain = record.plain
    kept = state.kept_attempts
    last = next((t for t in reversed(state.taken_back) if kept and t.kept == kept[-1].stack), None)
    if last and last.seconds >= (kept[-1].spent_seconds or 0.0):
        refute(state, last.kept, last.why)
        return
    _set_best(state, kept)
    if not kept or not kept[-1].comparison:
        return
    now, unfinished = state.answer, state.unfinished.get("attempt")
    if now and unfinished and unfinished.against == state.best_name and unfinished.stack == list(now.kept):
        return  # provisional, of what is gone on with
    verified = verified_answer(state, kept[-1], state.gain_over_baseline())
    if now is None or now.kept != verified.kept or now.rank < verified.rank:
        state.answer = None
        offer(state, verified)


def refute(state: State, stack: Sequence[str], why: str) -> None:
    """Withdraws an answer that was kept, and the attempts since the answer before it, which becomes the best so far again."""
    take_back(state, stack, why)
    before = list(state.answer.kept) if state.answer else []
    kept = state.kept_attempts
    while kept and kept[-1].stack != before:
        record = kept.pop()
        record.verdict, record.why = "reverted", f"it was kept first and then withdrawn: {why}."
        _without_mode(state, record, why)
        state.run.add_attempt(record)
    _set_best(state, kept)


def _without_mode(state: State, record: Attempt, why: str) -> None:
    """Where a plain mode was withdrawn, answers are compared with the next fastest."""
    if not record.modes:
        return
    for mode in record.modes:
        if mode.rungs == record.stack:
            mode.error, mode.speedup = f"{why}.", UNSET
    fastest = max((mode for mode in record.modes if mode.speedup), key=lambda mode: mode.speedup or 0.0, default=None)
    state.plain = the_best(fastest, list(record.modes)) if fastest else None
    record.plain = state.plain or Plain()


def _set_best(state: State, kept: Sequence[Attempt]) -> None:
    """Makes what these attempts kept the best so far."""
    state.kept = list(kept[-1].stack) if kept else []
    if not kept and state.trace("baseline").exists():
        state.set_profile(state.read_profile("baseline", state.baseline.time.value))
    for record in reversed(kept):
        name = f"{record.number:02d}-{record.rung}"
        if record.breakdown and record.times and state.trace(name).exists():
            state.set_profile(state.read_profile(name, record.times["candidate"].value))
            return


def warn_if_disturbed(state: State, record: Attempt) -> None:
    """Warns where the untouched workload, the `best` of this attempt, took another time than alone."""
    assert record.times
    if said := disturbed(state.baseline.time.value, record.times["best"].value):
        record.warnings = [*(record.warnings or ()), said]
        state.say(Warned(said))


def slowed_by_others(state: State, record: Interleaved | Attempt) -> str:
    """Why a candidate that looks faster than the untouched model may not be so, as a sentence. The untouched model took much longer beside the
    candidate than alone, and alone it was as fast. Empty where that is not so. Empty, too, where the record is marked busy: then the shortest
    steps, which other programs do not slow, bound the speedup, so it is only doubtful."""
    if state.kept or record.busy:
        return ""
    assert record.times
    alone, beside, mine = state.baseline.time.value, record.times["best"].value, record.times["candidate"].value
    if beside < DISTURBED * alone or alone >= PROVISIONAL_GAIN * mine:
        return ""
    return (
        f"it took {duration(mine)} a step, and the untouched model {duration(beside)} beside it, but {duration(alone)} alone: "
        "measure on a quieter machine."
    )


def disturbed(alone: float, beside: float) -> str:
    """A warning where the untouched workload takes another time beside a candidate than alone; empty where it does not."""
    ratio = alone / beside
    if max(ratio, 1 / ratio) < DISTURBED:
        return ""
    times = f"{duration(alone)} per step when it was timed alone, and {duration(beside)} next to a candidate"
    return (
        f"the baseline took {times}: something disturbed one of the two. "
        "The breakdown and the predictions use the first, and the speedup the second."
    )


def pay_back(record: Attempt) -> PayBack:
    """How much longer the candidate's first run takes, and after how many steps its faster steps have made up for it."""
    assert record.first_run_seconds
    assert record.times
    firsts, times = record.first_run_seconds, record.times
    longer = firsts["candidate"] - firsts["best"]
    gain = (times["best"].value - times["candidate"].value) / 1e9
    steps = 0 if longer <= 0 else math.ceil(longer / gain) if gain > 0 else None
    return PayBack(seconds=longer, steps=steps)


LESS_TIME = 0.5  # of the best's first run
LESS_MEMORY = 0.9  # of the best's peak
SIDES = ("best", "candidate")


def secondary_gain(record: Attempt, rung: Rung) -> str | None:
    """The secondary gain of a candidate in words, such as less memory; None where it is too small, or the rung is only for the step."""
    if rung.improves == "first run":
        assert record.first_run_seconds
        best, mine = (record.first_run_seconds[side] for side in SIDES)
        return f"its first run takes {mine:.0f} s instead of {best:.0f} s" if mine < LESS_TIME * best else None
    if rung.improves == "memory":
        assert record.memory
        for key, verb in (("allocated", "takes"), ("reserved", "reserves")):
            peaks = [record.memory[side].get(key, 0) for side in SIDES]
            if peaks[1] < LESS_MEMORY * peaks[0]:
                return f"it {verb} {_gib(peaks[1])} instead of {_gib(peaks[0])} at its peak"
        return None
    if rung.improves == "graphs":
        assert record.over_shapes
        before, now = (record.over_shapes[side] for side in SIDES)
        times = f"{now.seconds:.0f} s instead of {before.seconds:.0f} s for {now.shapes} shapes"
        graphs = f"it compiles {now.graphs} graph{'s' if now.graphs != 1 else ''} instead of {before.graphs}"
        return f"{graphs}, {times}" if now.graphs < before.graphs else None
    return None


def over_shapes(state: State, candidate: list[str], name: str) -> dict[str, OverShapes]:
    """By side, what compiling for all shapes of the workload takes, each in a fresh worker (`Candidate.over_shapes`)."""
    found = {}
    for side, rungs in zip(SIDES, (state.kept, candidate), strict=True):
        with ExitStack() as stack:
            worker = open_worker(stack, state.setup, state.side(rungs), f"{name}-shapes-{side}", briefly=True)
            progress.info("compiling for every shape, %s", side)
            limit = state.setup_within(trial_budget(state)).limits.prepare
            worker.receive("open", limit)
            found[side] = record_of(OverShapes, worker.call("over_shapes", limit))
    return found


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
