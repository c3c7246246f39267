"""The plain modes of torch.compile: which there are on a device, at which precision, and what is told of the best."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attempt_records import attempt, mode
from known_facts import facts_of
from made_up import MANIFEST, PASSED, STEP, Added, answered, leave, state, warm
from msgspec import UNSET, structs

from rung.ladder.answers import Untouched
from rung.ladder.climb import checks, mode_checks, mode_preparation, mode_timing, plain
from rung.ladder.climb import race as racing
from rung.ladder.climb import state as states
from rung.ladder.climb.answer import Answer, offer
from rung.ladder.climb.checks import checks_of, verifying
from rung.ladder.climb.modes import (
    BLOCKS,
    MODES,
    SLOW,
    TITLES,
    eager_rounding_variant,
    mode_of_task,
    modes,
    the_best,
    title,
)
from rung.ladder.climb.state import OutOfTime, Profile, State
from rung.ladder.climb.unfinished import Unfinished
from rung.launch import WorkerFailed
from rung.measure import Restart
from rung.plan import Numerics, Plan
from rung.records.analyze import Breakdown
from rung.records.climb import Attempt, Mode
from rung.records.measured import Figure, Verification, Witness
from rung.records.record import record_of
from rung.records.workload import Facts
from rung.rungs import BY_NAME, Context, plan_of
from rung.side import Limits, Setup
from rung.timing.ab_run import ABRun, pair_of
from rung.timing.tasks import Pool, Task
from rung.timing.timed import Warmed

GPU: dict[str, Any] = {
    "gpu": True, "mode": "infer", "arch": "sm90", "dtype": "torch.float32", "amp": None, "matmul_precision": "highest",
    "matches": {}, "skipped": [], "own_precision": "exact",
    "inductor": {"max_autotune": False, "triton.cudagraphs": False, "emulate_precision_casts": False},
}  # fmt: skip
INFERENCE = GPU
TRAINING = {**GPU, "mode": "train", "optimizer_is_fused": False}
LAYERS = {"blocks": 12, "kinds_of_blocks": 1}
CONVOLUTIONS = {"contiguous_convolutions": 2}
CPU = {**GPU, "gpu": False, "arch": "x86_64"}
IN_16_BITS = ("bf16", "fused-optimizer", "compile", "capture")


def started(made: State, memory: dict[str, int] | None = None, launching: float = 1.0) -> None:
    """The first modes, once the untouched model is warm."""
    mode_preparation.start_modes(
        made, record_of(Untouched, warm(memory or {"allocated": 1 << 30}, launching=launching))
    )


def found(facts: dict[str, Any], numerics: Numerics = "exact", slow: bool = True) -> dict[str, tuple[str, ...]]:
    return modes(Context(Plan(), numerics, facts_of(facts), {}, {}), slow)


# Which modes


def test_on_a_gpu_there_are_all_modes_and_the_graph_of_the_model_as_it_is() -> None:
    assert found(GPU) == {
        "cuda-graph": ("capture",),
        "compile-and-graph": ("compile", "capture"),
        "default": ("compile",),
        "reduce-overhead": ("compile", "reduce-overhead"),
        "max-autotune": ("compile", "max-autotune", "reduce-overhead"),
    }


def test_on_a_cpu_there_is_the_default_and_no_graph_to_replay() -> None:
    stacks = found(CPU)
    assert stacks["default"] == ("compile",)
    assert not {"capture", "reduce-overhead"} & {name for stack in stacks.values() for name in stack}


def test_on_a_cpu_there_is_max_autotune_too() -> None:
    assert found(CPU) == {"default": ("compile",), "max-autotune": ("compile", "max-autotune")}


@pytest.mark.parametrize(
    ("numerics", "before"),
    [
        ("exact", ("fused-optimizer",)),
        ("tf32", ("tf32", "fused-optimizer")),
        ("bf16", ("bf16", "fused-optimizer")),  # which takes the place of TF32
        ("fp8", ("bf16", "fused-optimizer")),
    ],
)
def test_each_runs_at_the_precision_that_is_permitted_with_the_fused_optimizer(
    numerics: Numerics, before: tuple[str, ...]
) -> None:
    stacks = found({**TRAINING, **LAYERS, **CONVOLUTIONS}, numerics)
    assert set(stacks) == set(MODES)
    for name, stack in stacks.items():
        assert stack == (*before, *MODES[name])
        assert plan_of(stack).numerics == ("bf16" if numerics == "fp8" else numerics)


@pytest.mark.parametrize(("blocks", "kinds", "there"), [(12, 1, True), (3, 1, False), (12, 8, False), (0, 0, False)])
def test_blocks_are_compiled_one_by_one_where_they_repeat(blocks: int, kinds: int, there: bool) -> None:
    assert ("blocks-and-graph" in found({**GPU, "blocks": blocks, "kinds_of_blocks": kinds})) == there


def test_in_inference_there_is_no_optimizer_to_fuse() -> None:
    assert found(GPU, "bf16")["default"] == ("bf16", "compile")


@pytest.mark.parametrize(
    ("facts", "numerics", "stack"),
    [
        ({"optimizer_is_fused": True}, "exact", ("compile",)),
        ({"amp": "torch.bfloat16", "optimizer_is_fused": True}, "bf16", ("tf32", "compile")),
        ({"dtype": "torch.bfloat16", "optimizer_is_fused": True}, "bf16", ("compile",)),
        ({"matmul_precision": "high"}, "tf32", ("fused-optimizer", "compile")),
    ],
    ids=["a fused optimizer", "autocast", "16-bit weights", "TF32"],
)
def test_what_the_workload_has_already_is_not_added(
    facts: dict[str, Any], numerics: Numerics, stack: tuple[str, ...]
) -> None:
    assert found({**TRAINING, **facts}, numerics)["default"] == stack


def test_a_mode_that_does_not_apply_is_left_out_and_the_others_are_not() -> None:
    uncaptured = found({**TRAINING, "optimizer_not_captured": "its optimizer reads a number"})
    assert not {"cuda-graph", "compile-and-graph"} & {*uncaptured}
    assert {"default", "max-autotune"} <= {*uncaptured}


def test_what_takes_minutes_is_left_out_where_there_is_no_time_for_it() -> None:
    assert {*found(GPU)} - {*found(GPU, slow=False)} == {*SLOW}


def test_every_mode_has_a_title_and_rungs_of_the_ladder() -> None:
    assert {*TITLES} == {*MODES}
    assert {name for names in MODES.values() for name in names} <= {*BY_NAME}


# What prepares at first


@pytest.fixture
def climb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[State, Added]]:
    monkeypatch.setattr(states, "usable_cores", lambda: 2)

    def made(facts: dict[str, Any]) -> tuple[State, Added]:
        made, pool = state(tmp_path), Added()
        made.run.write("manifest.json", MANIFEST)
        made.known, made.pool = record_of(Facts, {**facts, "rates": {}}), pool  # type: ignore[assignment]
        return made, pool

    return made


@pytest.mark.parametrize(("facts", "graph"), [(TRAINING, True), (CPU, False)], ids=["gpu", "cpu"])
def test_one_mode_compiles_at_first_and_the_others_find_its_code_in_the_cache(
    climb: Callable[..., tuple[State, Added]], monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], graph: bool
) -> None:
    monkeypatch.setattr(states, "usable_cores", lambda: 2)
    made, pool = climb(facts)
    started(made)
    compiling = [task for task in pool.tasks if "compile" in task.side.rungs]
    assert len(compiling) == 1
    assert len(pool.tasks) - len(compiling) == graph
    assert not {*made.mode_workers} & {*SLOW}
    assert all(task.worker is None for task in made.mode_workers.values())
    assert all(bool(task.memory) == facts["gpu"] for task in pool.tasks)


@pytest.mark.parametrize(
    ("facts", "compiled", "begun"), [(TRAINING, 40.0, True), (TRAINING, 60.0, False), (CPU, 60.0, True)]
)
def test_on_a_gpu_what_takes_minutes_is_begun_where_ten_times_the_first_compilation_is_left(
    climb: Callable[..., tuple[State, Added]], facts: dict[str, Any], compiled: float, begun: bool
) -> None:
    made, _ = climb(facts)
    started(made)
    whole = made.mode_workers["compile-and-graph" if facts["gpu"] else "default"]
    whole.took = {"open": 10.0, "warm": 10.0 + compiled}
    wanted = mode_preparation.later_modes(leave(made, 500.0), mode_timing.Race(), {})
    assert ("max-autotune" in wanted) == begun


@pytest.mark.parametrize("cores", [2, 64])
def test_blocks_compile_beside_the_whole_and_are_verified_first_where_there_are_cores_for_both(
    climb: Callable[..., tuple[State, Added]], monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr(states, "usable_cores", lambda: cores)
    made, pool = climb({**TRAINING, **LAYERS})
    started(made)
    many = cores == 64
    assert ("01-plain-blocks-and-graph" in pool.names, "01-plain-compile-and-graph" in pool.names) == (many, True)
    assert made.likely_modes == (["blocks-and-graph", "compile-and-graph"] if many else [])
    verified = [task.side.rungs for task in made.mode_checks if task.name.endswith("exact")]
    assert verified == [made.mode_workers[name].side.rungs for name in made.likely_modes]


@pytest.mark.parametrize(
    ("whole", "best"), [(1.97, "blocks-and-graph"), (1.99, "compile-and-graph"), (2.1, "compile-and-graph")]
)
def test_the_whole_replaces_its_blocks_where_it_is_about_as_fast(whole: float, best: str) -> None:
    modes = {
        "blocks-and-graph": timed(("compile-regions", "capture"), 2.02),
        "compile-and-graph": timed(("compile", "capture"), whole),
    }
    blocks, compiled = modes["blocks-and-graph"], modes["compile-and-graph"]
    assert mode_timing._replaces(compiled, blocks, beside=True) == (best == "compile-and-graph")
    assert not mode_timing._replaces(blocks, compiled, beside=True)


# The steps of llama-3.2-1b on an H200 beside other climbs: its untouched step, which waits for the host, took 24.9 and 26.9 ms.
@pytest.mark.parametrize(("step", "replaces"), [(9.71e6, False), (9.02e6, True), (9.2e6, False)])
def test_a_mode_of_another_restart_has_to_be_faster_by_its_own_clock_too(step: float, replaces: bool) -> None:
    best, later = timed(("compile-regions", "capture"), 2.69), timed(("compile-regions", "reduce-overhead"), 2.77)
    best.step_ns, later.step_ns = 9.29e6, step
    assert mode_timing._replaces(later, best, beside=False) == replaces
    assert mode_timing._replaces(later, best, beside=True)


def checked(made: State, stack: tuple[str, ...], passed: list[bool]) -> None:
    """Verifications of a candidate at both precisions; those that have answered, with what they said."""
    made.mode_checks = verifying(made, stack, ["exact", "bf16"], "01-plain")
    for task, answer in zip(made.mode_checks, passed, strict=False):
        task.answers["verify"], task.ended = {**PASSED, "passed": answer}, True


@pytest.mark.parametrize("passed", [[True, True], [True, False], [True]], ids=["passed", "refused", "goes on"])
def test_a_mode_that_was_the_best_is_the_answer_once_it_is_verified_while_a_faster_one_is_not(
    climb: Callable[..., tuple[State, Added]], passed: list[bool]
) -> None:
    made, _ = climb({**TRAINING, **LAYERS})
    made.audited, made.facts.own_precision = True, "exact"
    blocks, whole = ("bf16", "compile-regions", "capture"), ("bf16", "compile", "capture")
    race = mode_timing.Race(
        {"blocks-and-graph": timed(blocks, 2.0), "compile-and-graph": timed(whole, 2.2)}, "compile-and-graph"
    )
    race.answers = [Answer(blocks, "provisional", Figure(value=2.0)), Answer(whole, "provisional", Figure(value=2.2))]
    made.answer = race.answers[1]
    checked(made, blocks, passed)
    assert mode_checks._nearly_verified(made, race) is (passed == [True])
    mode_checks._offer_verified(made, race)
    done = passed == [True, True]
    assert (made.answer.kept, made.answer.status) == ((blocks, "verified") if done else (whole, "provisional"))
    if done:
        assert made.answer.over_plain == Figure(value=2.0 / 2.2)
        race.modes["default"] = timed(("bf16", "compile"), 2.5)  # timed since
        moments = len(made.history)
        mode_checks._offer_verified(made, race)
        assert made.answer.over_plain == Figure(value=2.0 / 2.5)
        assert (written := made.run.result()) is not None
        assert (written.over_plain, len(made.history)) == (made.answer.over_plain, moments)
    checked(made, whole, [True, True])
    mode_checks._offer_verified(made, race)
    assert (made.answer.kept, made.answer.status) == (whole, "verified")
    checked(made, blocks, [True, True])
    mode_checks._offer_verified(made, race)
    assert made.answer.kept == whole


def test_a_mode_that_failed_when_it_was_timed_once_more_is_no_verified_answer(
    climb: Callable[..., tuple[State, Added]],
) -> None:
    made, _ = climb({**TRAINING, **LAYERS})
    made.audited, made.facts.own_precision = True, "exact"
    stack = ("bf16", "compile-regions", "capture")
    race = mode_timing.Race({"blocks-and-graph": mode(*stack, error="it died")})
    race.answers = [Answer(stack, "provisional", Figure(value=2.0))]
    made.answer = race.answers[0]
    checked(made, stack, [True, True])
    mode_checks._offer_verified(made, race)
    assert made.answer.status == "provisional"


def test_where_no_mode_ran_the_record_names_the_log_of_one() -> None:
    """So that it is a row of the table with its reason, and not among what was not tried."""
    record = plain._first_record(
        SimpleNamespace(), mode_timing.Race({"default": mode("compile", name="default", error="it raised")})
    )  # type: ignore[arg-type]
    assert (record.verdict, record.why) == ("failed", "no mode ran: it raised")
    assert record.log == "workers/01-plain-default.log"


def test_where_the_gpu_waits_for_no_launch_compiled_code_without_a_graph_comes_first(
    climb: Callable[..., tuple[State, Added]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "usable_cores", lambda: 64)
    made, pool = climb(INFERENCE)
    started(made, launching=0.01)
    assert "01-plain-default" in pool.names
    assert not any("capture" in task.side.rungs for task in pool.tasks)
    assert made.likely_modes == ["default"]
    assert list(made.mode_workers) == ["default", "compile-and-graph", "reduce-overhead"]


@pytest.mark.parametrize(
    ("launching", "there"),
    [(0.01, ["channels-last", "eager"]), (0.3, ["channels-last"]), (0.9, [])],
)
def test_modes_that_compile_nothing_are_tried_where_the_host_is_ahead_of_the_gpu(
    climb: Callable[..., tuple[State, Added]], launching: float, there: list[str]
) -> None:
    made, pool = climb({**INFERENCE, **CONVOLUTIONS})
    made.numerics = "tf32"
    started(made, launching=launching)
    assert [name for name in ("channels-last", "eager") if f"01-plain-{name}" in pool.names] == there
    assert not {*made.likely_modes} & {*there}


def test_the_model_as_it_is_is_no_mode_where_nothing_is_permitted() -> None:
    assert "eager" not in found(GPU)
    assert found(GPU, "tf32")["eager"] == ("tf32",)


@pytest.mark.parametrize(
    ("speedup", "precision", "given_up"),
    [(0.3, "", ["blocks-and-graph", "compile-and-graph"]), (0.9, "", []), (0.3, "bf16", [])],
    ids=["much slower", "about as fast", "at a low precision"],
)
def test_what_adds_to_a_mode_that_is_much_slower_is_not_waited_for(
    climb: Callable[..., tuple[State, Added]],
    monkeypatch: pytest.MonkeyPatch,
    speedup: float,
    precision: str,
    given_up: list[str],
) -> None:
    monkeypatch.setattr(states, "usable_cores", lambda: 64)
    made, _ = climb({**INFERENCE, **LAYERS})
    made.numerics = "bf16" if precision else "exact"
    started(made)
    assert made.likely_modes == ["blocks-and-graph", "compile-and-graph"]
    rungs = [*([precision] if precision else []), "capture"]
    race = mode_timing.Race({"cuda-graph": timed(tuple(rungs), speedup)})
    open_ = {name: made.mode_workers[name] for name in ("blocks-and-graph", "compile-and-graph")}
    later = {"default": made.mode_workers["default"], "reduce-overhead": made.mode_workers["reduce-overhead"]}
    racing._skip_hopeless(made, race, open_, later)
    assert [name for name in MODES if name in race.modes and race.modes[name].error] == given_up
    assert not {*given_up} & {*open_}
    assert {*later} == {"default", "reduce-overhead"}
    assert (made.likely_modes == []) == bool(given_up)
    assert (made.mode_checks == []) == bool(given_up)


BOTH = ["default", "reduce-overhead"]


@pytest.mark.parametrize(
    ("raised", "ran", "speedup", "given_up"),
    [
        (IN_16_BITS, IN_16_BITS, 1.5, BOTH),
        (("bf16", "compile-regions", "capture"), IN_16_BITS, 1.5, BOTH),
        (IN_16_BITS, IN_16_BITS, UNSET, []),  # it does not run either
        (("bf16", "compile-regions", "capture"), ("bf16", "compile"), 1.5, []),  # the capture may be what raises
        (("tf32", "compile"), ("bf16", "compile"), 1.5, []),
        (("bf16", "capture"), IN_16_BITS, 1.5, []),  # nothing compiled raised
    ],
    ids=["whole", "blocks", "not ready", "captured", "another precision", "not compiled"],
)
def test_where_another_attention_made_the_model_compile_nothing_is_compiled_without_it_any_more(
    climb: Callable[..., tuple[State, Added]],
    raised: Sequence[str],
    ran: Sequence[str],
    speedup: Any,
    given_up: list[str],
) -> None:
    made, _ = climb(TRAINING)
    made.numerics = "bf16"
    started(made)
    race = mode_timing.Race(
        {
            "w": Mode(name="w", title="", rungs=[*raised], failed=True),
            "x": Mode(name="x", title="", rungs=[*ran, "biased-attention"], speedup=speedup),
        }
    )
    open_ = {name: made.mode_workers[name] for name in ("default", "cuda-graph")}
    later = {"reduce-overhead": made.mode_workers["reduce-overhead"]}
    racing._skip_hopeless(made, race, open_, later)
    assert [name for name in race.modes if race.modes[name].error] == given_up
    assert {*open_, *later} == {"default", "cuda-graph", "reduce-overhead"} - {*given_up}


@pytest.mark.parametrize("dropout", [True, False])
def test_with_many_cores_the_likely_one_is_verified_while_it_is_compiled(
    climb: Callable[..., tuple[State, Added]], monkeypatch: pytest.MonkeyPatch, dropout: bool
) -> None:
    monkeypatch.setattr(states, "usable_cores", lambda: 64)
    made, pool = climb({**TRAINING, "dropout": dropout})
    made.numerics = "bf16"
    started(made)
    name = "01-plain-compile-and-graph"
    assert [task.name for task in made.mode_checks] == [f"{name}-verify-exact", f"{name}-verify-bf16"]
    mode_checks.note_likely(made, {"compile-and-graph": made.mode_workers["compile-and-graph"]}, {})
    assert [task.name for task in made.mode_checks] == [f"{name}-verify-exact", f"{name}-verify-bf16"]
    second = [
        task for task in pool.tasks if "precompile" in task.name
    ]  # with dropout nobody else would compile it before it is verified
    assert [task.name for task in second] == ([f"{name}-precompile-exact"] if dropout else [])
    assert {task.side.rungs for task in (*made.mode_checks, *second)} == {
        made.mode_workers["compile-and-graph"].side.rungs
    }
    assert all(task.side.one_shape for task in (*made.mode_checks, *second))
    assert all(task.low_priority for task in second)


def test_where_the_likely_ones_fail_the_next_is_verified_in_their_place(
    climb: Callable[..., tuple[State, Added]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "usable_cores", lambda: 64)
    made, _ = climb({**TRAINING, **LAYERS})
    started(made)
    blocks, whole, default = (made.mode_workers[name] for name in ("blocks-and-graph", "compile-and-graph", "default"))

    def verified() -> set[tuple[str, ...]]:
        return {task.side.rungs for task in made.mode_checks if not task.ended}

    mode_checks.note_likely(made, {"cuda-graph": made.mode_workers["cuda-graph"]}, {})
    assert verified() == {blocks.side.rungs, whole.side.rungs}
    blocks.error = whole.error = WorkerFailed("it cannot be captured", "raised")
    mode_checks.note_likely(made, {"blocks-and-graph": blocks}, {"compile-and-graph": whole, "default": default})
    assert (made.likely_modes, verified()) == (["compile-and-graph"], {whole.side.rungs})
    mode_checks.note_likely(made, {"compile-and-graph": whole}, {"default": default})
    assert (made.likely_modes, verified()) == (["default"], {default.side.rungs})
    mode_checks.note_likely(made, {"default": default}, {})
    assert (made.likely_modes, verified()) == ([], {default.side.rungs})


@pytest.mark.parametrize(
    ("facts", "numerics", "compiled", "graph"),
    [(TRAINING, "bf16", 9.0, 11.0), (TRAINING, "tf32", 14.0, 14.0), (GPU, "bf16", 14.0, 14.0),
     ({**TRAINING, "amp": "torch.bfloat16", "own_precision": "bf16"}, "bf16", 14.0, 14.0)],
    ids=["training in less", "training as before", "inference", "autocast of its own"],
)  # fmt: skip
def test_a_mode_that_trains_at_a_lower_precision_is_taken_to_need_less_memory(
    climb: Callable[..., tuple[State, Added]], facts: dict[str, Any], numerics: Numerics, compiled: float, graph: float
) -> None:
    made, _ = climb(facts)
    made.numerics, made.baseline.memory = numerics, {"reserved": 10 << 30}
    started(made, {"reserved": 10 << 30})
    assert made.mode_workers["compile-and-graph"].memory / 2**30 == pytest.approx(compiled)
    assert made.mode_workers["cuda-graph"].memory / 2**30 == pytest.approx(graph)
    again = mode_preparation.prepared_mode(made, "cuda-graph", made.mode_workers["cuda-graph"].side.rungs, "-again")
    assert again.memory / 2**30 == pytest.approx(14.0)  # it lacked memory before


def test_what_an_earlier_sitting_timed_is_not_prepared_again(
    climb: Callable[..., tuple[State, Added]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "usable_cores", lambda: 64)
    made, pool = climb(TRAINING)
    before = timed(("fused-optimizer", "compile", "capture"), 2.0)
    made.unfinished["plain"] = Unfinished(
        "compile-and-graph", before.rungs, "baseline", modes={"compile-and-graph": before}
    )
    started(made)
    assert [task.name for task in pool.tasks] == ["01-plain-cuda-graph"]


def test_of_a_model_with_one_shape_no_second_one_is_compiled(
    climb: Callable[..., tuple[State, Added]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "usable_cores", lambda: 64)
    made, pool = climb({**TRAINING, "one_shape": "it says so"})
    checks.precompiling(made, ["compile"], "x")
    assert not pool.tasks


def test_each_precision_is_verified_by_a_worker_of_its_own(climb: Callable[..., tuple[State, Added]]) -> None:
    made, pool = climb(TRAINING)
    verifying(made, ["bf16", "compile"], ["exact", "bf16"], "02-compile")
    assert [task.name for task in pool.tasks] == ["02-compile-verify-exact", "02-compile-verify-bf16"]
    assert all(task.side.rungs == ("bf16", "compile") for task in pool.tasks)


@pytest.mark.parametrize("begun", ["exact", "bf16", "both", "another's"])
def test_what_was_begun_ahead_is_completed_to_every_precision(
    climb: Callable[..., tuple[State, Added]], begun: str
) -> None:
    made, _ = climb(TRAINING)
    made.facts.own_precision = "exact"
    stack = ["bf16", "compile"]
    of = ["compile"] if begun == "another's" else stack
    ahead = verifying(made, of, ["exact", "bf16"] if begun in ("both", "another's") else [begun], "01-plain")  # type: ignore[list-item]
    found = checks_of(made, stack, "01-plain", ahead)
    assert sorted(task.name.rpartition("-")[2] for task in found) == ["bf16", "exact"]
    assert {task.side.rungs for task in found} == {tuple(stack)}
    assert {*ahead} <= {*found} or all(task.ended for task in ahead)


def test_what_was_begun_ahead_and_given_up_is_begun_anew(climb: Callable[..., tuple[State, Added]]) -> None:
    made, _ = climb(TRAINING)
    stack = ["bf16", "compile"]
    ahead = verifying(made, stack, ["exact", "bf16"], "01-plain")
    ahead[1].end()
    found = checks_of(made, stack, "01-plain", ahead)
    assert not any(task.ended for task in found)
    assert sorted(task.name.rpartition("-")[2] for task in found) == ["bf16", "exact"]


def timed(rungs: tuple[str, ...], speedup: float, name: str = "") -> Mode:
    return mode(*rungs, name=name, speedup=speedup)


@pytest.mark.parametrize("slow", ["cuda-graph", "compile-and-graph"])
def test_where_a_mode_is_slower_at_the_lowest_precision_the_first_ones_are_prepared_at_the_next(
    climb: Callable[..., tuple[State, Added]], monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    monkeypatch.setattr(states, "usable_cores", lambda: 64)
    made, pool = climb(TRAINING)
    made.numerics = "bf16"
    started(made)
    before, ahead = list(pool.tasks), made.mode_checks
    race = mode_timing.Race({slow: timed(made.mode_workers[slow].side.rungs, 0.6)}, slow)
    assert {*mode_preparation.at_higher_precision(made, race)} == {"cuda-graph-tf32", "compile-and-graph-tf32"}
    assert "bf16" in made.mode_workers["compile-and-graph"].side.rungs
    assert made.mode_workers["compile-and-graph-tf32"].side.rungs == ("tf32", "fused-optimizer", "compile", "capture")
    assert all(task.ended for task in ahead)  # it verified what is unlikely now
    assert {task.side.rungs for task in made.mode_checks} == {made.mode_workers["compile-and-graph-tf32"].side.rungs}
    assert {task.name for task in made.mode_checks}.isdisjoint(task.name for task in before)  # whose logs stay
    assert mode_preparation.at_higher_precision(made, race) == {}
    tf32 = made.mode_workers["cuda-graph-tf32"].side.rungs
    race.modes["cuda-graph-tf32"] = timed(tf32, 0.9)
    assert {*mode_preparation.at_higher_precision(made, race)} == {"cuda-graph-float32", "compile-and-graph-float32"}
    assert title("cuda-graph-float32").endswith(", in float32")
    race.modes["cuda-graph-float32"] = timed(("capture",), 0.9)
    assert mode_preparation.at_higher_precision(made, race) == {}


RAISED = {"error": "RuntimeError: unsafe to autocast.", "failed": True}


@pytest.mark.parametrize(
    ("gpu", "failed", "asked"),
    [
        (True, ["cuda-graph", "eager"], True),
        (True, ["cuda-graph", "compile-and-graph"], False),  # the model as it is may run
        (True, ["cuda-graph"], False),
        (False, ["default"], True),
        (False, [], False),
    ],
)
def test_where_nothing_runs_at_the_lowest_precision_the_first_modes_are_prepared_at_the_next(
    climb: Callable[..., tuple[State, Added]],
    monkeypatch: pytest.MonkeyPatch,
    gpu: bool,
    failed: list[str],
    asked: bool,
) -> None:
    monkeypatch.setattr(states, "usable_cores", lambda: 64)
    made, _ = climb({**TRAINING, "gpu": gpu})
    made.numerics = "bf16"
    started(made)
    said: list[Any] = []
    made.say = said.append  # type: ignore[method-assign]
    race = mode_timing.Race({name: mode("bf16", *MODES[name], name=name, **RAISED) for name in failed})
    found = mode_preparation.at_higher_precision(made, race)
    assert bool(found) == asked
    if asked:
        assert not any("bf16" in task.side.rungs for task in found.values())
        assert said[-1].text.startswith(
            "no plain mode runs with bf16: RuntimeError: unsafe to autocast; the plain modes"
        )
    made.known = structs.replace(made.facts, hooked="a layer")  # so that nothing can be a graph
    made.mode_workers = {name: task for name, task in made.mode_workers.items() if "compile" in task.side.rungs}
    race = mode_timing.Race({"default": mode("bf16", "compile", name="default", **RAISED)})
    assert mode_preparation.at_higher_precision(made, race)
    no_memory = mode("bf16", name="eager", error="out of memory")
    race.modes["eager"], race.without = no_memory, ()
    assert not mode_preparation.at_higher_precision(made, race)


@pytest.mark.parametrize(
    ("best", "held", "waiting", "needs"),
    [
        ("cuda-graph", 5.0, 0.0, False),
        ("cuda-graph", 5.0, 6.0, True),  # what verifies the mode that should replace it has no room
        ("compile-and-graph", 5.0, 6.0, False),  # it is that mode
        ("compile-and-graph", 8.0, 0.0, True),  # the next mode has no room
    ],
)
def test_the_best_so_far_gives_up_its_memory_to_what_should_replace_it(
    climb: Callable[..., tuple[State, Added]], tmp_path: Path, best: str, held: float, waiting: float, needs: bool
) -> None:
    made, _ = climb(TRAINING)
    made.likely_modes, made.mode_bytes = ["compile-and-graph"], 3.0
    ready = answered("01-plain-best", made.side([]))
    ready.memory = held
    made.pool = Pool(Setup(None, tmp_path, Limits()), 8, 10.0)
    made.pool._tasks = [ready, Task("01-plain-verify-bf16", made.side([]), [], waiting)]
    assert mode_timing._needs_memory(made, mode_timing.Race(best=best)) is needs


def test_a_mode_that_is_faster_asks_for_no_other_precision(climb: Callable[..., tuple[State, Added]]) -> None:
    made, _ = climb(TRAINING)
    made.numerics = "bf16"
    started(made)
    race = mode_timing.Race({"cuda-graph": timed(made.mode_workers["cuda-graph"].side.rungs, 1.01)}, "cuda-graph")
    assert mode_preparation.at_higher_precision(made, race) == {}


@pytest.mark.parametrize(("laid_out", "asked"), [(None, False), (1.46, False), (0.9, True)])
def test_a_precision_is_not_blamed_for_the_layout_of_convolutions(
    climb: Callable[..., tuple[State, Added]], laid_out: float | None, asked: bool
) -> None:
    """On an H200, mobilenetv3_large_100 in training: 0.90 as a graph of what it is in bfloat16, 1.46 with channels innermost, and
    3.94 compiled. None: it is not timed yet."""
    made, _ = climb(TRAINING | CONVOLUTIONS)
    made.numerics = "bf16"
    started(made, launching=0.1)
    gains = {"cuda-graph": 0.9, **({"channels-last": laid_out} if laid_out else {})}
    race = mode_timing.Race(
        {n: timed(made.mode_workers[n].side.rungs, gain) for n, gain in gains.items()}, "cuda-graph"
    )
    assert bool(mode_preparation.at_higher_precision(made, race)) is asked


@pytest.mark.parametrize(("parts", "asked"), [({"gemm": 5e6}, True), ({"conv": 5e6}, False), ({}, True)])
def test_a_precision_that_changes_nothing_of_the_step_is_not_blamed_for_a_slow_mode(
    climb: Callable[..., tuple[State, Added]], parts: dict[str, float], asked: bool
) -> None:
    made, _ = climb(TRAINING)
    made.numerics, made.breakdown = "tf32", Breakdown(parts=parts)
    started(made)
    race = mode_timing.Race({"cuda-graph": timed(made.mode_workers["cuda-graph"].side.rungs, 0.8)}, "cuda-graph")
    assert bool(mode_preparation.at_higher_precision(made, race)) is asked


def test_a_mode_that_leaves_its_launches_to_the_host_says_nothing_of_the_precision(
    climb: Callable[..., tuple[State, Added]],
) -> None:
    made, _ = climb(TRAINING)
    made.numerics = "bf16"
    started(made)
    gains = {"cuda-graph": 3.7, "compile-and-graph": 5.4, "default": 0.99}
    race = mode_timing.Race(
        {n: timed(made.mode_workers[n].side.rungs, gain) for n, gain in gains.items()}, "compile-and-graph"
    )
    assert mode_preparation.at_higher_precision(made, race) == {}


@pytest.mark.parametrize(("launching", "asked"), [(0.5, False), (0.05, True)])
def test_the_model_as_it_is_tells_of_a_precision_where_the_host_is_ahead(
    climb: Callable[..., tuple[State, Added]], launching: float, asked: bool
) -> None:
    made, _ = climb(TRAINING)
    made.numerics = "bf16"
    started(made)
    made.launch_share = launching
    race = mode_timing.Race({"eager": timed(("bf16", "fused-optimizer"), 0.9)})
    assert bool(mode_preparation.at_higher_precision(made, race)) is asked


@pytest.mark.parametrize("facts", [TRAINING, CPU], ids=["gpu", "cpu"])
def test_a_verification_takes_as_much_memory_as_the_ones_before_it(
    climb: Callable[..., tuple[State, Added]], facts: dict[str, Any]
) -> None:
    made, _ = climb(facts)
    made.run.write("manifest.json", {**MANIFEST, "workload": {**MANIFEST["workload"], "parameters": 1 << 24}})
    made.baseline.memory = {"allocated": 1 << 30}
    guessed = checks.verifying_bytes(made, 1 << 30)
    took = {**PASSED, "memory": {"allocated": 5 << 30, "reserved": 6 << 30, "beside": 2 << 30}}
    made.all_checks = [answered("01-plain-verify-exact", made.side([]), verify=took)]
    checks.end_checks(made)
    seen = checks.verifying_bytes(made, 1 << 30)
    if facts["gpu"]:
        assert sum(guessed) == pytest.approx(4.2 * 2**30)
        # The weights, gradients and moments of 16 million parameters are a quarter of the peak.
        assert guessed[0] == pytest.approx((1 + 2.75 * 0.25 + 0.9 * 0.75) * 2**30)
        assert seen == (3 << 30, 4 << 30)
    else:
        assert guessed == seen == (0.0, 0.0)


@pytest.mark.parametrize(
    ("dtype", "numerics", "times"),
    [
        ("torch.float32", "exact", 6), ("torch.float32", "bf16", 6), ("torch.bfloat16", "exact", 12), ("torch.float16", "bf16", 8),
        ("torch.float64", "exact", 5),
    ],
)  # fmt: skip
def test_a_verification_of_narrow_weights_takes_more_times_their_memory(
    climb: Callable[..., tuple[State, Added]], dtype: str, numerics: str, times: int
) -> None:
    """Float64 beside bfloat16 is four times as wide, and full precision is float32."""
    made, _ = climb({**TRAINING, "mode": "infer", "dtype": dtype})
    made.run.write("manifest.json", MANIFEST)
    assert checks.verifying_bytes(made, 1 << 30, numerics) == ((times + 1) << 30, 0.0)


# What is told of the best


def seen(*sides: str) -> ABRun:
    """A restart of several sides, in which the k-th takes 1 / (k + 1) of the untouched model's time, and all more and more."""
    took = {side: STEP / (k + 1) for k, side in enumerate(sides)}
    slower = [1.2 * ns for ns in reversed(took.values())]
    warm = {side: Warmed(memory={"resident": k}, first_run_seconds=float(k), runs=5, steady=True, applied={"of": side})
            for k, side in enumerate(sides)}  # fmt: skip
    return ABRun(
        restarts=[Restart(tuple((*took.values(), *slower) for _ in range(8)))],
        samples=[{side: [ns] * 8 for side, ns in took.items()}],
        warm=[warm],
        blocks={side: [(ns, ns)] for side, ns in took.items()},
        compiled={side: k for k, side in enumerate(sides)},
        warnings=["the machine is busy"],
    )  # fmt: skip


@pytest.mark.parametrize(("name", "times"), [("default", 2.0), ("cuda-graph", 3.0), ("reduce-overhead", 4.0)])
def test_a_comparison_of_many_is_told_as_one_of_two(name: str, times: float) -> None:
    whole = seen("best", "default", "cuda-graph", "reduce-overhead")
    two = pair_of(whole, name)
    assert math.exp(two.restarts[0].log_ratio()) == pytest.approx(times)
    assert [len(row) for row in two.restarts[0].rounds] == [4] * 8
    told = two.record()
    assert {*told.times} == {*told.memory} == {*told.hidden} == {"best", "candidate"}
    assert told.times["best"].value / told.times["candidate"].value == pytest.approx(times)
    assert told.applied == {"of": name}
    assert told.memory["candidate"] == {"resident": times - 1}
    assert told.compiled_while_timed == {"best": 0, "candidate": times - 1}
    assert "the machine is busy" in told.warnings
    assert len(whole.restarts[0].rounds[0]) == 8  # which stays as it was


def test_a_comparison_of_two_is_told_as_it_is() -> None:
    whole = seen("best", "default")
    assert pair_of(whole, "default").restarts == whole.restarts


# While further modes compile


def test_a_mode_that_finds_no_code_in_the_cache_waits_for_the_verification(
    climb: Callable[..., tuple[State, Added]],
) -> None:
    made, _ = climb(TRAINING)
    later = ["default", "default-tf32", "reduce-overhead", "reduce-overhead-tf32"]
    assert not any(mode_preparation.waits_for_cores(made, name) for name in later)
    made.likely_modes = ["compile-and-graph"]
    assert [name for name in later if mode_preparation.waits_for_cores(made, name)] == later[2:]
    made.likely_modes, made.mode_checks = [], [Task("01-plain-verify-exact", made.side([]), [("verify", {})])]
    assert [name for name in later if mode_preparation.waits_for_cores(made, name)] == later[2:]
    made.mode_checks = [answered("01-plain-verify-exact", made.side([]), verify=PASSED)]
    assert not any(mode_preparation.waits_for_cores(made, name) for name in later)


@pytest.mark.parametrize("of", ["the best", "another mode", "another precision"])
def test_the_best_mode_is_verified_by_its_own_checks_alone(
    climb: Callable[..., tuple[State, Added]], monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    monkeypatch.setattr(states, "usable_cores", lambda: 2)
    monkeypatch.setattr(mode_checks, "prefetch_after", lambda *_: None)
    made, _ = climb({**TRAINING, "shapes": [{"elements": 8}]})
    made.numerics, made.audited, made.baseline.memory = "bf16", True, {"allocated": 1 << 30}
    best = ["bf16", "fused-optimizer", "compile", "capture"]
    others = {"the best": best, "another mode": best[:-1], "another precision": ["tf32", *best[1:]]}
    made.mode_checks = [
        answered(f"01-plain-verify-{n}", made.side(others[of]), verify=PASSED) for n in ("exact", "bf16")
    ]
    offer(made, Answer(tuple(best), "provisional", Figure(value=1.5)))
    race = mode_timing.Race({"compile-and-graph": timed(tuple(best), 1.5)}, "compile-and-graph")
    mode_checks.advance_checks(made, race)
    assert made.answer is not None
    assert made.answer.status == ("verified" if of == "the best" else "provisional")


def test_a_workload_that_is_refused_ends_the_climb(
    climb: Callable[..., tuple[State, Added]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(state: State) -> None:
        raise WorkerFailed("its inputs do not depend on the seed", "refused")

    monkeypatch.setattr(plain, "race", refused)
    made, _ = climb(TRAINING)
    with pytest.raises(WorkerFailed, match="do not depend on the seed"):
        plain.attempt_plain(made)


def test_where_the_fastest_mode_is_wrong_the_next_one_takes_its_place(
    climb: Callable[..., tuple[State, Added]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = climb(TRAINING)
    modes = {
        name: timed(rungs, gain, name)
        for name, rungs, gain in (
            ("compile-and-graph", ("compile", "capture"), 2.0), ("default", ("compile",), 1.5), ("cuda-graph", ("capture",), 1.02),
        )
    }  # fmt: skip
    tried: list[str] = []

    def record(fastest: Mode) -> Attempt:
        return attempt(rung="plain", stack=fastest.rungs, modes=[*modes.values()], plain=the_best(fastest, []))

    def verified(state: State, record: Attempt) -> Any:
        assert record.plain
        tried.append(record.plain.name)
        record.verdict, record.why = "reverted", f"{record.plain.name} is wrong."
        return Profile()

    def instead(state: State, old: Attempt, name: str, rungs: Sequence[str]) -> Attempt:
        modes.update({timed.name: timed for timed in old.modes or ()})
        return record(modes[name])

    monkeypatch.setattr(plain, "race", lambda state: None)
    monkeypatch.setattr(plain, "_first_record", lambda state, found: record(modes["compile-and-graph"]))
    monkeypatch.setattr(plain, "_timed_instead", instead)
    monkeypatch.setattr(plain, "_verify", verified)
    plain.attempt_plain(made)
    assert tried == ["compile-and-graph", "default"]  # the third gives too little
    last = made.attempts[-1]
    assert [told.error for told in last.modes or ()] == ["compile-and-graph is wrong.", "default is wrong.", UNSET]
    assert made.plain is None
    assert last.verdict == "reverted"


ROUNDED = (*IN_16_BITS, "eager-rounding")


@pytest.mark.parametrize(
    ("facts", "rungs", "may"),
    [
        (TRAINING, IN_16_BITS, True),
        (INFERENCE, IN_16_BITS, False),  # which has no backward pass
        (TRAINING, ("tf32", "compile", "capture"), False),  # which rounds nothing that is kept
        (TRAINING, ("bf16", "compile-regions", "capture"), False),
        ({**TRAINING, "inductor": {}}, IN_16_BITS, False),  # of a torch that has no such setting
        (TRAINING, ROUNDED, False),
    ],
)
def test_compiled_training_in_16_bits_may_round_where_eager_does(
    facts: dict[str, Any], rungs: tuple[str, ...], may: bool
) -> None:
    context = Context(Plan(), "bf16", facts_of(facts), {}, {})
    assert eager_rounding_variant(context, "x", rungs, ["x"]) == (
        ("x-rounded", (*rungs, "eager-rounding")) if may else None
    )
    assert eager_rounding_variant(context, "x", rungs, ["y-rounded"]) is None  # it is compiled anew once
    assert BY_NAME["eager-rounding"].applies(replace(context, plan=plan_of(IN_16_BITS)))  # by itself it is never tried


@pytest.mark.parametrize(("refusing", "again"), [(["bf16"], True), (["exact"], False), (["exact", "bf16"], False)])
def test_what_is_refused_in_16_bits_alone_is_compiled_once_more_with_another_rounding(
    climb: Callable[..., tuple[State, Added]], monkeypatch: pytest.MonkeyPatch, refusing: list[str], again: bool
) -> None:
    monkeypatch.setattr(states, "usable_cores", lambda: 64)
    made, pool = climb(TRAINING)
    made.numerics, made.audited = "bf16", True
    made.mode_bytes = float(1 << 30)
    race = mode_timing.Race({"compile-and-graph": timed(IN_16_BITS, 2.0, "compile-and-graph")}, "compile-and-graph")
    race.answers = [Answer(IN_16_BITS, "provisional", Figure(value=2.0))]
    made.mode_checks = verifying(made, IN_16_BITS, ["exact", "bf16"], "01-plain-compile-and-graph")
    for task in made.mode_checks:
        part = checks.part_of(task)
        no = {"passed": False, "failures": ["a gradient is off"]} if part in refusing else {}
        task.answers["verify"] = {**PASSED, "precisions": [part], **no}
    assert mode_checks.withdraw_wrong(made, race)
    anew = mode_preparation.with_eager_rounding(made, race)
    assert {name: task.side.rungs for name, task in anew.items()} == (
        {"compile-and-graph-rounded": ROUNDED} if again else {}
    )
    assert all(task in pool.tasks for task in anew.values())
    assert {task.side.rungs for task in made.mode_checks} == (
        {ROUNDED} if again else set()
    )  # verified while it compiles
    assert mode_preparation.with_eager_rounding(made, race) == {}
    assert title("compile-and-graph-rounded").endswith("as one CUDA or HIP graph, rounded where eager rounds")
    assert title("default-float32-rounded") == "torch.compile, in float32, rounded where eager rounds"
    made.mode_workers.clear()  # as in another sitting, which has read what was timed
    race.rounding, race.modes["compile-and-graph-rounded"] = ["compile-and-graph"], timed(ROUNDED, 1.9)
    assert mode_preparation.with_eager_rounding(made, race) == {}


@pytest.mark.parametrize("raised", ["compile-and-graph", BLOCKS])
@pytest.mark.parametrize(
    ("found", "failed", "other"),
    [
        ({"biased-attention": 12}, True, ("compile-and-graph-attended", (*IN_16_BITS, "biased-attention"))),
        ({}, True, None),  # nothing of it is in the graph
        ({"biased-attention": 12}, UNSET, None),  # it was not ready in time
    ],
)
def test_compiled_code_that_raises_is_compiled_once_more_with_another_attention(
    climb: Callable[..., tuple[State, Added]],
    monkeypatch: pytest.MonkeyPatch,
    found: dict[str, int],
    failed: Any,
    other: tuple[str, tuple[str, ...]] | None,
    raised: str,
) -> None:
    """Blocks raise long before the whole does."""
    monkeypatch.setattr(states, "usable_cores", lambda: 64)
    made, pool = climb({**TRAINING, "matches": found})
    made.numerics, made.audited, made.mode_bytes = "bf16", True, float(1 << 30)
    made.mode_workers = {"compile-and-graph": mode_preparation.prepared_mode(made, "compile-and-graph", IN_16_BITS)}
    mode_checks.verify_mode_early(made, "compile-and-graph")
    rungs = list(IN_16_BITS) if raised != BLOCKS else ["bf16", "compile-regions", "capture"]
    race = mode_timing.Race({raised: Mode(name=raised, title="", rungs=rungs, error="(*bias): no.", failed=failed)})
    assert mode_preparation.compiled_code_raises(race) == (failed is True)
    anew = mode_preparation.with_bias_kernel(made, race) if mode_preparation.compiled_code_raises(race) else {}
    assert {name: task.side.rungs for name, task in anew.items()} == (dict([other]) if other else {})
    assert all(task in pool.tasks for task in anew.values())
    verified = {task.side.rungs for task in made.mode_checks}
    assert not other or verified == {other[1]}  # while it compiles; what raises is verified no longer
    assert not anew or mode_preparation.with_bias_kernel(made, race) == {}  # once
    race.modes["default"] = timed(("bf16", "compile"), 1.5, "default")
    assert not mode_preparation.compiled_code_raises(race)
    assert title("compile-and-graph-attended").endswith(
        "as one CUDA or HIP graph, attention with a bias by Rung's kernel"
    )


def test_a_race_that_all_compiled_code_leaves_goes_on_with_another_attention_once_the_survey_has_found_some(
    climb: Callable[..., tuple[State, Added]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = climb(TRAINING)
    made.numerics, made.audited, made.mode_bytes = "bf16", True, float(1 << 30)
    made.baseline_worker = untouched = Task("untouched", made.side([]), [])
    made.mode_workers = {"compile-and-graph": mode_preparation.prepared_mode(made, "compile-and-graph", IN_16_BITS)}
    waited: list[bool] = []

    def surveyed(state: State, *, wait: bool = True) -> bool:
        waited.append(wait)
        if wait:
            state.facts.matches = {"biased-attention": 12}
        return wait

    def something_new(state: State, result: mode_timing.Race, tasks: Sequence[Task]) -> bool:
        for task in tasks:
            if "biased-attention" not in task.side.rungs:
                task.error = WorkerFailed("(*bias): no", "raised")
            task.ended = True
        return True

    def time_modes(state: State, result: mode_timing.Race, done: dict[str, Task]) -> None:
        for name, task in done.items():
            result.modes[name] = record = mode_of_task(name, task)
            if not task.error:
                record.speedup, result.best = 2.0, name

    monkeypatch.setattr(racing, "finish_survey", surveyed)
    monkeypatch.setattr(racing, "_wait_for_news", something_new)
    monkeypatch.setattr(racing, "time_modes", time_modes)
    for name in ("wait_for_audit", "advance_checks", "note_likely"):
        monkeypatch.setattr(racing, name, lambda *_: None)
    monkeypatch.setattr(racing, "later_modes", lambda state, result, later: later)
    found = racing.race(made)
    assert (found.best, waited[:2]) == ("compile-and-graph-attended", [False, True])
    assert untouched.ended


@pytest.mark.parametrize(
    ("precisions", "first"),
    [(["bf16"], ("compile-and-graph-rounded", ROUNDED)), (["exact"], ("default", ["bf16", "compile"]))],
)
def test_what_the_last_look_refuses_in_16_bits_is_rounded_otherwise_before_the_next_mode_is_tried(
    climb: Callable[..., tuple[State, Added]], precisions: list[str], first: tuple[str, Sequence[str]]
) -> None:
    made, _ = climb(TRAINING)
    made.numerics = "bf16"
    fastest, other = timed(IN_16_BITS, 2.0, "compile-and-graph"), timed(("bf16", "compile"), 1.5, "default")
    record = attempt(
        rung="plain", stack=fastest.rungs, modes=[fastest, other], why="a gradient is off.", prepared_seconds=40.0,
        verification={**PASSED, "passed": False, "precisions": precisions, "failures": ["a gradient is off"]},
    )  # fmt: skip
    assert plain._replacement(made, record) == first
    assert record.modes
    assert record.modes[0].error == "a gradient is off."
    leave(made, 50.0)  # too little to compile and to verify it
    record.modes[0].error = UNSET
    assert plain._replacement(made, record) == ("default", ["bf16", "compile"])
    record.modes = [record.modes[0], timed(ROUNDED, 1.9, "compile-and-graph-rounded"), other]
    record.stack = list(ROUNDED)
    assert plain._replacement(made, record) == ("default", ["bf16", "compile"])  # it is compiled anew once


@pytest.mark.parametrize(("gain", "best"), [(1.9, "compile-and-graph-rounded"), (1.3, "default"), (1.01, "default")])
def test_what_is_rounded_otherwise_is_the_answer_only_where_no_other_mode_is_faster(
    climb: Callable[..., tuple[State, Added]], monkeypatch: pytest.MonkeyPatch, gain: float, best: str
) -> None:
    made, _ = climb(TRAINING)
    made.numerics = "bf16"
    fastest, other = timed(IN_16_BITS, 2.0, "compile-and-graph"), timed(("bf16", "compile"), 1.5, "default")
    tried: list[str] = []

    def times(state: State, result: mode_timing.Race, done: dict[str, Task]) -> None:
        for name, task in done.items():
            result.modes[name] = timed(task.side.rungs, gain if name.endswith("rounded") else 1.5, name)
            result.best = name

    def verified(state: State, record: Attempt) -> Any:
        assert record.plain
        tried.append(record.plain.name)
        wrong = record.plain.name == "compile-and-graph"
        record.verdict, record.why = "reverted" if wrong else "inconclusive", "a gradient is off."
        record.verification = record_of(Verification, {**PASSED, "passed": not wrong, "precisions": ["bf16"]})
        return Profile()

    def record_of_race(state: State, found: Any) -> Attempt:
        modes = [*found.modes.values()] if found else [fastest, other]
        of = next(mode for mode in modes if not found or mode.name == found.best)
        return attempt(rung="plain", stack=of.rungs, modes=modes, plain=the_best(of, []))

    monkeypatch.setattr(plain, "race", lambda state: None)
    monkeypatch.setattr(plain, "_first_record", record_of_race)
    monkeypatch.setattr(plain, "ensure_baseline_worker", lambda state: None)
    monkeypatch.setattr(made, "wait", lambda task: None)
    monkeypatch.setattr(plain, "time_modes", times)
    monkeypatch.setattr(plain, "_verify", verified)
    plain.attempt_plain(made)
    assert tried == ["compile-and-graph", best]


@pytest.mark.parametrize(("kept", "said"), [(["compile"], True), (["capture"], False)])
def test_modes_that_were_cut_short_do_not_hide_that_the_recipe_is_verified(
    climb: Callable[..., tuple[State, Added]], monkeypatch: pytest.MonkeyPatch, kept: list[str], said: bool
) -> None:
    made, _ = climb(TRAINING)
    fastest = timed(("compile",), 2.0, "default")
    record = attempt(rung="plain", stack=["compile"], modes=[fastest], plain=the_best(fastest, []))

    def over(*_: Any) -> Any:
        raise OutOfTime

    monkeypatch.setattr(plain, "race", lambda state: None)
    monkeypatch.setattr(plain, "_first_record", lambda state, found: record)
    monkeypatch.setattr(plain, "_verify", over)
    offer(made, Answer(tuple(kept), "verified", Figure(value=2.0)))
    plain.attempt_plain(made)
    assert made.attempts[-1].verdict == "inconclusive"
    assert ("its recipe is verified" in made.attempts[-1].why) == said
    assert made.answer is not None
    assert made.answer.status == "verified"


def test_what_verifies_a_candidate_that_was_given_up_ends(climb: Callable[..., tuple[State, Added]]) -> None:
    made, _ = climb(TRAINING)
    of_this, of_next = (verifying(made, rungs, ["exact"], "x") for rungs in (["compile"], ["compile", "sdpa"]))
    checks.end_checks(made, keep=of_next)
    assert [task.ended for task in (*of_this, *of_next)] == [True, False]
    checks.end_checks(made)
    assert of_next[0].ended
    assert made.all_checks == []


class Restarts:
    """Sides that are timed as often as there are steps given: in nanoseconds, of the untouched model and of a mode."""

    def __init__(self, steps: list[tuple[float, float]]) -> None:
        self.steps, self.recorded = steps, list[str]()
        self.state: dict[str, object] = {}

    def timed(self, ab_run: ABRun, *, briefly: bool) -> Restart:
        untouched, mode = self.steps.pop(0)
        ab_run.samples.append({"best": [untouched], "default": [mode]})
        return Restart([[untouched, mode, mode, untouched]] * 8)

    def profile(self, path: Path) -> None:
        self.recorded.append(path.name)
        path.parent.mkdir(exist_ok=True)
        path.touch()


@pytest.mark.parametrize(
    ("facts", "left", "restarts", "speedup"),
    [
        (TRAINING, 100.0, [(2.2, 1.0), (1.1, 1.0)], 1.1),
        (TRAINING, 100.0, [(1.4, 1.0), (2.8, 1.0)], 1.4),
        (TRAINING, 100.0, [(1.2, 1.0)], 1.2),
        (TRAINING, -1.0, [(2.2, 1.0)], 2.2),
        (CPU, 100.0, [(2.2, 1.0), (1.1, 1.0)], 1.1),
    ],
    ids=["slow at first", "slower still", "as usual", "no time", "on a CPU"],
)
def test_an_untouched_model_that_something_slowed_is_timed_once_more(
    climb: Callable[..., tuple[State, Added]], monkeypatch: pytest.MonkeyPatch,
    facts: dict[str, Any], left: float, restarts: list[tuple[float, float]], speedup: float,
) -> None:  # fmt: skip
    """Its launches wait for a busy host, and a graph of launches does not: the gain would look too large."""
    made, _ = climb(facts)
    made.baseline.time = Figure(value=1.0)
    answer: Any = SimpleNamespace(kept=[])
    leave(made, left).answer = answer
    side = made.side(["compile"])
    ready = answered("01-plain-default", side, warm=warm({"allocated": 1}))
    made.baseline_worker, made.mode_workers = (
        answered("baseline", made.side([]), warm=warm({"allocated": 1})),
        {"default": ready},
    )
    timed_sides = Restarts(restarts)
    monkeypatch.setattr(mode_timing.WorkerGroup, "of", lambda *_: timed_sides)
    monkeypatch.setattr(mode_timing, "_choose_best", lambda *_: None)
    result = mode_timing.Race()
    mode_timing.time_modes(made, result, {"default": ready})
    assert result.modes["default"].speedup == pytest.approx(speedup)
    assert timed_sides.steps == []


@pytest.mark.parametrize("ended", [True, False])
def test_the_best_mode_is_recorded_before_its_memory_is_given_up(
    climb: Callable[..., tuple[State, Added]], monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """So that its verdict does not wait for room to load it once more."""
    made, pool = climb(TRAINING)
    started_sides = Restarts([(4.0, 2.0)])

    def took(state: State, result: mode_timing.Race, name: str, *_: object, **__: object) -> None:
        result.best, result.task, made.best_worker = name, made.mode_workers[name], made.mode_workers[name]

    side = made.side(["fused-optimizer", "compile"])
    ready = answered("01-plain-default", side, warm=warm({"allocated": 1}))
    made.baseline_worker, made.mode_workers = (
        answered("baseline", made.side([]), warm=warm({"allocated": 1})),
        {"default": ready},
    )
    monkeypatch.setattr(mode_timing.WorkerGroup, "of", lambda *_: started_sides)
    monkeypatch.setattr(mode_timing, "_make_best", took)
    monkeypatch.setattr(mode_timing, "_needs_memory", lambda *_: ended)
    result = mode_timing.Race()
    mode_timing.time_modes(made, result, {"default": ready})
    assert ready.ended == ended
    record = attempt(rung="plain", stack=list(side.rungs), modes=list(result.modes.values()))
    monkeypatch.setattr(made, "wait", lambda *_: None)
    plain._profile(made, record, "01-plain")
    assert started_sides.recorded == ["01-plain-default.json.gz" if ended else "01-plain.json.gz"]
    assert made.trace("01-plain").exists()
    assert pool.names == []  # no worker of it was begun


@pytest.mark.parametrize("dropout", [True, False])
def test_blocks_are_verified_at_their_own_precision_once_their_code_is_in_the_cache(
    climb: Callable[..., tuple[State, Added]], monkeypatch: pytest.MonkeyPatch, dropout: bool
) -> None:
    """With dropout it never is: a verification leaves that out."""
    monkeypatch.setattr(states, "usable_cores", lambda: 64)
    made, _ = climb({**TRAINING, **LAYERS, "dropout": dropout})
    made.numerics = "bf16"
    started(made)
    blocks = made.mode_workers["blocks-and-graph"].side.rungs

    def begun() -> list[str]:
        return [task.name.rpartition("-")[2] for task in made.mode_checks if task.side.rungs == blocks]

    assert begun() == (["exact", "bf16"] if dropout else ["exact"])
    mode_checks.note_likely(made, {"blocks-and-graph": made.mode_workers["blocks-and-graph"]}, {})
    assert begun() == ["exact", "bf16"]


def test_what_is_left_of_a_verification_comes_before_the_beginning_of_another(
    climb: Callable[..., tuple[State, Added]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(states, "usable_cores", lambda: 64)
    made, pool = climb({**TRAINING, **LAYERS})
    made.numerics = "bf16"
    started(made)
    pool.add(Task("01-plain-compile-and-graph-verify-exact", made.side([]), []))
    mode_checks.verify_remaining_parts(made, "blocks-and-graph")
    assert pool.tasks[0].name == "01-plain-blocks-and-graph-verify-bf16"


def test_of_a_mode_that_was_the_best_for_a_while_no_recording_is_kept(
    climb: Callable[..., tuple[State, Added]],
) -> None:
    made, _ = climb(TRAINING)
    before, after = answered("01-plain-cuda-graph", made.side([])), answered("01-plain-default", made.side([]))
    made.mode_workers = {"cuda-graph": before, "default": after}
    modes = {name: timed((), 1.01, name) for name in made.mode_workers}
    race = mode_timing.Race(modes, "cuda-graph", task=before)
    trace = made.trace(mode_timing.trace_name("cuda-graph"))
    trace.touch()
    start: Any = SimpleNamespace(witness=lambda name: Witness())
    mode_timing._make_best(made, race, "default", seen("best", "default"), start, beat=False)
    assert race.best == "default"
    assert before.ended
    assert not trace.exists()
