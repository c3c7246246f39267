"""A workload of one's own: a factory that returns a rung.Workload. Its parameters become command-line options.

rung climb examples/mlp.py:make --width 512 --numerics exact
"""

import torch
from torch import nn
from torch.nn import functional as F

from rung import Workload


def make(width: int = 512, depth: int = 4, batch: int = 256, mode: str = "train") -> Workload:
    """An image-sized classifier: linear layers with LayerNorm and GELU, 10 classes."""

    def model() -> nn.Module:
        layers: list[nn.Module] = [nn.Linear(784, width)]
        for _ in range(depth):
            layers += [nn.LayerNorm(width), nn.GELU(), nn.Linear(width, width)]
        return nn.Sequential(*layers, nn.Linear(width, 10))

    def inputs(seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {
            "images": torch.randn(batch, 784, generator=generator),
            "labels": torch.randint(10, (batch,), generator=generator),
        }

    return Workload(
        name="mlp",
        model=model,
        inputs=inputs,
        forward=lambda model, batch: model(batch["images"]),
        mode=mode,
        loss=lambda logits, batch: F.cross_entropy(logits, batch["labels"]),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        samples=batch,
    )
