"""A workload that a CPU steps in milliseconds, whose optimizer is slow until it is fused, and then as it is told."""

import os
import signal
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rung import Workload


def make(fused: str = "fast", seconds: float = 0.02) -> Workload:
    """fused: what the fused optimizer does: fast, raise, hang, memory, die."""

    def before_step(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        if not optimizer.defaults.get("fused"):
            time.sleep(seconds)
        elif fused == "raise":
            raise ValueError("no step today")
        elif fused == "hang":
            time.sleep(3600)
        elif fused == "memory":
            raise MemoryError("no room")
        elif fused == "die":
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_pre_hook(before_step)

    def inputs(seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {"x": torch.randn(16, 8, generator=generator), "y": torch.randint(4, (16,), generator=generator)}

    return Workload(
        name="micro",
        model=lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)),
        inputs=inputs,
        forward=lambda model, batch: model(batch["x"]),
        mode="train",
        loss=lambda output, batch: F.cross_entropy(output, batch["y"]),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        samples=16,
    )


def dead() -> Workload:
    """A workload that cannot be made."""
    raise RuntimeError("the data set is not here")
