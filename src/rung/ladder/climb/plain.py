"""The plain modes of torch.compile, what a user would write in one line: the first candidates, and what every answer is held against.

`rung.ladder.climb.race` times them; here the fastest is verified, or the next fastest in its place.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from msgspec import UNSET

from rung.ladder.climb.answer import PROVISIONAL_GAIN, take_back
from rung.ladder.climb.begin import wait_for_audit
from rung.ladder.climb.busy_cpu import busy_clause
from rung.ladder.climb.checks import checks_of, end_checks
from rung.ladder.climb.mode_preparation import prepared_mode
from rung.ladder.climb.mode_timing import Race, ensure_baseline_worker, time_modes, trace_name
from rung.ladder.climb.modes import NAME, ROUNDED, eager_rounding_variant, the_best, title
from rung.ladder.climb.prefetch import worker_of_best
from rung.ladder.climb.race import race
from rung.ladder.climb.schedule import verification_seconds
from rung.ladder.climb.state import OutOfTime, Profile, State
from rung.ladder.climb.tamper_checks import reason_to_distrust
from rung.ladder.climb.verdict import (
    mark_cut_short,
    mark_failed,
    record_verdict,
    slowed_by_others,
    verify_and_judge,
    warn_if_disturbed,
)
from rung.launch import WorkerFailed
from rung.measure import CLIMB, judge
from rung.records.climb import Attempt, Mode, Plain
from rung.records.record import take
from rung.timing.worker_group import WorkerGroup

progress = logging.getLogger(__name__)

PROFILING = 1.0  # seconds that must be left for a profile, which a verdict does not need


def attempt_plain(state: State) -> None:
    """The plain modes as the first attempt, of which the fastest that computes the same is kept. Where none does, the ladder's rungs
    are tried one at a time. An earlier sitting that timed them and had no time to verify is gone on with."""
    began = time.monotonic()
    profile = Profile()
    record = next((a for a in state.attempts if a.rung == NAME), None)
    state.attempts = [a for a in state.attempts if a.rung != NAME]
    try:
        if record is None or not record.stack:
            record = _first_record(state, race(state))
        profile = _verify(state, record)
        while record.verdict in ("reverted", "failed") and (other := _replacement(state, record)):
            take_back(state, record.stack, record.why.rstrip("."), wrong=bool(record.verification))
            record.stack = []  # the refuted one has its reason among the modes
            record = _timed_instead(state, record, *other)
            fastest = _fastest(record)
            if fastest and other[0].endswith(ROUNDED) and fastest.name != other[0]:
                record = _timed_instead(state, record, fastest.name, fastest.rungs)
            profile = _verify(state, record)
    except WorkerFailed as failure:
        if record is None:
            raise
        mark_failed(state, record, failure)
    except OutOfTime:
        if record is None:
            raise
        mark_cut_short(record)
    assert record is not None
    answer = state.answer
    if record.cut and answer and answer.status != "provisional" and list(answer.kept) == record.stack:
        record.why = "its recipe is verified; the budget ended before all modes were timed. `--resume` continues."
    if record.verdict in ("reverted", "failed") or not record.stack:
        state.plain, record.plain = None, Plain()
    if record.verdict != "kept" and not record.cut:
        end_checks(state)
    record.seconds = time.monotonic() - began
    record_verdict(state, record, profile)


def _verify(state: State, record: Attempt) -> Profile:
    """Verifies the fastest mode, unless there is a verdict already; what a trace shows of it."""
    if record.verdict and not record.cut:
        return Profile()
    name = f"01-{NAME}"
    record.verdict, record.why, record.cut = "", "", False
    state.plain = record.plain or None
    wait_for_audit(state)
    ahead, state.mode_checks = state.mode_checks, []
    checks = checks_of(state, record.stack, name, ahead)
    try:
        _profile(state, record, name)
        assert record.times
        assert record.comparison
        profile = Profile()  # a profile that failed, or had no time, costs the predictions only
        if state.trace(name).exists():
            profile = state.read_profile(name, record.times["candidate"].value)
        verify_and_judge(state, record, checks, record.comparison.speedup.value, profile)
    except WorkerFailed as failure:
        mark_failed(state, record, failure)
        return Profile()
    return profile


def _profile(state: State, record: Attempt, name: str) -> None:
    """Records the fastest mode, unless that was done when its worker was ended. Raises WorkerFailed."""
    fastest = next((mode.name for mode in record.modes or () if mode.rungs == record.stack), "")
    recorded = state.trace(trace_name(fastest))
    if recorded.exists():
        recorded.replace(state.trace(name))
        return
    state.trace(name).unlink(missing_ok=True)  # of a mode that was refuted
    if state.left() <= PROFILING:
        return
    best = worker_of_best(state, record.stack, name)
    state.wait(best)
    if best.error:
        raise best.error
    WorkerGroup.of(state.setup_within(state.left()), {"candidate": best}).profile(state.trace(name))
    best.reclaimable = True


def _replacement(state: State, record: Attempt) -> tuple[str, Sequence[str]] | None:
    """The name and the rungs of what is tried in the place of the mode that was refuted just now, which is marked so: the same with
    another rounding, where 16 bits refused it and time is left for that; or the fastest of the others."""
    modes = record.modes or []
    took = record.prepared_seconds or 0.0
    time_left = state.left() > took + verification_seconds(state, record.stack, took)
    in_16_bits = bool(record.verification and record.verification.precisions == ["bf16"])
    for mode in modes:
        if mode.rungs == record.stack:
            mode.error, mode.speedup = record.why, UNSET
            seen = [other.name for other in modes]
            if (
                in_16_bits
                and time_left
                and (found := eager_rounding_variant(state.context(), mode.name, mode.rungs, seen))
            ):
                return found
    fastest = _fastest(record)
    return (fastest.name, fastest.rungs) if fastest else None


def _fastest(record: Attempt) -> Mode | None:
    """The fastest mode that is worth a try."""
    fastest = max(record.modes or [], key=lambda mode: mode.speedup or 0.0, default=None)
    return fastest if fastest and (fastest.speedup or 0.0) >= PROVISIONAL_GAIN else None


def _timed_instead(state: State, record: Attempt, name: str, rungs: Sequence[str]) -> Attempt:
    """Another mode in the place of the one that was refuted, in a new worker: its own, if it had any, is gone."""
    progress.info("in its place: %s", title(name))
    result = Race({mode.name: mode for mode in record.modes or ()})
    ensure_baseline_worker(state)
    task = state.mode_workers[name] = prepared_mode(state, name, rungs, "-again")
    state.pool.add(task)
    state.wait(task)
    time_modes(state, result, {name: task})
    return _first_record(state, result)


def _first_record(state: State, found: Race) -> Attempt:
    """The record of the plain modes, timed and not verified; with a verdict where none is fast enough."""
    modes = list(found.modes.values())
    timed = [mode for mode in modes if mode.speedup]
    best = found.modes[found.best] if found.best else max(timed, key=lambda mode: mode.speedup or 0.0, default=None)
    state.plain = the_best(best, modes) if best else None
    record = Attempt(
        number=1, rung=NAME, level=2, title="plain torch.compile, in its modes", contract="reassociated", against="baseline",
        replaces=[], graph_breaks=[], verdict="", modes=modes, plain=state.plain or Plain(),
    )  # fmt: skip
    if not found.best or best is None:
        errors = [mode for mode in modes if mode.error]
        wrong = next((mode for mode in errors if mode.step_ns), None)  # it ran, and was refused
        record.verdict = "reverted" if wrong else "failed" if errors else "inapplicable"
        if errors:
            record.log = _log_of(wrong or errors[0])
        record.why = (
            f"{wrong.title}: {wrong.error}" if wrong
            else f"no mode ran: {errors[0].error}" if errors
            else "this device and workload permit no plain mode."
        )  # fmt: skip
        return record
    record.stack, record.members, record.title = best.rungs, best.rungs, best.title
    record.log = _log_of(best)
    record.prepared_seconds = best.prepared_seconds
    found.ab_run.comparison = judge([r.log_ratio() for r in found.ab_run.restarts], looks=CLIMB, last=True)
    take(record, found.ab_run.record())
    warn_if_disturbed(state, record)
    if (best.speedup or 0.0) < PROVISIONAL_GAIN:
        record.verdict = "inconclusive"
        record.why = (
            f"no plain mode was more than {PROVISIONAL_GAIN - 1:.0%} faster in one restart{busy_clause(record)}."
        )
    elif why := reason_to_distrust(record, best.speedup or 0.0):
        record.verdict, record.why = "reverted", why
    elif why := slowed_by_others(state, record):
        record.verdict, record.why = "inconclusive", why
        best.error, best.speedup = why, UNSET  # nothing is held against it
        state.plain, record.plain = None, Plain()
    return record


def _log_of(mode: Mode) -> str:
    """Of the worker that prepared it."""
    return f"workers/01-{NAME}-{mode.name}.log"
