"""Candidates that cheat: each is refused, by what it computes or by what it takes, in a sentence that says which."""

import math
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cheats
import pytest
import torch
from attempt_records import attempt, restarts
from torch import nn

from rung.engine.step import Step
from rung.hardware import pick
from rung.ladder.candidate import Candidate
from rung.ladder.climb.tamper_checks import reason_to_distrust
from rung.ladder.climb.verdict import rejection
from rung.measure import CLIMB
from rung.plan import Plan
from rung.records import measured
from rung.records.compare import Interleaved
from rung.rungs import BY_NAME
from rung.side import Setup, Side
from rung.timing import interleaved, worker_group
from rung.timing.ab_run import ABRun
from rung.verify import observe as observing
from rung.verify import timed_run_checks
from rung.verify.observe import observe
from rung.verify.randomness import active, without_dropout
from rung.verify.timed_run_checks import refill, slowdown_on_new_inputs
from rung.verify.verify import verify
from rung.workload import Workload, load

CPU = pick("cpu")
OPTIONS = {"hidden-dim": "32", "num-layers": "1", "num-heads": "2", "seq-len": "12", "batch-size": "4"}


def workload(mode: str) -> Workload:
    return load("tiny-transformer", {**OPTIONS, "mode": mode})


def dropping() -> Workload:
    return Workload(
        name="drops",
        model=lambda: nn.Sequential(nn.Linear(16, 64), nn.Dropout(0.2), nn.Linear(64, 8)),
        inputs=lambda seed: torch.randn(6, 16, generator=torch.Generator().manual_seed(seed)),
        mode="train",
        loss=lambda output, batch: output.square().mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    )


def cheating(step: Step, cheat: Callable[..., Any]) -> Step:
    """The step with a cheat in it, also after it was made fresh."""
    fresh = step.fresh

    def anew() -> None:
        fresh()
        step._run = cheat(step, step._run)

    step.fresh = anew  # type: ignore[method-assign]
    anew()
    return step


def verified(cheat: Callable[..., Any], mode: str = "infer", w: Workload | None = None) -> measured.Verification:
    given = w or workload(mode)

    def build(model: nn.Module, plan: Plan) -> Step:
        # The rates are already 0 where results are compared run by run.
        made = given if not w or active(model) else without_dropout(given)
        return cheating(Step(made, model, plan, CPU), cheat)

    return verify(given, Plan(), CPU, build).record()


def honest(step: Step, run: Any) -> Any:
    return run


# The cheat, the mode, and what verification says of it.
REFUSED = [
    (cheats.reused, "infer", "output is off by"),
    (cheats.by_address, "infer", "output is off by"),
    (cheats.one_behind, "infer", "output is off by"),
    (cheats.one_buffer, "infer", "output is (off by|not finite)"),
    (cheats.poisoned, "infer", "output is (off by|not finite)"),
    (cheats.mutating, "infer", "changes its inputs"),
    (cheats.lowered, "infer", "output is off by"),
    (cheats.lowered_for_all, "infer", "changes float32 matmul precision for the whole process"),
    (cheats.library, "infer", "replaces torch.nn.functional.linear for the whole process"),
    (cheats.clock, "infer", "replaces time.perf_counter_ns for the whole process"),
    (cheats.old_weights, "infer", "output is off by"),
    (cheats.half_the_batch, "infer", "output is off by"),
    (cheats.skipping, "train", "change of .* over 3 steps is off by"),
    (cheats.idle, "train", "change of .* over 3 steps is off by"),
    (cheats.one_rate, "train", "change of .* over 3 steps is off by"),
    (cheats.gradients_left, "train", "gradient of .* is off by"),
]


@pytest.mark.parametrize(("cheat", "mode", "says"), REFUSED, ids=lambda item: getattr(item, "__name__", ""))
def test_a_cheat_is_refused_by_verification(cheat: Any, mode: str, says: str) -> None:
    before = torch.get_float32_matmul_precision(), time.perf_counter_ns, torch.nn.functional.linear
    found = verified(cheat, mode)
    assert not found.passed
    assert re.search(says, " ".join(found.failures)), found.failures
    assert before == (torch.get_float32_matmul_precision(), time.perf_counter_ns, torch.nn.functional.linear)


def test_a_random_state_that_is_frozen_is_refused() -> None:
    assert "the same results in every run" in verified(cheats.frozen, w=dropping()).failures[0]
    assert verified(honest, w=dropping()).passed


def test_the_same_harness_lets_the_honest_pass() -> None:
    assert verified(honest).passed
    assert verified(honest, "train").passed


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_model_whose_results_are_kept_on_the_host_is_judged_the_same(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "LARGE", 0)
    assert verified(honest, mode).passed
    assert not verified(cheats.skipping if mode == "train" else cheats.old_weights, mode).passed


# -- honest where they are verified: the process that was timed is looked at, too -------------------------------------


def timed(cheat: Callable[..., Any], mode: str, device: str = "cpu") -> Interleaved:
    """What a climb would record of a candidate that claims to be four times as fast."""
    candidate = Candidate()
    candidate.open("tiny-transformer", {**OPTIONS, "mode": mode}, [], device)
    candidate.first()
    cheating(candidate.step, cheat)
    try:
        candidate.block(16)
        if candidate.watch():
            candidate.block(2)
        return restarts(witness=candidate.witness())
    finally:
        candidate._scope.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("cheat", "mode", "says"),
    [
        (
            cheats.by_identity,
            "infer",
            "while it was timed, its results differed from the baseline's: .*output is off by",
        ),
        (cheats.by_content, "infer", "as long on new inputs"),
        (cheats.by_stack, "infer", "while it was timed, its results differed from the baseline's: .*output is off by"),
        (cheats.by_count, "train", "the weights do not change in a step"),
    ],
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_a_cheat_that_is_honest_where_it_is_verified_is_refused_by_how_it_was_timed(
    cheat: Any, mode: str, says: str
) -> None:
    if mode == "infer":
        assert verified(cheat, mode).passed
    # Of one that is told by how long steps take, others on the cores may hide it once.
    assert any(re.search(says, str(reason_to_distrust(timed(cheat, mode), 4.0))) for _ in range(3))


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_the_honest_give_what_the_baseline_gives_while_they_are_timed(mode: str) -> None:
    witness = timed(honest, mode).witness
    assert (witness.failures, witness.left) == ([], "")
    assert (witness.unseen is None) is (mode == "train")


def test_a_model_too_large_to_be_held_twice_is_said_to_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "LARGE", 0)
    assert "too large" in str(timed(honest, "train").witness.left)


@pytest.mark.parametrize("where", ["state", "observe_result"])
def test_a_candidate_is_not_failed_by_the_copies_that_looking_at_it_takes(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("none left")

    monkeypatch.setattr(timed_run_checks, where, full)
    found = timed(honest, "train")
    assert "no memory for copies" in str(found.witness.left)
    assert reason_to_distrust(found, 2.0) is None


def test_new_inputs_are_timed_behind_a_step_as_the_same_ones_again_are() -> None:
    """A step that is slow after a pause, as one is on cold caches, is not one that keeps its answers."""
    made = workload("infer")
    step = Step(made, made.model().eval(), Plan(), CPU)
    paused = [False]

    def make(seed: int) -> Any:
        paused[0] = True
        return made.inputs(seed)

    def slow_to_start(batch: Any) -> Any:
        time.sleep(0.02 if paused[0] else 0.005)
        paused[0] = False

    step._run = slow_to_start  # type: ignore[assignment]
    found = slowdown_on_new_inputs(step, [made.inputs(k) for k in range(4)], make, CPU)
    assert found is not None
    assert found < 1.5


def test_a_step_that_waits_for_a_core_on_new_inputs_is_not_one_that_keeps_its_answers() -> None:
    """On a machine that others use a step takes several times as long by chance, and does no more work."""
    made = workload("infer")
    step = Step(made, made.model().eval(), Plan(), CPU)
    since_new = [0]

    def make(seed: int) -> Any:
        since_new[0] = 0
        return made.inputs(seed)

    def waits(batch: Any) -> Any:
        since_new[0] += 1
        time.sleep(0.02 if since_new[0] == 2 else 0.002)  # the first step after inputs were made is on others
        return sum(range(20_000))

    batches = [made.inputs(0), made.inputs(1)]
    step._run = waits  # type: ignore[assignment]
    found = slowdown_on_new_inputs(step, batches, make, CPU)
    assert found is not None
    assert found < 2.0


def test_a_machine_that_is_now_and_then_three_times_as_slow_is_no_memory_of_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whose clocks both say so, as where a hypervisor gives cores to others. A step that keeps its answers is slow on all that is new."""
    made = workload("infer")
    step = Step(made, made.model().eval(), Plan(), CPU)
    now, steps, chance = [0], [0], random.Random(0)
    clock = SimpleNamespace(
        perf_counter_ns=lambda: now[0], process_time_ns=lambda: now[0], monotonic=lambda: now[0] / 1e9
    )
    monkeypatch.setattr(timed_run_checks, "time", clock)

    def busy(batch: Any) -> None:
        now[0] += int(400e6 * chance.choice([1, 1, 2, 3]))

    def keeps(batch: Any) -> None:
        steps[0] += 1
        now[0] += int(400e6 * chance.choice([1, 1, 2, 3]) * (4 if steps[0] % 3 == 2 else 1))

    batches = [made.inputs(k) for k in range(4)]
    step._run = busy  # type: ignore[assignment]
    assert max(slowdown_on_new_inputs(step, batches, made.inputs, CPU) or 0.0 for _ in range(20)) < 1.25
    step._run = keeps  # type: ignore[assignment]
    assert min(slowdown_on_new_inputs(step, batches, made.inputs, CPU) or 0.0 for _ in range(20)) > 1.25


def test_inputs_of_other_shapes_are_not_taken_for_new_ones() -> None:
    """They may have to be compiled: that they take longer says nothing."""
    made = Workload("any length", lambda: nn.Linear(8, 8), lambda seed: torch.randn(2 + seed % 97, 8))
    step = Step(made, made.model().eval(), Plan(), CPU)
    batches = [torch.randn(200, 8)]
    assert slowdown_on_new_inputs(step, batches, made.inputs, CPU) is None
    assert not refill({"x": batches[0], "n": 3}, {"x": batches[0], "n": 4})
    assert refill({"x": batches[0], "n": 3}, {"x": batches[0] + 1, "n": 3})


def test_inputs_that_torch_cannot_copy_in_place_are_left_as_they_are() -> None:
    def sparse(*diagonal: float) -> torch.Tensor:
        return torch.diag(torch.tensor(diagonal)).to_sparse_csr()

    mine = sparse(1.0, 0.0, 3.0)
    assert not refill([mine], [sparse(1.0, 2.0, 3.0)])  # another number of elements
    assert refill([mine], [sparse(0.0, 5.0, 6.0)])
    assert torch.equal(mine.to_dense(), torch.diag(torch.tensor([0.0, 5.0, 6.0])))
    for layout in (torch.strided, torch.jagged):
        one, other = (torch.nested.nested_tensor([torch.ones(n), torch.ones(3)], layout=layout) for n in (1, 2))
        assert not refill([one], [other])
    assert not refill([one], [torch.ones(2, 3)])


def test_inputs_that_want_a_gradient_are_refilled_and_expanded_ones_are_left_as_they_are() -> None:
    held = torch.zeros(3, requires_grad=True)
    assert refill([held], [torch.ones(3, requires_grad=True)])
    assert held.tolist() == [1, 1, 1]
    mine = [torch.zeros(3), torch.zeros(1, 3).expand(2, 3)]
    assert not refill(mine, [torch.ones(3), torch.ones(1, 3).expand(2, 3)])
    assert mine[0].tolist() == [0, 0, 0]


# -- clocks ------------------------------------------------------------------------------------------------------------


class Claims:
    """A worker in this process: by the clock of who waits it takes `takes` seconds for a step, and it says `says`."""

    now = 0.0

    def __init__(self, takes: float, says: float) -> None:
        self.takes, self.says = takes, says

    def warm(self, seconds: float) -> dict[str, Any]:
        return {"steady": True, "first_run_seconds": 1.0, "runs": 3, "memory": {"x": 1}}

    def estimate(self) -> float:
        return self.says * 1e9

    def block(self, count: int) -> dict[str, Any]:
        Claims.now += 0.0001 + count * self.takes
        return {"samples": [self.says * 1e9] * count, "outside": 0.0, "calls": count}

    def memory(self) -> dict[str, int]:
        return {"x": 1}

    def open(self, **_: Any) -> dict[str, Any]:
        device = {"kind": "cpu", "name": "a CPU", "memory": 0}
        return {
            "name": "x",
            "mode": "infer",
            "samples": None,
            "tokens": None,
            "steps": 1,
            "environment": {"device": device},
        }


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Claims, Claims], ABRun]:
    def run(best: Claims, candidate: Claims, left: Callable[[], float] = lambda: 0.0) -> ABRun:
        served = {"best": best, "candidate": candidate}

        class Stand:
            def __init__(self, log: str) -> None:
                self.served = served[log.rpartition("-")[2]]

            def send(self, method: str, **arguments: Any) -> None:
                self.answer = lambda: getattr(self.served, method)(**arguments)

            def receive(self, method: str, deadline: float, waited: float = 0.0) -> Any:
                return self.answer() if method != "open" else self.served.open()

        monkeypatch.setattr(worker_group, "open_side", lambda stack, setup, side, log: Stand(log))
        for module in (worker_group, interleaved):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: Claims.now))
        sides = {name: Side("x") for name in served}
        return interleaved.run_interleaved(Setup(None, tmp_path), sides, log="x", left=left, looks=CLIMB)

    return run


@pytest.mark.parametrize(
    ("takes", "says", "why"),
    [
        (0.004, 0.0005, "missing from the times that it reports"),
        (0.004, 0.0028, "the process that waited for it measured"),
        (0.004, 0.004, None),
        (0.002, 0.002, None),
    ],
    ids=["an eighth", "two thirds", "the truth", "the truth, and faster"],
)
def test_a_clock_that_was_tampered_with_is_seen_by_the_one_who_waits(
    takes: float, says: float, why: str | None, compared: Any
) -> None:
    found = compared(Claims(0.004, 0.004), Claims(takes, says))
    record = attempt(hidden=found.hidden)
    found.comparison = SimpleNamespace(answer="faster", speedup=SimpleNamespace(value=0.004 / says, low=1.0))
    verdict = rejection(record, BY_NAME["compile"], found.comparison, 0.01)
    assert (verdict is None) is (why is None)
    if verdict and why:
        assert why in verdict[1]


def test_a_first_restart_that_compiled_does_not_spend_the_budget_of_the_ones_that_find_it_done(compared: Any) -> None:
    class Compiles(Claims):
        compiled = False

        def warm(self, seconds: float) -> dict[str, Any]:
            Claims.now += 200.0 if self.compiled else 2000.0
            self.compiled = True
            return super().warm(seconds)

    end = Claims.now + 4550.0
    found = compared(Claims(0.004, 0.004), Compiles(0.002, 0.002), lambda: end - Claims.now)
    assert len(found.restarts) == 3
    assert not found.comparison.cut
    end = Claims.now + 4000.0  # as long as the first took once more, with a margin, is all that is known after it
    found = compared(Claims(0.004, 0.004), Compiles(0.002, 0.002), lambda: end - Claims.now)
    assert len(found.restarts) == 1
    assert found.comparison.cut


@pytest.mark.parametrize(("waited", "rounds"), [(0.2e6, 8), (4e6, 23)], ids=["calm", "busy"])
def test_where_steps_wait_for_a_core_there_are_more_rounds_and_it_is_said(
    waited: float, rounds: int, compared: Any
) -> None:
    class Shared(Claims):
        def block(self, count: int) -> dict[str, Any]:
            calls = super().block(count)
            return {**calls, "cores": {"ran": count * self.takes * 2e9, "waited": count * waited}}

    found = compared(Shared(0.004, 0.004), Shared(0.002, 0.002))
    assert [len(restart.rounds) for restart in (*found.restarts, *found.cpu_restarts)] == [rounds] * 2
    assert found.cpu_restarts[0].log_ratio() == pytest.approx(math.log(2))
    assert found.waited == {
        "best": pytest.approx(waited / (waited + 8e6)),
        "candidate": pytest.approx(waited / (waited + 4e6)),
    }
    told = found.record()
    assert told.cpu_time is not None
    assert told.cpu_time.speedup.value == pytest.approx(2.0)
    assert any("best: its threads waited for a core 33% of the time" in w for w in told.warnings) is (rounds > 10)


@pytest.mark.parametrize(
    ("honest", "delayed", "believed"), [(6, 0, False), (1, 6, True)], ids=["a lie", "a busy machine"]
)
def test_a_clock_that_is_right_now_and_then_is_not_right(
    honest: int, delayed: int, believed: bool, compared: Any
) -> None:
    """In one of so many blocks the truth is told; after one of so many the machine was busy for longer than the block."""

    class Now(Claims):
        blocks = 0

        def block(self, count: int) -> dict[str, Any]:
            self.blocks += 1
            said = super().block(count)
            Claims.now += 2 * count * self.takes if delayed and self.blocks % delayed == 0 else 0.0
            return {**said, "samples": [1e9 * self.takes] * count} if self.blocks % honest == 0 else said

    hidden = compared(Claims(0.004, 0.004), Now(0.004, 0.004 if delayed else 0.0005)).hidden
    why = reason_to_distrust(attempt(hidden=hidden), 8.0)
    assert (why is None) is believed, hidden


def test_that_it_was_timed_is_said_once() -> None:
    said = [f"3 parameters get no gradient ({timed_run_checks.CASE})"]
    found = attempt(hidden={"best": 0.0, "candidate": 0.0}, witness=measured.Witness(failures=said))
    assert reason_to_distrust(found, 2.0) == (
        "while it was timed, its results differed from the baseline's: 3 parameters get no gradient."
    )


def test_what_was_left_in_memory_cannot_look_right() -> None:
    """The memory that a candidate fails to write is NaN."""
    w = workload("infer")
    step = Step(w, w.model().eval(), Plan(), CPU)
    step._run = lambda batch: (None, torch.empty(4, 12, 1000))  # type: ignore[assignment]
    seen = [observe(step, None, w.inputs(k)) for k in range(3)]
    assert not any(torch.equal(s.values["output"], torch.zeros(4, 12, 1000)) for s in seen)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_work_left_on_another_stream_is_refused() -> None:
    """A CPU's stand-in is `one_buffer`."""

    def elsewhere(step: Step, run: Any) -> Any:
        stream = torch.cuda.Stream()

        def cheat(batch: Any) -> Any:
            loss, output = run(batch)
            late = torch.full_like(output, float("nan"))
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                torch.cuda._sleep(200_000_000)
                late.copy_(output)
            return loss, late

        return cheat

    gpu, w = pick("cuda"), workload("infer")
    found = verify(w, Plan(), gpu, lambda model, plan: cheating(Step(w, model, plan, gpu), elsewhere)).record()
    assert not found.passed
