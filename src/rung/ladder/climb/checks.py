"""The verification of a candidate, in workers in the background: one a precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rung.ladder.answers import Verified, not_loaded
from rung.ladder.climb.state import CONTEXT_BYTES, State
from rung.launch import WorkerFailed
from rung.plan import in_words
from rung.rungs import plan_of
from rung.timing.tasks import Call, Task, end_all
from rung.timing.timed import Warmed

# Times the peak of the untouched workload: of a verification of training, of which 2.2 to 3.2 were seen on GPUs; of a candidate that runs once.
VERIFIED_TRAINING = 3.2
COMPILED = 1.1
TRAINED = 16  # bytes of a parameter that trains: its weight, gradient and two moments of Adam in float32
# What a verification holds outside of its turns: times those bytes, the weights of four models, one of them in float64, and gradients and
# moments of two; and times what the untouched step holds beside them, a compiled step in float32.
FOUR_MODELS, COMPILES = 2.75, 0.9
# A verification of inference holds the weights in float64 once, and so often as they run: the model, the untouched one, the candidate's and
# the ones that all of these are given. In full precision they run in float32.
COPIES = 4
VERIFY, RANKS = "-verify-", "-over-ranks"  # in the names of tasks, before and behind a precision
WIDTHS = {"torch.bfloat16": 2, "torch.float16": 2, "torch.float64": 8}  # bytes of a weight; all others have 4


def parts_of(state: State, stack: Sequence[str]) -> list[str]:
    """The parts of a candidate's verification: each precision in one process and, where ranks are timed, also over the ranks. The parts in one
    process are left out where they would be the same as those of the best so far, which is verified."""
    plan = plan_of(stack)
    precisions = plan.phases(state.own_precision)
    if not state.request.over_ranks:
        return list(precisions)
    alone = precisions if plan.of_one != plan_of(state.kept).of_one else ()
    return [*alone, *(n + RANKS for n in precisions)]


def verifying(
    state: State, stack: Sequence[str], parts: Sequence[str], name: str, *, first: bool = False
) -> list[Task]:
    """Starts to verify a candidate in the background on the measured shape, with one worker for each of these parts.

    Until other shapes are verified (`rung.ladder.climb.other_shapes`), the recipe leaves them to the untouched model. It tells shapes apart by
    their number of elements. So a workload that names a shape with as many elements as the measured one is verified on all shapes at once.
    first: ahead of all tasks that wait, because other parts of it have started."""
    note_verified(state)
    all_shapes = bool(state.facts.same_size_shapes)
    peak, side = peak_of(state), replace(state.side(stack), one_shape=not all_shapes)
    checks = []
    for part in parts:
        beside, in_turns = verifying_bytes(state, peak, numerics_of(part))
        numerics = numerics_of(part)
        backwards = all_shapes and numerics != "exact"  # what compiles at this precision has the first shape meanwhile
        arguments = {"numerics": numerics, "alone": False, "backwards": backwards, "turns": turns(state)}
        checks.append(Task(f"{name}{VERIFY}{part}", side, [("verify", arguments)], beside, in_turns))
    for task, part in zip(checks, parts, strict=True):
        task.ends_when_done = task.untimed = True
        task.single_process = not part.endswith(RANKS)
    for task in reversed(checks) if first else checks:
        state.pool.add(task, first=first)
    state.all_checks += checks
    if "exact" in parts:
        precompiling(state, stack, name)
    return checks


def precompiling(state: State, stack: Sequence[str], name: str) -> None:
    """With many cores, a further worker compiles the candidate with its random draws, which the verification in full precision needs last."""
    if not plan_of(stack).compiles or not state.random or not state.many_cores:
        return
    memory = COMPILED * peak_of(state) + CONTEXT_BYTES if state.facts.gpu else 0.0
    side = replace(state.side(stack), one_shape=True)
    helper = Task(f"{name}-precompile-exact", side, [("precompile", {})], memory)
    helper.ends_when_done = helper.low_priority = helper.untimed = helper.single_process = True
    state.all_checks.append(state.pool.add(helper))


def end_shape_checks(state: State) -> None:
    """Ends the verification of the answer on other shapes, to free the GPU."""
    end_all(state.shape_checks)
    state.shape_checks = []


def end_checks(state: State, keep: Sequence[Task] = ()) -> None:
    """Ends all verifications, and what compiles for them, except for the candidates of these tasks."""
    note_verified(state)
    candidates = {tuple(task.side.rungs) for task in keep}
    end_all(task for task in state.all_checks if tuple(task.side.rungs) not in candidates)
    state.all_checks = [task for task in state.all_checks if not task.ended]


def end_checks_of(state: State, tasks: Sequence[Task]) -> None:
    """Ends the verification of the candidates of these tasks, and what compiles for it."""
    note_verified(state)
    candidates = {tuple(task.side.rungs) for task in tasks}
    end_all(task for task in state.all_checks if tuple(task.side.rungs) in candidates)
    end_all(tasks)
    state.all_checks = [task for task in state.all_checks if not task.ended]


def checks_of(state: State, stack: Sequence[str], name: str, ahead: Sequence[Task] = ()) -> list[Task]:
    """The tasks of a candidate's verification, one for each part. ahead: tasks that were started before the next candidate was known. Those of
    another candidate are ended, and those that failed are started again."""
    end_checks_of(state, [task for task in ahead if list(task.side.rungs) != list(stack)])
    going_on = [task for task in ahead if list(task.side.rungs) == list(stack) and not _failed(task)]
    checks = [*going_on, *answered_before(state, stack, name)]
    there = {part_of(task) for task in checks}
    missing = [part for part in parts_of(state, stack) if part not in there]
    return checks + verifying(state, stack, missing, name)


def once_more(state: State, checks: Sequence[Task], call: Callable[[str], Call], keep: float = 0.0) -> list[Task]:
    """The same checks, but those that failed are repeated, one after the other and with the GPU to themselves. call: what a worker is asked, by
    the precision.

    Raises OutOfTime where only `keep` seconds of the budget are left."""
    memory = state.pool.memory if state.facts.gpu else 0.0

    def again(failed: Task) -> Task:
        anew = Task(f"{failed.name}-again", failed.side, [call(numerics_of(part_of(failed)))], memory)
        anew.untimed, anew.single_process = failed.untimed, failed.single_process
        try:
            state.wait(state.pool.add(anew), keep=keep)
        finally:
            anew.end()
        return anew

    return [again(task) if task.error else task for task in checks]


def may_pass(error: WorkerFailed) -> bool:
    """Whether what failed may pass in a fresh worker. It lacked memory beside others, or its code could not be loaded, because another worker was
    ended while it compiled that code."""
    return error.lacked_memory or not_loaded(str(error))


def _failed(task: Task) -> bool:
    return task.error is not None or (task.ended and "verify" not in task.answers)


def answered_before(state: State, stack: Sequence[str], name: str) -> list[Task]:
    """The parts of this candidate's verification that an earlier sitting finished, as tasks that are done."""
    found = []
    for unfinished in state.unfinished.values():
        if unfinished.checked == list(stack):
            for part, answer in unfinished.verified.items():
                task = Task(f"{name}{VERIFY}{part}", state.side(stack), [])
                task.answers["verify"], task.ended = answer, True
                found.append(task)
    return found


def verified(task: Task) -> Verified | None:
    """The answer of a task of the verification, once there is one."""
    return task.answer("verify", Verified) if "verify" in task.answers else None


def refusal(task: Task) -> str:
    """Why the verification at one precision refused the candidate, as a sentence without its end; empty where it did not, or not yet."""
    found = verified(task)
    return (
        "" if found is None or found.passed else f"it does not compute what the baseline computes: {found.failures[0]}"
    )


def part_of(task: Task) -> str:
    """Which part of the verification a task does, which is named after it."""
    return task.name.removesuffix("-again").rpartition(VERIFY)[2]


def numerics_of(part: str) -> str:
    return part.removesuffix(RANKS)


def named(part: str) -> str:
    """A part in words: "full precision", "bf16 over ranks"."""
    numerics = numerics_of(part)
    return in_words(numerics) + (" over ranks" if part != numerics else "")


def turns(state: State) -> str:
    """The file of those who verify on a GPU in turns."""
    return str(state.setup.logs / "turns") if state.facts.gpu else ""


def verifying_bytes(state: State, peak: float, numerics: str = "exact") -> tuple[float, float]:
    """Bytes of the GPU that a worker needs to verify, outside of its turns, and further bytes in its turns.

    It holds a float64 reference and the untouched model beside the candidate, and the results of all of them. The estimate is from earlier
    verifications, or else from the untouched workload's peak."""
    if not state.facts.gpu:
        return 0.0, 0.0
    if state.verified_bytes[0]:
        return state.verified_bytes[0] + CONTEXT_BYTES, state.verified_bytes[1]
    own = WIDTHS.get(str(state.facts.dtype), 4)
    runs = max(4, own) if numerics == "exact" else own
    times = VERIFIED_TRAINING if state.facts.mode == "train" else (COPIES * runs + 8) / own
    if state.facts.mode != "train":
        return times * peak + CONTEXT_BYTES, 0.0
    weights = min(peak, TRAINED * (state.run.manifest().workload.parameters or 0))
    beside = FOUR_MODELS * weights + COMPILES * (peak - weights)
    return beside + CONTEXT_BYTES, times * peak - beside


def note_verified(state: State) -> None:
    """Notes how much of the GPU's memory verifications took so far."""
    for memory in (found.memory for t in state.all_checks if (found := verified(t)) and found.memory):
        most = float(max(memory.values()))
        beside, in_turns = state.verified_bytes
        here = float(memory.get("beside", most))
        state.verified_bytes = max(beside, here), max(in_turns, most - here)


def peak_of(state: State) -> float:
    """Peak memory of the untouched workload in bytes, from its worker or an earlier sitting."""
    task = state.baseline_worker
    peaks = task.answer("warm", Warmed).memory if task and "warm" in task.answers else state.baseline.memory
    return float(max(peaks.values()))
