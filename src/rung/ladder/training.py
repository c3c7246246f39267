"""What a few optimizer steps do to the weights, and what an optimizer was told: where a candidate's optimizer is another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from rung.hardware.device import Device
from rung.ladder.observe import Row, identical, large, relative
from rung.ladder.perturb import put, state
from rung.workload import Batch

# Settings of an optimizer that say how it computes, not what.
HOW = {"params", "fused", "foreach", "capturable", "lr"}


@dataclass(frozen=True)
class Training:
    """`count` optimizer steps, the k-th on `batch(k)`, the last of them at half the learning rate."""

    count: int
    batch: Callable[[int], Batch]
    device: Device

    def change(
        self,
        step: Any,
        weights: dict[str, torch.Tensor],
        run: Callable[[Any, Batch], Any] = lambda step, batch: step(batch),
    ) -> dict[str, torch.Tensor]:
        """Of every weight, from where it began to where it is after all steps, in float64: those of a large model lie in the
        host's memory."""
        step.fresh()
        put(step.model, weights)
        for k in range(self.count):
            if k == self.count - 1:
                _slower(step.optimizer)
            run(step, self.batch(k))
        where = "cpu" if large(step.model) else self.device.torch_name
        found = {n: (t.detach().double() - weights[n].double()).to(where) for n, t in state(step.model).items()
                 if t.is_floating_point()}  # fmt: skip
        if large(step.model):
            step.model.zero_grad(set_to_none=True)
            step.fresh()
        return found

    def rows(
        self, truth: dict[str, torch.Tensor], mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]
    ) -> list[Row]:
        """A row for every weight that changes."""
        return [
            Row(f"change of {name} over {self.count} steps", "optimizer steps", relative(theirs[name], right), relative(mine[name], right))
            for name, right in truth.items()
            if bool(right.any()) or bool(theirs[name].any())
        ]  # fmt: skip

    def other_integers(self, baseline: torch.nn.Module, candidate: torch.nn.Module) -> list[str]:
        """Of what is no floating-point number, as counters are, what the candidate's steps left otherwise."""
        theirs = state(candidate)
        return [
            f"after {self.count} steps the candidate's {n} is another than the baseline's"
            for n, t in state(baseline).items()
            if not t.is_floating_point() and not identical(t, theirs[n])
        ]


def other_settings(mine: Any, theirs: Any) -> list[str]:
    """What an optimizer was told that the workload's own was not: three steps may hardly show it."""
    if mine is None or theirs is None:
        return []
    said = []
    for a, b in zip(mine.param_groups, theirs.param_groups, strict=False):
        said += [f"the candidate's optimizer has {k} = {b.get(k)}, the baseline's {a[k]}"
                 for k in a if k not in HOW and k in b and a[k] != b[k]]  # fmt: skip
        if len(a["params"]) != len(b["params"]):
            said.append(
                f"the candidate's optimizer steps {len(b['params'])} parameters, the baseline's {len(a['params'])}"
            )
    return said


def _slower(optimizer: Any) -> None:
    """Half the learning rate, as a scheduler would set it: a rate that was built in shows."""
    for group in optimizer.param_groups:
        if group.get("lr") is not None:  # some find their own
            group["lr"] = group["lr"] / 2
