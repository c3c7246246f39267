"""Do the ranks of a job train one model? Finds mistakes that raise no error: ranks that see the same data, gradients that are not exchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rung.engine.parallel import all_tensor_parallel, sharded, tensor_parallel
from rung.engine.step import Step
from rung.hardware.device import Device
from rung.hardware.ranks import Ranks
from rung.plan import Plan
from rung.verify.observe import own_copy
from rung.verify.randomness import active
from rung.workload import Workload
from rung.workload.copy_model import copy_model

# Relative L2 error of a gradient: bfloat16 leaves far less, a gradient that another rank had no part in far more.
APART = 0.1
CHUNK = 1 << 20  # elements that are summed at a time, in float64
SMALL = 1e-6  # of the largest gradient: what is far smaller is rounding


class TrainedTogether:
    """Make one before the first step, on every rank. Every rank has to call the same methods."""

    def __init__(self, workload: Workload, model: torch.nn.Module, called: torch.nn.Module, device: Device) -> None:
        """called: what is called in the model's place (`rung.engine.parallel`)."""
        self._workload, self._model, self._called, self._device = workload, model, called, device
        # Of shards nothing is asked: each rank has its own.
        self._whole = workload.parallel != "fsdp2" and not sharded(model)
        self._alike = self._whole and _equal_on_all(_sums(list(model.parameters())))

    def doubts(self, batch: Any) -> list[str]:
        """A sentence for everything that is wrong once steps were taken. batch: of this rank."""
        problems = self._batch_problems(batch)
        if self._workload.mode != "train":
            return problems
        if apart := self.gone_apart():
            problems.append(f"{apart}: not all of their gradients are exchanged.")
        elif self._whole and self._called is not self._model and (odd := self._not_averaged(batch)):
            problems.append(f"the gradient of {odd} is not the mean of the gradients on the ranks' own batches.")
        return problems

    def _batch_problems(self, batch: Any) -> list[str]:
        tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
        everywhere = Ranks.here.all(_sums(tensors))
        same = _the_same(everywhere)
        if same and not tensor_parallel(self._model):
            return [f"ranks {same[0]} and {same[1]} get the same batch: `inputs` ignores its seed or the rank."]
        other = next((rank for rank, sums in enumerate(everywhere) if sums != everywhere[0]), None)
        if other and all_tensor_parallel(self._model):
            return [
                f"ranks 0 and {other} get different batches, though they compute parts of the same products: that is right where each gets its part of "
                "one batch; else give `inputs` the keywords rank and world, and the same batch to all."
            ]
        return []

    def gone_apart(self) -> str:
        """Says that weights which were equal on all ranks are so no longer, though all took the same steps; empty where they are. Of
        shards that is not asked."""
        trained = self._workload.mode == "train" and self._alike
        return (
            "the weights of the ranks diverge"
            if trained and not _equal_on_all(_sums(list(self._model.parameters())))
            else ""
        )

    def _not_averaged(self, batch: Any) -> str:
        """The first parameter whose gradient, from one forward and backward of the ranks, is not the mean of those that each computes by
        itself; empty where all are, where dropout has every run compute another, and where a rank lacks memory to look."""
        if active(self._model):
            return ""
        try:
            alone = copy_model(self._model)
            own = self._gradients(alone, alone, batch)
        except torch.OutOfMemoryError:
            own = []
        if Ranks.here.most([float(not own)])[0]:  # before any of them waits for the others
            return ""
        together = self._gradients(self._model, self._called, batch)
        for parameter in self._model.parameters():
            parameter.grad = None
        means = [None if g is None else self._mean(g) for g in own]
        largest = max((float(m.norm()) for m in means if m is not None), default=0.0)
        for (name, _), mean, got in zip(self._model.named_parameters(), means, together, strict=True):
            size = 0.0 if mean is None else float(mean.norm())
            if mean is None or size <= SMALL * largest:
                continue
            if got is None or float((got - mean).norm()) > APART * size:
                return str(name)
        return ""

    def _gradients(self, model: torch.nn.Module, called: torch.nn.Module, batch: Any) -> list[torch.Tensor | None]:
        """Of each parameter of a model, from one step's forward and backward; the optimizer is not run."""
        for parameter in model.parameters():
            parameter.grad = None
        step = Step(self._workload, model, Plan(), self._device, called=called)
        loss = step.forward(own_copy(batch))[0]  # which may write to it
        assert loss is not None
        loss.backward()
        return [None if p.grad is None else p.grad.detach().clone() for p in model.parameters()]

    def _mean(self, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone()
        torch.distributed.all_reduce(total)
        return total / Ranks.here.world


def _sums(tensors: Sequence[torch.Tensor]) -> list[float]:
    """Two numbers of each tensor, the second of which tells apart what is only ordered otherwise. What is no number is 0 among others."""
    found = []
    for tensor in tensors:
        sums = [0.0, 0.0]
        for k, chunk in enumerate(tensor.detach().flatten().split(CHUNK)):
            numbers = torch.nan_to_num(chunk.double())
            places = torch.arange(1 + k, numbers.numel() + 1 + k, device=numbers.device, dtype=torch.float64)
            sums[0] += float(numbers.sum())
            sums[1] += float((numbers * places.remainder_(997)).sum())
        found += sums
    return found


def _equal_on_all(values: list[float]) -> bool:
    everywhere = Ranks.here.all(values)
    return all(of_one == everywhere[0] for of_one in everywhere)


def _the_same(everywhere: Sequence[Sequence[float]]) -> tuple[int, int] | None:
    """The first two ranks that have the same numbers."""
    seen: dict[tuple[float, ...], int] = {}
    for rank, values in enumerate(everywhere):
        first = seen.setdefault(tuple(values), rank)
        if first != rank and values:
            return first, rank
    return None
