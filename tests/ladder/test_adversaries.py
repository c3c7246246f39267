"""Candidates that cheat: each is refused, by what it computes or by what it takes."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rung.hardware import pick
from rung.ladder import duel
from rung.ladder import observe as observing
from rung.ladder.climb.attempt import MOST_HIDDEN, _no_gain
from rung.ladder.observe import observe
from rung.ladder.plan import Plan
from rung.ladder.rungs import BY_NAME
from rung.ladder.step import Step
from rung.ladder.verify import verify
from rung.measure import CLIMB
from rung.workload import Workload, load

CPU = pick("cpu")
Run = Callable[[Any], Any]


def workload(mode: str) -> Workload:
    return load("tiny-transformer", {"hidden-dim": "32", "num-layers": "1", "num-heads": "2", "seq-len": "12",
                                     "batch-size": "4", "mode": mode})  # fmt: skip


def verified(cheat: Callable[[Step, Run], Run], mode: str = "infer") -> dict[str, Any]:
    w = workload(mode)

    def build(model: nn.Module, plan: Plan) -> Step:
        step = Step(w, model, plan, CPU)
        fresh = step.fresh

        def anew() -> None:
            fresh()
            step._run = cheat(step, step._run)  # type: ignore[assignment]

        step.fresh = anew  # type: ignore[method-assign]
        anew()
        return step

    return verify(w, Plan(), CPU, build).as_dict()


def reused(step: Step, run: Run) -> Run:
    """The result of the first call of a shape, for ever."""
    known: dict[Any, Any] = {}
    return lambda batch: known.setdefault(batch["tokens"].shape, None) or known.__setitem__(
        batch["tokens"].shape, run(batch)
    ) or known[batch["tokens"].shape]  # fmt: skip


def by_address(step: Step, run: Run) -> Run:
    """A result remembered by where the input lies, which the allocator gives out again."""
    known: dict[int, Any] = {}

    def cheat(batch: Any) -> Any:
        key = batch["tokens"].data_ptr() % 64  # an allocator gives addresses out again; here it always does
        if key not in known:
            known[key] = run(batch)
        return known[key]

    return cheat


def one_behind(step: Step, run: Run) -> Run:
    """The output of the call before, while this one is still on its way."""
    last: list[Any] = []

    def cheat(batch: Any) -> Any:
        now = run(batch)
        same = [r for r in last if r[1].shape == now[1].shape]
        last[:] = [now]
        return same[0] if same else now

    return cheat


def one_buffer(step: Step, run: Run) -> Run:
    """An output that somebody else fills later: on a GPU another stream, here another thread."""

    def cheat(batch: Any) -> Any:
        loss, output = run(batch)
        late = torch.empty_like(output)
        threading.Timer(0.2, lambda: late.copy_(output)).start()
        return loss, late

    return cheat


def poisoned(step: Step, run: Run) -> Run:
    """A part of the output that is not written at all."""

    def cheat(batch: Any) -> Any:
        loss, output = run(batch)
        hole = torch.empty_like(output)
        hole[:, :-1] = output[:, :-1]
        return loss, hole

    return cheat


def mutating(step: Step, run: Run) -> Run:
    """An input used as scratch space."""

    def cheat(batch: Any) -> Any:
        result = run(batch)
        batch["tokens"].zero_()
        return result

    return cheat


def lowered(step: Step, run: Run) -> Run:
    """Half the bits, and nobody told."""

    def cheat(batch: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, output = run(batch)
        return loss, output.float()

    return cheat


def lowered_for_all(step: Step, run: Run) -> Run:
    """The precision of the whole process, the reference's with it."""

    def cheat(batch: Any) -> Any:
        torch.set_float32_matmul_precision("medium")
        return run(batch)

    return cheat


def old_weights(step: Step, run: Run) -> Run:
    """Weights as they were at the first call."""
    kept: dict[str, torch.Tensor] = {}

    def cheat(batch: Any) -> Any:
        if not kept:
            kept.update({n: p.detach().clone() for n, p in step.model.named_parameters()})
        now = {n: p.detach().clone() for n, p in step.model.named_parameters()}
        step.model.load_state_dict(kept, strict=False)
        result = run(batch)
        step.model.load_state_dict(now, strict=False)
        return result

    return cheat


def skipping(step: Step, run: Run) -> Run:
    """Every second step of the optimizer left out."""
    calls = [0]

    def cheat(batch: Any) -> Any:
        calls[0] += 1
        if calls[0] % 2:
            return run(batch)
        before = {n: p.detach().clone() for n, p in step.model.named_parameters()}
        result = run(batch)
        with torch.no_grad():
            for n, p in step.model.named_parameters():
                p.copy_(before[n])
        return result

    return cheat


def half_the_batch(step: Step, run: Run) -> Run:
    """The first half of the batch, twice."""

    def cheat(batch: Any) -> Any:
        tokens = batch["tokens"]
        half = {k: v[: max(1, len(tokens) // 2)] for k, v in batch.items()}
        loss, output = run(half)
        return loss, torch.cat((output, output, output))[: len(tokens)]

    return cheat


@pytest.mark.parametrize(
    "cheat",
    [reused, by_address, one_behind, one_buffer, poisoned, mutating, lowered, lowered_for_all, old_weights, half_the_batch],
    ids=lambda cheat: cheat.__name__,
)  # fmt: skip
def test_a_cheat_is_refused_by_verification(cheat: Any) -> None:
    before = torch.get_float32_matmul_precision()
    found = verified(cheat)
    assert not found["passed"]
    assert found["failures"]
    assert torch.get_float32_matmul_precision() == before


def test_an_optimizer_that_skips_steps_is_refused() -> None:
    assert not verified(skipping, "train")["passed"]


def test_the_same_harness_lets_the_honest_pass() -> None:
    assert verified(lambda step, run: run)["passed"]
    assert verified(lambda step, run: run, "train")["passed"]


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_a_model_whose_results_are_kept_on_the_host_is_judged_the_same(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observing, "LARGE", 0)
    assert verified(lambda step, run: run, mode)["passed"]
    assert not verified(skipping if mode == "train" else old_weights, mode)["passed"]


class Claims:
    """A worker in this process: it takes `takes` seconds for a step and says `says`."""

    def __init__(self, takes: float, says: float) -> None:
        self.takes, self.says = takes, says

    def warm(self, seconds: float) -> dict[str, Any]:
        return {"steady": True, "first_run_seconds": 1.0, "runs": 3, "memory": {"x": 1}}

    def estimate(self) -> float:
        return self.says * 1e9

    def block(self, count: int) -> dict[str, Any]:
        time.sleep(count * self.takes)
        return {"samples": [self.says * 1e9] * count, "outside": 0.0, "calls": count}

    def memory(self) -> dict[str, int]:
        return {"x": 1}

    def open(self, **_: Any) -> dict[str, Any]:
        return {"environment": {"device": {"kind": "cpu"}}}


@pytest.fixture
def fought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Claims, Claims], duel.Duel]:
    def fight(best: Claims, candidate: Claims) -> duel.Duel:
        served = {"best": best, "candidate": candidate}

        class Stand:
            def __init__(self, log: str) -> None:
                self.served = served[log.rpartition("-")[2]]

            def send(self, method: str, **arguments: Any) -> None:
                self.answer = lambda: getattr(self.served, method)(**arguments)

            def receive(self, method: str, deadline: float) -> Any:
                return self.answer() if method != "open" else self.served.open()

        monkeypatch.setattr(duel, "open_worker", lambda stack, setup, side, log: Stand(log))
        sides = {name: duel.Side("x") for name in served}
        return duel.fight(duel.Setup(None, tmp_path), sides, log="x", left=lambda: 0.0, looks=CLIMB)

    return fight


@pytest.mark.parametrize(("takes", "says", "believed"), [(0.004, 0.0005, False), (0.004, 0.004, True)])
def test_a_clock_that_was_tampered_with_is_seen_by_the_one_who_waits(
    takes: float, says: float, believed: bool, fought: Any
) -> None:
    found = fought(Claims(0.004, 0.004), Claims(takes, says))
    assert (found.hidden["candidate"] <= MOST_HIDDEN) is believed
    record = {"hidden": found.hidden, "cut": False, "first_run_seconds": {"best": 1.0, "candidate": 1.0}}
    found.comparison = type(found.comparison)(
        **{**found.comparison.as_dict(), "answer": "faster", "speedup": found.comparison.speedup}
    )
    verdict = _no_gain(record, BY_NAME["compile"], found)
    assert (verdict is None) is believed
    if verdict:
        assert "outside of the times that it reports" in verdict[1]


def test_what_was_left_in_memory_cannot_look_right() -> None:
    """The memory that a candidate fails to write is NaN."""
    w = workload("infer")
    step = Step(w, w.model().eval(), Plan(), CPU)
    step._run = lambda batch: (None, torch.empty(4, 12, 1000))  # type: ignore[assignment]
    seen = [observe(step, None, w.inputs(k)) for k in range(3)]
    assert not any(torch.equal(s.values["output"], torch.zeros(4, 12, 1000)) for s in seen)
