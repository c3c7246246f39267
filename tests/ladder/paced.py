"""A workload in which one rung can show nothing until another one is kept, as faster kernels show nothing on a GPU that
waits for its launches."""

import time
from collections.abc import Iterable

import torch
from torch import nn
from torch.nn import functional as F

from rung import Workload

FORWARD = 0.008  # seconds that the forward pass takes outside of autocast
PACE = 0.012  # seconds that a step takes at least, as long as its optimizer is the one that was made here
UNDER_AUTOCAST = 1.5  # times that: the first attempt is then no matter of luck


def make() -> Workload:
    until = [0.0]

    def forward(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        cast = torch.is_autocast_enabled("cpu")
        until[0] = time.perf_counter() + PACE * (UNDER_AUTOCAST if cast else 1)
        if not cast:
            time.sleep(FORWARD)
        return model(batch["x"])

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        made = torch.optim.AdamW(parameters, lr=1e-3)
        # One that is remade with fused=True has no hooks.
        made.register_step_pre_hook(lambda *_: time.sleep(max(0.0, until[0] - time.perf_counter())))
        return made

    def inputs(seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {"x": torch.randn(16, 8, generator=generator), "y": torch.randint(4, (16,), generator=generator)}

    return Workload(
        name="paced",
        model=lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)),
        inputs=inputs,
        forward=forward,
        mode="train",
        loss=lambda output, batch: F.cross_entropy(output, batch["y"]),
        optimizer=optimizer,
    )
