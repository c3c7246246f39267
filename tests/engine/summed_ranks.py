"""A rank that computes gradients under DistributedDataParallel, with and without the hook that sums buckets in shared memory."""

from contextlib import nullcontext
from typing import Any

import torch
from gloo_memory import GlooMemory, gloo_shares

from rung.engine import parallel
from rung.engine.summed_buckets import registered, sum_in_symmetric_memory
from rung.hardware import pick
from rung.hardware.ranks import Ranks
from rung.plan import Plan
from rung.rungs import plan_of
from rung.workload import Workload

DDP = torch.nn.parallel.DistributedDataParallel


class Net(torch.nn.Module):
    """Weights of several dtypes, the largest of which does not fit into the memory at once."""

    def __init__(self) -> None:
        super().__init__()
        dtypes = (torch.float32, torch.bfloat16, torch.float64, torch.float32)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(24, 24, dtype=dtype) for dtype in dtypes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x.to(layer.weight.dtype)).relu()
        return x.float()


def net(device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    return Net().to(device)


def batch(seed: int, device: str) -> torch.Tensor:
    drawn = torch.randn(8, 24, generator=torch.Generator().manual_seed(10 * seed + Ranks.here.rank))
    return drawn.to(device)


class Rank:
    def __init__(self) -> None:
        self.device = "cpu"

    def join(self, gpu: bool) -> None:
        if gpu:
            self.device = f"cuda:{Ranks.here.local}"
            torch.cuda.set_device(Ranks.here.local)
        Ranks.here.join(on_gpu=gpu)

    def gradients(self, hook: bool, exchanged: str = "", accumulate: bool = False, **options: Any) -> dict[str, Any]:
        """Of each of three steps, by name, and how many buckets went through the memory. DistributedDataParallel makes its buckets anew
        after the first. accumulate: each step is of two batches, and gradients of the first are not exchanged yet."""
        model = net(self.device)
        called = DDP(model, device_ids=[Ranks.here.local] if self.device != "cpu" else None, **options)
        if hook:
            with gloo_shares() if self.device == "cpu" else nullcontext():
                sum_in_symmetric_memory(called, getattr(torch, exchanged) if exchanged else None)
        steps = []
        for seed in range(3):
            model.zero_grad()
            if accumulate:
                with called.no_sync():
                    called(batch(100 + seed, self.device)).square().mean().backward()
            called(batch(seed, self.device)).square().mean().backward()
            # to("cpu") waits for what computes the gradients, and for nothing else
            steps.append({name: p.grad.to("cpu").double().flatten().tolist() for name, p in model.named_parameters()})  # type: ignore[union-attr]
        summed = registered(called)
        return {"steps": steps, "count": summed.count if summed else 0}

    def wrapped(self, rungs: list[str]) -> dict[str, Any]:
        """What is in effect of a model that Rung wraps."""
        plan: Plan = plan_of(rungs)
        workload = Workload(
            "net",
            lambda: net("cpu"),
            lambda seed: batch(seed, "cpu"),
            loss=lambda output, given: output.square().mean(),
            optimizer=torch.optim.SGD,
        )
        with gloo_shares():
            called = parallel.in_parallel(workload, net("cpu"), pick("cpu"), plan)
        called(batch(0, "cpu")).square().mean().backward()
        return {"in effect": parallel.in_effect(called), "lacks": parallel.lacking(plan, called)}

    def room(self) -> int:
        return GlooMemory().room(torch.float32).numel()
