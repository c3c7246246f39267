"""What is begun before it is needed: the candidate that may be next, and its verification."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from attempt_records import mode
from made_up import GIB, MANIFEST, PASSED, Added, answered, know, leave, state
from made_up import warm as warmed

from rung.ladder.climb import state as states
from rung.ladder.climb.bundles import bundle_of
from rung.ladder.climb.checks import checks_of
from rung.ladder.climb.mode_checks import prefetch_after
from rung.ladder.climb.mode_timing import Race
from rung.ladder.climb.modes import the_best
from rung.ladder.climb.prefetch import prefetch_next, prefetched_rung, verify_while_compiling
from rung.ladder.climb.state import Profile, State
from rung.ladder.climb.unfinished import Unfinished
from rung.launch import WorkerFailed
from rung.records.analyze import Breakdown
from rung.records.record import record_of
from rung.records.workload import Facts
from rung.rungs import BY_NAME
from rung.timing.tasks import Task

FACTS: dict[str, Any] = {
    "gpu": True, "mode": "train", "arch": "sm90", "dtype": "torch.float32", "amp": None, "matmul_precision": "highest",
    "matches": {}, "skipped": [], "inductor": {}, "own_precision": "exact", "rates": {},
}  # fmt: skip
BEST = ["bf16", "compile", "capture"]
MEMBERS = ["fused-qkv", "fused-gate-up"]


@pytest.fixture
def climb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[State, Added]:
    monkeypatch.setattr(states, "usable_cores", lambda: 64)
    made, pool = state(tmp_path), Added()
    made.run.write("manifest.json", MANIFEST)
    made.known, made.pool, made.kept = record_of(Facts, FACTS), pool, BEST  # type: ignore[assignment]
    made.baseline.memory = {"allocated": 1 << 30}
    rung = bundle_of(made.context(), [BY_NAME[name] for name in MEMBERS])
    made.next_worker = Task("02-together-1-candidate", made.side([*BEST, *MEMBERS]), [])
    made.next_rung, made.next_gain = replace(rung, remaining=lambda c: {}), 1.3
    return made, pool


def warm(made: State, *found: str) -> None:
    """Its worker is ready, and says which passes found something."""
    matches = {name: int(name in found) for name in MEMBERS}
    says = warmed({"allocated": 1 << 30}, applied={"matches": matches})
    made.next_worker = answered("02-together-1-candidate", made.side([*BEST, *MEMBERS]), warm=says)


def test_it_is_verified_while_it_compiles(climb: tuple[State, Added]) -> None:
    made, pool = climb
    prefetch_next(made, BEST, Profile())
    warm(made, *MEMBERS)
    prefetch_next(made, BEST, Profile())
    assert pool.names == ["02-together-verify-exact", "02-together-verify-bf16"]
    assert [task.name for task in made.next_checks] == ["02-together-verify-exact", "02-together-verify-bf16"]


def test_what_is_verified_before_it_has_the_cores_to_itself(climb: tuple[State, Added]) -> None:
    made, pool = climb
    made.all_checks = [Task("01-plain-verify-bf16", made.side(BEST), [("verify", {})])]
    prefetch_next(made, BEST, Profile())
    assert pool.names == []
    made.all_checks = [answered("01-plain-verify-bf16", made.side(BEST), verify=PASSED)]
    prefetch_next(made, BEST, Profile())
    assert "02-together-verify-exact" in pool.names


def test_without_the_members_that_did_nothing_it_begins_anew(climb: tuple[State, Added]) -> None:
    made, pool = climb
    prefetch_next(made, BEST, Profile())
    of_the_best = Task("01-plain-verify-bf16", made.side(BEST), [("verify", {})])
    made.all_checks.append(of_the_best)
    warm(made, "fused-qkv")
    prefetch_next(made, BEST, Profile())
    assert not of_the_best.ended
    assert {tuple(task.side.rungs) for task in pool.tasks if not task.ended} == {(*BEST, "fused-qkv")}
    assert [task.name.rpartition("-")[2] for task in made.next_checks] == ["exact", "bf16"]


def test_the_next_candidate_yields_until_it_is_the_one_that_is_tried(climb: tuple[State, Added]) -> None:
    """What verifies the best so far comes first; plain modes that wait, too, come after it."""
    made, pool = climb
    made.next_worker, made.next_rung = None, None
    pool.add(Task("01-plain-default", made.side(BEST), []))
    made.request = replace(made.request, budget=None)
    prefetch_next(made, BEST, Profile())
    assert made.next_worker is not None
    assert pool.tasks[0] is made.next_worker
    assert made.next_worker.low_priority
    task = made.take_next_worker(list(made.next_worker.side.rungs))
    assert task is not None
    assert not task.low_priority


def test_what_did_nothing_in_a_candidate_is_not_tried_after_it(climb: tuple[State, Added]) -> None:
    made, _ = climb
    made.request = replace(made.request, budget=None)

    def following(without: list[str]) -> tuple[str, ...]:
        made.next_worker, made.next_rung = None, None
        prefetch_next(made, BEST, Profile(), without)
        return made.next_worker.side.rungs if made.next_worker else ()

    first = following([])[-1]
    assert first not in following([first])


WHOLE, AS_BLOCKS = "compile-and-graph", ("bf16", "compile-regions", "capture")


def racing(made: State, seconds: float) -> Race:
    """So much time is left. The model as a whole compiles, and its blocks are the best mode so far."""
    leave(made, seconds)
    know(made, matches={"fused-qkv": 12, "fused-gate-up": 12, "sdpa": 12, "gelu-epilogue": 12})
    made.numerics, made.next_worker, made.next_rung = "bf16", None, None
    made.likely_modes, made.mode_workers = [WHOLE], {WHOLE: Task("01-plain-whole", made.side(BEST), [])}
    return Race({"blocks-and-graph": mode(*AS_BLOCKS, name="blocks-and-graph", speedup=1.5)}, "blocks-and-graph")


def test_where_little_time_is_left_it_compiles_beside_the_whole_that_it_builds_on(climb: tuple[State, Added]) -> None:
    made, _ = climb
    race = racing(made, 400.0)
    prefetch_after(made, race)
    assert made.next_worker is None  # the whole will tell first where its time goes
    race = racing(made, 100.0)
    prefetch_after(made, race)
    assert made.next_worker is not None
    assert made.next_worker.side.rungs[:3] == tuple(BEST)
    assert {"sdpa", "gelu-epilogue"} <= {*made.next_worker.side.rungs}
    made.next_gain = 1.3
    made.all_checks = [Task("01-plain-verify-bf16", made.side(BEST), [("verify", {})])]
    prefetch_after(made, race)
    assert [task.side.rungs for task in made.next_checks] == [made.next_worker.side.rungs] * 2
    made.likely_modes = []
    race.modes[WHOLE], race.best = mode(*BEST, name=WHOLE, speedup=1.8), WHOLE
    before = made.next_worker
    prefetch_after(made, race)
    assert made.next_worker is before


@pytest.mark.parametrize("end", ["it raises", "it is slower", "another mode is the best"])
def test_where_the_whole_does_not_become_the_best_it_is_given_up(climb: tuple[State, Added], end: str) -> None:
    made, _ = climb
    race = racing(made, 100.0)
    prefetch_after(made, race)
    begun = made.next_worker
    assert begun is not None
    if end == "it raises":
        made.mode_workers[WHOLE].error = WorkerFailed("out of memory", "raised")
    else:
        made.likely_modes = []
    if end == "another mode is the best":
        race.modes["default"], race.best = mode("bf16", "compile", name="default", speedup=1.8), "default"
    prefetch_after(made, race)
    assert begun.ended
    assert made.next_worker is not begun


@pytest.mark.parametrize(
    ("ready", "verified", "left", "tried"),
    [
        (True, True, 15.0, True),
        (True, False, 15.0, False),  # its verification has just begun
        (False, True, 15.0, False),
        (True, True, 1.0, False),
        (True, False, 100.0, True),
    ],
)
def test_one_that_is_nearly_decided_is_tried_at_the_end(
    climb: tuple[State, Added], ready: bool, verified: bool, left: float, tried: bool
) -> None:
    """One restart decides alone where the answer is clear."""
    made, _ = climb
    made.plain = the_best(mode(*BEST, name=WHOLE, speedup=1.8), [])
    if ready:
        warm(made, *MEMBERS)
    assert made.next_worker is not None
    side = made.next_worker.side
    made.next_checks = [
        answered(f"02-together-verify-{part}", side, verify=PASSED)
        if verified
        else Task(f"02-together-verify-{part}", side, [("verify", {})])
        for part in ("exact", "bf16")
    ]
    know(leave(made, left), matches=dict.fromkeys(MEMBERS, 12))
    # A verification may take a tenth of it more, and a restart may not.
    made.request = replace(made.request, budget=max(left, 40.0))
    assert bool(prefetched_rung(made)) == tried


def test_without_many_cores_it_waits(climb: tuple[State, Added], monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = climb
    monkeypatch.setattr(states, "usable_cores", lambda: 2)
    prefetch_after(made, racing(made, 100.0))
    assert made.next_worker is None


def tried_now(made: State, gain: float, *found: str, best: Sequence[str] = BEST) -> None:
    """Another candidate than the one that was prepared ahead is tried. found: once its worker is ready, the passes that found something."""
    rung = replace(
        bundle_of(made.context(), [BY_NAME[name] for name in MEMBERS]),
        remaining=lambda c: {"rest": (1 / gain, 1 / gain)},
    )
    made.breakdown = Breakdown(parts={"rest": 10e6})
    task, made.next_worker = Task("03-together-1-candidate", made.side([*best, *MEMBERS]), []), None
    if found:
        warm(made, *found)
        task, made.next_worker = made.next_worker, None
        assert task is not None
        task.name = "03-together-1-candidate"
    verify_while_compiling(made, rung, task)


def test_a_candidate_that_nobody_prepared_is_verified_while_it_compiles(climb: tuple[State, Added]) -> None:
    made, pool = climb
    tried_now(made, 1.03)
    assert pool.names == ["03-together-verify-exact"]  # its own worker compiles it in bf16
    assert made.next_checks == pool.tasks
    tried_now(made, 1.03)  # once
    assert len(pool.tasks) == 1
    tried_now(made, 1.03, *MEMBERS)  # its code is in the cache now
    assert pool.names == ["03-together-verify-exact", "03-together-verify-bf16"]
    assert made.next_checks == pool.tasks


def test_with_dropout_nobody_else_compiles_what_is_verified(climb: tuple[State, Added]) -> None:
    made, pool = climb
    know(made, dropout=True)
    tried_now(made, 1.03)
    assert [name.removeprefix("03-together-") for name in pool.names] == [
        "verify-exact",
        "verify-bf16",
        "precompile-exact",
    ]


def test_of_one_whose_worker_has_told_only_members_that_did_something(climb: tuple[State, Added]) -> None:
    made, pool = climb
    tried_now(made, 1.03, "fused-qkv")
    assert {tuple(task.side.rungs) for task in pool.tasks} == {(*BEST, "fused-qkv")}


def test_what_is_hardly_faster_is_verified_after_it_was_timed(climb: tuple[State, Added]) -> None:
    made, pool = climb
    tried_now(made, 1.004)
    assert pool.names == []


@pytest.mark.parametrize(("gib", "begun"), [(80, True), (7, False)])
def test_it_waits_where_the_gpu_has_no_room_beside_what_is_timed(
    climb: tuple[State, Added], gib: int, begun: bool
) -> None:
    made, pool = climb
    pool.memory = gib * GIB
    tried_now(made, 1.03)
    assert bool(pool.names) == begun


@pytest.mark.parametrize(("cores", "idle", "gpu"), [(2, 4, True), (64, 0, True), (64, 4, False)])
def test_cores_that_are_not_idle_are_left_to_what_compiles(
    climb: tuple[State, Added], monkeypatch: pytest.MonkeyPatch, cores: int, idle: int, gpu: bool
) -> None:
    """On a CPU a verification would take the device itself."""
    made, pool = climb
    monkeypatch.setattr(states, "usable_cores", lambda: cores)
    monkeypatch.setattr(pool, "idle", lambda: idle)
    know(made, gpu=gpu)
    tried_now(made, 1.03)
    assert pool.names == []


def test_once_its_worker_is_warm_it_begins_anew_without_what_did_nothing(climb: tuple[State, Added]) -> None:
    made, pool = climb
    tried_now(made, 1.03)
    tried_now(made, 1.03, "fused-qkv")
    assert [tuple(task.side.rungs) for task in pool.tasks if not task.ended] == [(*BEST, "fused-qkv")] * 2


def test_what_an_earlier_sitting_has_verified_is_not_begun_again(climb: tuple[State, Added]) -> None:
    made, pool = climb
    begun = Unfinished("03-together", [*BEST, *MEMBERS], " + ".join(BEST))
    begun.verified_stack, begun.verified = [*BEST, *MEMBERS], {"exact": PASSED}
    made.unfinished["attempt"] = begun
    tried_now(made, 1.03)
    assert pool.names == []


def test_at_one_precision_the_candidates_own_worker_compiles_all_of_it(climb: tuple[State, Added]) -> None:
    made, pool = climb
    made.kept = ["compile", "capture"]
    tried_now(made, 1.03, best=["compile", "capture"])
    assert pool.names == []


def test_what_compiled_for_another_stack_ends_with_it(climb: tuple[State, Added]) -> None:
    made, pool = climb
    know(made, dropout=True)
    tried_now(made, 1.03)
    assert "03-together-precompile-exact" in pool.names
    checks_of(made, [*BEST, "fused-qkv"], "03-together-fewer", made.next_checks)
    assert {tuple(task.side.rungs) for task in pool.tasks if not task.ended} == {(*BEST, "fused-qkv")}
