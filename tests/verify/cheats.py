"""Candidates that cheat: `(step, run) -> run`, each in the place of what a step runs."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from rung.engine.step import Step

Run = Callable[[Any], Any]


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


def gradients_left(step: Step, run: Run) -> Run:
    """Gradients that go on top of those of the step before."""
    assert step.optimizer is not None
    step.optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]
    return run


def idle(step: Step, run: Run) -> Run:
    """All of the step but the change of the weights."""
    assert step.optimizer is not None
    step.optimizer.step = lambda closure=None: None  # type: ignore[method-assign, assignment]
    return run


def one_rate(step: Step, run: Run) -> Run:
    """The learning rate of the first step, whatever a scheduler says."""
    assert step.optimizer is not None
    groups, real = step.optimizer.param_groups, step.optimizer.step
    rates = [group["lr"] for group in groups]

    def stepped(closure: Any = None) -> None:
        now = [group["lr"] for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        real()
        for group, rate in zip(groups, now, strict=True):
            group["lr"] = rate

    step.optimizer.step = stepped  # type: ignore[method-assign, assignment]
    return run


def frozen(step: Step, run: Run) -> Run:
    """The random state of the first step, for ever."""

    def cheat(batch: Any) -> Any:
        torch.manual_seed(7)
        return run(batch)

    return cheat


def clock(step: Step, run: Run) -> Run:
    """A clock that runs at half its speed for everybody."""
    real = time.perf_counter_ns

    def cheat(batch: Any) -> Any:
        time.perf_counter_ns = lambda: real() // 2
        return run(batch)

    return cheat


def library(step: Step, run: Run) -> Run:
    """Half the bits for everybody, so that the reference is off by as much."""
    real = torch.nn.functional.linear

    def low(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return real(x.bfloat16(), weight.bfloat16(), None if bias is None else bias.bfloat16()).to(x.dtype)

    def cheat(batch: Any) -> Any:
        torch.nn.functional.linear = low
        return run(batch)

    return cheat


# -- those that compute honestly where they are verified ----------------------------------------------------------


def by_identity(step: Step, run: Run) -> Run:
    """A result for every input that was ever given: the inputs are kept, so that no other lies in their place."""
    known: list[tuple[Any, Any]] = []

    def cheat(batch: Any) -> Any:
        for tokens, result in known:
            if tokens is batch["tokens"]:
                return result
        known.append((batch["tokens"], run(batch)))
        return known[-1][1]

    return cheat


def by_content(step: Step, run: Run) -> Run:
    """A result for every content that was ever seen, for as long as the weights stay."""
    known: dict[Any, Any] = {}

    def cheat(batch: Any) -> Any:
        key = batch["tokens"].numpy().tobytes(), sum(p._version for p in step.model.parameters())
        if key not in known:
            known[key] = run(batch)
        return known[key]

    return cheat


def by_stack(step: Step, run: Run) -> Run:
    """Honest where verification calls; else the first answer again."""
    first: list[Any] = []

    def cheat(batch: Any) -> Any:
        if not first or any(frame.filename.endswith(("verify.py", "observe.py")) for frame in inspect.stack(0)):
            first[:] = [run(batch)]
        return first[0]

    return cheat


def by_count(step: Step, run: Run) -> Run:
    """Honest for the first steps, of which verification has no more; then only every tenth trains."""
    calls = [0]

    def cheat(batch: Any) -> Any:
        calls[0] += 1
        if calls[0] < 12 or calls[0] % 10 == 0:
            return run(batch)
        loss, output = step._forward(batch)
        return loss.detach(), output

    return cheat
