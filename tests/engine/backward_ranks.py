"""A rank of a job whose backward is compiled together with the exchange."""

from typing import Any

import torch

import rung
from rung.engine.parallel import in_parallel
from rung.engine.step import Step
from rung.hardware.device import cpu
from rung.hardware.ranks import Ranks
from rung.plan import Exchange, Plan
from rung.workload import seeded_model

PLAN = Plan(compile=True, exchange=Exchange(compiled_backward=True))


def net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))


def loss(output: Any, batch: Any) -> Any:
    return output.square().mean()


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1)


def rows(rank: int, count: int) -> torch.Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(rank))


class Rank:
    def steps(self, compiled: bool) -> dict[str, Any]:
        """What is left after steps on batches of two sizes: weights and buffers."""
        ranks, device = Ranks.here, cpu()
        ranks.join(on_gpu=False)
        workload = rung.Workload("net", net, lambda seed: rows(seed, 8), loss=loss, optimizer=sgd)
        model, plan = seeded_model(workload), PLAN if compiled else Plan()
        step = Step(workload, model, plan, device, tuple, called=in_parallel(workload, model, device, plan))
        for count in (8, 6, 8):
            step(rows(ranks.rank, count))
        left = {name: value.flatten().tolist() for name, value in model.state_dict().items()}
        return {"left": left, "compiled": step.applied().get("compiled backward", False)}
