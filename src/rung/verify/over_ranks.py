"""Does a candidate compute over several ranks what one process computes on the batches of all of them?

Each rank compares what it gives itself: output and loss of its own batch, every gradient after the exchange, and its weights after optimizer
steps. The reference, and the untouched model whose errors are the measure, take the batches of all ranks one after the other, in one
process and without any exchange: their gradient is the mean over the batches. So every rank comes to the same weights, or is refused.

Of a tensor-parallel model no process has all weights. Its reference is the untouched model on the same ranks, in float64, and each rank compares its
own parts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from rung.engine.optimizer import update
from rung.engine.parallel import in_parallel, sharded
from rung.engine.step import Step
from rung.hardware.device import Device
from rung.hardware.ranks import Ranks
from rung.plan import Numerics, Plan
from rung.verify.observe import own_copy
from rung.verify.perturb import state
from rung.verify.verdict import Verification
from rung.verify.verify import Build, OneProcess, verify
from rung.workload import Batch, Workload, of_rank
from rung.workload.copy_model import copy_model

Batches = list[Batch]  # of each rank, in their order


def verify_over_ranks(
    workload: Workload,
    plan: Plan,
    device: Device,
    numerics: Numerics,
    build: Build | None = None,
    alone: bool = True,
) -> Verification:
    """Compares a candidate with the reference at one precision. Every rank has to call this, and gets what it compared itself.

    workload: as one process has it; build: `(model, plan) -> step` of a rank, which takes the batches of all ranks, and uses its own; alone:
    as of `verify`. Raises what the candidate raises: the other ranks wait for this one, and end with it.
    """
    if workload.parallel == "own":
        of_one = replace(of_rank(workload, Ranks.here.rank, Ranks.here.world), other_shapes=(), one_shape=True)
        build = build or (lambda model, at: step_of_parts(of_one, model, at, device))
        return verify(of_one, plan, device, build, [numerics], alone, job=_TensorParallelJob())
    of_all = _of_all_ranks(workload)
    build = build or (lambda model, at: step_of_rank(of_all, model, at, device))
    return verify(of_all, plan, device, build, [numerics], alone, job=_DataParallelJob())


def step_of_rank(workload: Workload, model: torch.nn.Module, plan: Plan, device: Device) -> _OfRank:
    """The step that a rank takes in a job, as it is timed. workload: of which a batch is those of all ranks, or one rank's."""
    if workload.parallel == "fsdp2":
        return _OfShardedRank(workload, model, plan, device)
    return _OfRank(workload, model, plan, device)


def step_of_parts(workload: Workload, model: torch.nn.Module, plan: Plan, device: Device) -> Step:
    """The same of a tensor-parallel model, on this rank's own batch."""
    return Step(workload, model, plan, device, called=in_parallel(workload, model, device, plan))


def _of_all_ranks(workload: Workload) -> Workload:
    """The workload whose batch is those of all ranks. Its other shapes are looked at in one process."""
    world = Ranks.here.world
    ranks = [of_rank(workload, rank, world) for rank in range(world)]
    return replace(workload, inputs=lambda seed: [one.inputs(seed) for one in ranks], other_shapes=(), one_shape=True)


class _TensorParallelJob(OneProcess):
    """One rank of a job, whose reference runs on the same ranks. All ranks decide together, because each waits for the others' exchange."""

    several_ranks = True

    def agreed(self, holds: bool) -> bool:
        return not Ranks.here.most([float(not holds)])[0]


class _DataParallelJob(_TensorParallelJob):
    """One rank of a job, whose reference is one process on the batches of all ranks."""

    @property
    def keeps_buffers(self) -> bool:
        """Running statistics are those of the first rank's batches: DistributedDataParallel hands them to the others in the next step."""
        return Ranks.here.rank == 0

    def whole(self, step: Step) -> Any:
        return _OnAllBatches(step)


class _StepWrapper:
    """Looks like the Step that it holds."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.workload, self.plan, self.device = step.workload, step.plan, step.device
        self.model = step.model

    @property
    def optimizer(self) -> Any:
        return self.step.optimizer

    @property
    def grad_norm(self) -> torch.Tensor | None:
        return self.step.grad_norm

    def fresh(self) -> None:
        self.step.fresh()


class _OnAllBatches(_StepWrapper):
    """A step of one process on the batches of all ranks; it gives the loss and the output of this rank's own."""

    def __call__(self, batches: Batches) -> tuple[Any, Any]:
        optimizer = self.optimizer
        optimizer.zero_grad()
        buffers = dict(self.model.named_buffers())
        before = {name: t.clone() for name, t in buffers.items()}
        after: dict[str, torch.Tensor] = {}
        own: tuple[Any, Any] = None, None
        for rank, batch in enumerate(batches):
            _put_buffers(buffers, before)
            is_own = rank == Ranks.here.rank
            # No rank writes to another's batch, so this one must not seem to.
            loss, output = self.step.forward(batch if is_own else own_copy(batch))
            assert loss is not None
            (loss / len(batches)).backward()
            if rank == 0:
                after = {name: t.clone() for name, t in buffers.items()}
            if is_own:
                own = loss.detach().clone(), output
        _put_buffers(buffers, after)
        self.step.keep_norm(update(optimizer, self.model, self.workload.max_grad_norm))
        return own


class _OfRank(_StepWrapper):
    """The step of a rank that has all weights."""

    def __init__(self, workload: Workload, model: torch.nn.Module, plan: Plan, device: Device) -> None:
        super().__init__(Step(workload, model, plan, device, called=in_parallel(workload, model, device, plan)))

    def __call__(self, batches: Batches) -> tuple[Any, Any]:
        return self.step(batches[Ranks.here.rank])

    def unlike(self) -> list[str]:
        return self.step.unlike()


class _OfShardedRank(_OfRank):
    """The step of a rank that has a part of the weights. They are put and read as if they were whole: `model` is a copy. Its weights are sharded
    before a step, and gathered with their gradients after it."""

    def __init__(self, workload: Workload, model: torch.nn.Module, plan: Plan, device: Device) -> None:
        super().__init__(workload, copy_model(model), plan, device)
        self.model = model
        assert sharded(self.step.model)

    def __call__(self, batches: Batches) -> tuple[Any, Any]:
        from torch.distributed.tensor import DTensor, distribute_tensor

        parts, whole = state_of(self.step.model), state(self.model)
        with torch.no_grad():
            for name, part in parts.items():
                given = whole[name]
                if isinstance(part, DTensor):
                    given = distribute_tensor(given.detach(), part.device_mesh, part.placements)
                part.copy_(given)
        result = super().__call__(batches)
        with torch.no_grad():
            for name, part in parts.items():
                whole[name].copy_(part.full_tensor() if isinstance(part, DTensor) else part)
                if isinstance(whole[name], torch.nn.Parameter):
                    gradient = part.grad
                    whole[name].grad = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        return result


def state_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, parts of them included."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _put_buffers(buffers: dict[str, torch.Tensor], values: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, value in values.items():
            buffers[name].copy_(value)
