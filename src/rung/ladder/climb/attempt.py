"""One attempt at a rung: predict, measure in fresh pairs of processes, prove that it is in effect, verify, and keep or revert it."""

from __future__ import annotations

import contextlib
import logging
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from msgspec import UNSET

from rung.ladder.climb.answer import (
    PROVISIONAL_GAIN,
    VERIFIED_GAIN,
    answer_of,
    offer,
    prediction_error,
    prediction_of,
)
from rung.ladder.climb.bundles import bundle_of, effective_stack, in_words, ineffective_members, stack_with
from rung.ladder.climb.busy_cpu import clocks_disagree, with_solo_baseline
from rung.ladder.climb.checks import checks_of, end_checks, end_checks_of, end_shape_checks, may_pass
from rung.ladder.climb.on_gpus import further_restarts, report_gpu_differences
from rung.ladder.climb.prefetch import note_memory, prefetch_next, verify_while_compiling, worker_of_best
from rung.ladder.climb.prerequisites import name_missing
from rung.ladder.climb.schedule import confirmation_seconds, planned_looks, trial_budget
from rung.ladder.climb.state import WARM, OutOfTime, Profile, State
from rung.ladder.climb.tamper_checks import reason_to_distrust
from rung.ladder.climb.unfinished import Unfinished, save, unfinished_of
from rung.ladder.climb.verdict import (
    DISTURBED,
    mark_cut_short,
    mark_failed,
    over_shapes,
    pay_back,
    record_verdict,
    rejection,
    secondary_gain,
    slowed_by_others,
    verify_and_judge,
    warn_if_disturbed,
)
from rung.launch import WorkerFailed
from rung.measure import CLIMB, Comparison, Restart, decide, judge
from rung.records.climb import Attempt, Effect, Prediction
from rung.records.progress import Planned, Verifies, Warned
from rung.records.record import record_of, take
from rung.rungs import BY_NAME, Evidence, Rung
from rung.rungs.environment import FILES
from rung.timing.ab_run import ABRun
from rung.timing.tasks import Task, end_all
from rung.timing.worker_group import SideFailed, WorkerGroup, blocks_seconds

progress = logging.getLogger(__name__)

# Speedups in one restart, below which a candidate is given up, and from which on one restart is enough. Processes of one program differ by
# 1 to 3 % (docs/internals/measurement.md). The second is by whether it is on a GPU: on a CPU other programs take cores, too.
GIVE_UP, CLEAR = 0.97, {True: 1.12, False: 1.20}


def new_record(state: State, rung: Rung, planned: bool = False) -> Attempt:
    """The record of an attempt before anything is measured. It has a verdict where the rung does not apply. planned: it is part of a plan, in
    which nothing was tried yet."""
    context = state.context()
    no = rung.applies(context)
    no = name_missing(state, rung, no, planned) if no else None
    prediction = None if no else rung.predict(context)
    stack, members = stack_with(state.kept, rung), [member.name for member in rung.members]
    return Attempt(
        number=len(state.attempts) + 1,
        rung=rung.name,
        level=rung.level,
        title=rung.title,
        contract=rung.contract,
        changes=rung.changes,
        against=state.best_name,
        stack=stack,
        replaces=[name for name in state.kept if name not in stack],
        prediction=record_of(Prediction, prediction) if prediction else None,
        clock=state.breakdown.clock if state.breakdown else None,
        graph_breaks=state.facts.graph_breaks if "compile" in (rung.name, *members) else [],
        verdict=no.verdict if no else "",
        why=no.why if no else "",
        group=no.group if no else UNSET,
        members=members or UNSET,
    )


def attempt(state: State, rung: Rung) -> None:
    """Tries a rung, and records the verdict. If it is kept, it becomes the best so far."""
    began = time.monotonic()
    record = new_record(state, rung)
    profile = Profile()
    if not record.verdict:
        state.say(Planned(record))
        name = f"{record.number:02d}-{rung.name}"
        record.log = f"workers/{name}-1-candidate.log"
        try:
            _rehearse(state, rung, record.stack, name)
            ab_run = _compare(state, rung, record, name)
            found = ab_run.record()
            take(record, found)
            if not state.kept:
                warn_if_disturbed(state, record)
            if record.busy and found.comparison and found.comparison.speedup.value >= PROVISIONAL_GAIN:
                state.say(Warned(f"{record.busy}."))
            report_gpu_differences(state, record)
            if state.trace(name).exists():
                profile = state.read_profile(name, found.times["candidate"].value)
            _judge(state, rung, record, ab_run, name, profile)
        except SideFailed as failure:
            mark_failed(state, record, failure.error)
        except WorkerFailed as failure:
            mark_failed(state, record, failure)
        except OutOfTime:
            mark_cut_short(record)
        _end_workers(state)
    record.seconds = time.monotonic() - began
    if rung.members:
        record.why = f"{', '.join(name for name in record.stack if name not in state.kept)}: {record.why}"
    record_verdict(state, record, profile)


def _rehearse(state: State, rung: Rung, candidate: Sequence[str], name: str) -> None:
    """Runs what a rung needs first, in a worker with variables of its own. It leaves its results in files."""
    if not rung.tuning_env:
        return
    env = {key: value.replace(FILES, str(state.setup.files.resolve())) for key, value in rung.tuning_env}
    progress.info("a first run that leaves its results in files")
    task = state.pool.add(Task(f"{name}-first", state.side(candidate, env), [("rehearse", {})], state.step_bytes()))
    state.wait(task, keep=confirmation_seconds(state))
    task.end()
    if task.error:
        raise task.error


def _compare(state: State, rung: Rung, record: Attempt, name: str) -> ABRun:
    """An interleaved A/B run of the best so far and the candidate. The first restart decides alone where the answer is clear. Otherwise fresh
    pairs follow. Restarts of an earlier sitting that ended during the attempt count."""
    stack = record.stack
    unfinished = unfinished_of(state, "attempt", stack, record.against)
    if unfinished is None:
        unfinished = _first_restart(state, rung, record, name)
    else:
        _carry_over(state, unfinished, name)
    ab_run, record.prepared_seconds = unfinished.ab_run, unfinished.prepared_seconds
    ab_run.comparison = judge_first_restart(state, ab_run)
    gain = ab_run.comparison.speedup.value
    faster = ab_run.record() if gain >= PROVISIONAL_GAIN else None
    if faster and (slowed_by_others(state, faster) or _implausible_gain(state, ab_run.restarts[0], gain)):
        ab_run.comparison = replace(ab_run.comparison, answer="undecided")
    elif faster and rung.improves == "step" and not reason_to_distrust(faster, gain):
        _offer_provisional(state, stack, ab_run)
        unfinished.verified_stack = effective_stack(rung, stack, _evidence(state, rung, ab_run, name))
        if not state.request.over_ranks:  # beside which nothing else runs
            state.candidate_checks = _checks(state, unfinished.verified_stack, name)
    if rung.improves == "step" and ab_run.comparison.answer != "undecided":
        return ab_run
    decided = decide(ab_run.restarts, looks=unfinished.looks)
    if not (decided and decided.final):  # else what followed was not: the verification
        if state.candidate_checks:
            prefetch_next(state, unfinished.verified_stack, Profile(), {*stack} - {*unfinished.verified_stack})
        try:
            decided = _more_restarts(state, stack, unfinished, name)
        except OutOfTime:
            decided = judge([restart.log_ratio() for restart in ab_run.restarts], looks=unfinished.looks, last=True)
            if decided is None or not (decided.answer == "faster" or _gain_suffices(state, ab_run, decided)):
                raise
        if decided.cut and _gain_suffices(state, ab_run, decided):
            decided = replace(decided, answer="faster")
    ab_run.comparison = decided
    return ab_run


def _evidence(state: State, rung: Rung, ab_run: ABRun, name: str) -> Evidence:
    """Evidence from the first restart: what the candidate's worker reports, and, for a bundle, whose members may have done nothing, the names
    of its kernels."""
    after = None
    if rung.members and state.trace(name).exists():
        after = state.read_profile(name, ab_run.record().times["candidate"].value).counters
    return Evidence(None, after, ab_run.warm[0]["candidate"].applied)


def _gain_suffices(state: State, ab_run: ABRun, seen: Comparison) -> bool:
    """Whether the restarts that the budget allowed show the gain that a verified answer claims. On a CPU, one restart is too few. Fresh restarts
    confirm it later, or not."""
    slowest = min(math.exp(restart.log_ratio()) for restart in ab_run.restarts)
    gained = seen.speedup.value >= VERIFIED_GAIN and slowest >= PROVISIONAL_GAIN
    return gained and not clocks_disagree(ab_run) and (state.facts.gpu or len(ab_run.restarts) > 1)


def _more_restarts(state: State, stack: Sequence[str], unfinished: Unfinished, name: str) -> Comparison:
    """Further restarts of the best so far and the candidate, until it is clear which one is faster, or there is no time for more."""
    sides = {"best": state.side(state.kept), "candidate": state.side(stack)}
    restarts, took = unfinished.ab_run.restarts, 0.0
    while True:
        began = time.monotonic()
        further_restarts(state, sides, unfinished, name)
        took = max(took, time.monotonic() - began)
        decided = decide(restarts, looks=unfinished.looks, last=trial_budget(state) < 1.2 * took)
        if decided and decided.final:
            return decided


def judge_one_restart(restart: Restart, gpu: bool) -> Comparison:
    """The answer of the first restart alone: `undecided` unless it is clear."""
    seen = judge([restart.log_ratio()], looks=CLIMB, last=True)
    assert seen is not None
    gain = seen.speedup.value
    if gain < GIVE_UP:
        return replace(seen, answer="slower", cut=False)
    clear = gain >= CLEAR[gpu] and _spread(restart) < math.log(gain)
    return replace(seen, answer="faster", cut=False) if clear else seen


def _spread(restart: Restart) -> float:
    """The interquartile range of a restart's rounds, as a logarithm. On a CPU, both sides may jump between two paces, and their medians may lie on
    different ones."""
    low, _, high = statistics.quantiles(restart.log_ratios(), n=4) if len(restart.rounds) > 1 else (0.0, 0.0, 0.0)
    return high - low


def judge_first_restart(state: State, ab_run: ABRun) -> Comparison:
    """The same for the first restart of an attempt. It is also `undecided` in three cases:

    - Wall time and CPU time disagree.
    - The candidate is clearly faster than the best in this restart, but not than the best was when it was measured before. Then processes
      differ by more than usual, as they do where the GPU waits for the host.
    - The best took far longer in this restart than before. Then other restarts have to show how much faster the candidate is."""
    gpu = state.facts.gpu
    seen = judge_one_restart(ab_run.restarts[0], gpu)
    beside = state.step_ns < CLEAR[gpu] * _step_of(ab_run.restarts[0])
    lucky = seen.answer == "faster" and (beside or _implausible_gain(state, ab_run.restarts[0], seen.speedup.value))
    return replace(seen, answer="undecided") if lucky or clocks_disagree(replace(ab_run, comparison=seen)) else seen


def _step_of(restart: Restart) -> float:
    """Nanoseconds of the candidate."""
    return statistics.median(time for around in restart.rounds for time in around[1:-1])


def _implausible_gain(state: State, restart: Restart, gain: float) -> bool:
    """Whether a gain is far larger than the earlier time of the best allows: something held the best up in this restart."""
    return gain > DISTURBED * state.step_ns / _step_of(restart)


def _first_restart(state: State, rung: Rung, record: Attempt, name: str) -> Unfinished:
    """Times the candidate against the worker of the best that is warm already. Then checks and profiles the candidate."""
    stack = record.stack
    best = worker_of_best(state, state.kept, name)
    task = state.take_next_worker(stack) or state.pool.add(
        Task(f"{name}-1-candidate", state.side(stack), WARM, state.step_bytes())
    )
    progress.info("compiling %s", in_words(rung.name))
    verify_while_compiling(state, rung, task)
    state.wait(task, best, keep=confirmation_seconds(state))
    verify_while_compiling(state, rung, task)
    if best.error:
        # It has run before: what hit it is chance (an out-of-memory killer), so once more.
        state.say(Warned(f"the best so far failed ({best.error}); it is started again"))
        best = worker_of_best(state, state.kept, f"{name}-again")
        state.wait(best, keep=confirmation_seconds(state))
    if task.error and may_pass(task.error):  # beside others: once more, when they are gone
        end_checks(state)
        end_shape_checks(state)
        end_all([best, *([state.baseline_worker] if state.baseline_worker else [])])
        task = state.pool.add(Task(f"{name}-again-candidate", state.side(stack), WARM, state.step_bytes()))
        best = worker_of_best(state, state.kept, f"{name}-again")
        state.wait(task, best, keep=confirmation_seconds(state))
    for failed in (best, task):
        if failed.error:
            task.end()
            raise failed.error
    note_memory(state, task)
    state.candidate_worker = task
    planned, ab_run = planned_looks(state), ABRun()
    if blocks_seconds([state.step_ns] * 2, state.facts.gpu) > state.left():
        raise OutOfTime
    group = WorkerGroup.of(state.setup_within(trial_budget(state)), {"best": best, "candidate": task})
    progress.info("timing %s", in_words(rung.name))
    ab_run.restarts.append(with_solo_baseline(state, group.timed(ab_run), state.kept))
    given_up = rung.improves == "step" and judge_first_restart(state, ab_run).answer == "slower"
    if not given_up or state.request.budget is None:
        ab_run.witness = group.witness()
        group.profile(state.trace(name))
    task.reclaimable = best.reclaimable = True  # what verifies may have their memory
    members = [member.name for member in rung.members]
    unfinished = Unfinished(name, stack, record.against, ab_run, rung.name, planned, members, task.since_open("warm"))
    save(state, "attempt", unfinished)
    return unfinished


def _carry_over(state: State, unfinished: Unfinished, name: str) -> None:
    """Renames an unfinished attempt that was begun under another number. It may have no profile, as a slower candidate has none."""
    with contextlib.suppress(FileNotFoundError):
        state.trace(unfinished.name).replace(state.trace(name))
    unfinished.name = name
    save(state, "attempt", unfinished)


def unfinished_rung(state: State) -> Rung | None:
    """The rung that an earlier sitting was trying against the best when it ended."""
    unfinished = state.unfinished.get("attempt")
    if (
        unfinished is None
        or unfinished.against != state.best_name
        or unfinished.rung in state.cut
        or trial_budget(state) <= 0
    ):
        return None
    try:
        members = [BY_NAME[name] for name in unfinished.members]
        rung = bundle_of(state.context(), members) if members else BY_NAME[unfinished.rung]
    except KeyError:  # another version's
        return None
    return rung if stack_with(state.kept, rung) == unfinished.stack and rung.applies(state.context()) is None else None


def _checks(state: State, stack: Sequence[str], name: str) -> list[Task]:
    ahead, state.next_checks = state.next_checks, []
    return checks_of(state, stack, name, ahead)


def _offer_provisional(state: State, stack: Sequence[str], ab_run: ABRun) -> None:
    assert ab_run.comparison is not None
    over = state.gain_over_baseline() * ab_run.comparison.speedup.value
    state.provisional_stack = list(stack)
    offer(state, answer_of(state, stack, "provisional", over, ab_run.record()))


def _judge(state: State, rung: Rung, record: Attempt, ab_run: ABRun, name: str, profile: Profile) -> None:
    """Applies three gates: it is faster with confidence, it has the effect that it should have, and it gives the same results."""
    assert ab_run.comparison is not None
    speedup = ab_run.comparison.speedup
    # A budget that ended before a planned look leaves the question open; resuming asks it again.
    record.cut = ab_run.comparison.cut and ab_run.comparison.answer == "undecided"
    error, predicted = prediction_error(record), prediction_of(record)
    if error is not None and predicted:
        record.forecast, record.prediction_error = predicted.judge(speedup.value), error
    record.pay_back = pay_back(record)
    if rung.improves == "graphs" and (
        ab_run.comparison.answer == "faster" or speedup.low > 1 - state.request.slower_at_most
    ):
        record.over_shapes = over_shapes(state, record.stack, name)
    evidence = Evidence(
        state.counters, profile.counters, record.applied or {}, record.over_shapes or {}, record.memory or {}
    )
    proof = rung.proof(evidence)
    record.effect = Effect(should=rung.effect, shown=proof.shown, says=proof.says)
    if ab_run.comparison.answer == "faster" and (slowed := slowed_by_others(state, record)):
        record.verdict, record.why = "inconclusive", slowed
        return
    if why := rejection(record, rung, ab_run.comparison, state.request.slower_at_most):
        record.verdict, record.why = why
        return
    if proof.shown is False:
        record.verdict, record.why = "no-op", f"it should show as: {rung.effect}; but {proof.says}."
        return
    if without := ineffective_members(rung, evidence):
        record.without = without
        record.stack = effective_stack(rung, record.stack, evidence)
    if any(list(task.side.rungs) != record.stack for task in state.candidate_checks):
        end_checks_of(state, state.candidate_checks)
        state.candidate_checks = []
    state.say(Verifies(record.rung))
    unfinished = state.unfinished.get("attempt")
    if unfinished and unfinished.checked != record.stack:
        unfinished.verified_stack, unfinished.verified = list(record.stack), {}
    checks = state.candidate_checks or _checks(state, record.stack, name)
    state.candidate_checks = []
    verify_and_judge(state, record, checks, speedup.value, profile)
    if record.verdict == "kept" and ab_run.comparison.answer != "faster":
        pace = f"{1 - speedup.value:.1%} slower" if speedup.high < 1 else "as fast"
        record.why = f"verified, {pace}, and {secondary_gain(record, rung)}."
    if record.verdict == "kept" and state.candidate_worker and list(state.candidate_worker.side.rungs) == record.stack:
        if state.best_worker:
            state.best_worker.end()
        state.best_worker, state.candidate_worker = state.candidate_worker, None


def _end_workers(state: State) -> None:
    """Ends the workers and checks of an attempt. Those of the next candidate go on."""
    if state.next_worker is None:
        state.next_checks = []  # of the candidate itself, which had not come to its verification
    of_next = [*([state.next_worker] if state.next_worker else []), *state.next_checks]
    end_checks(state, keep=of_next)
    end_all([state.candidate_worker] if state.candidate_worker else [])
    state.candidate_checks, state.candidate_worker = [], None
