"""An image model of timm as a workload.

Weights come from the local cache of Hugging Face, or are random ones. Nothing is downloaded unless HF_HUB_OFFLINE=0 is set.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from rung.workload.base import Workload


def make(
    name: str,
    task: Literal["infer", "train"] = "infer",
    batch: int = 32,
    size: int = 0,
    dtype: str = "float32",
    random_weights: bool = False,
) -> Workload:
    """name: as `timm.list_models()` has it; batch: images; size: their height and width in pixels, by default what the model was trained
    on; dtype: of the weights and the images."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import timm

    if not timm.is_model(name):
        raise ValueError(
            f"timm {timm.__version__} has no model {name!r}; timm.list_models('*part of a name*') lists them"
        )
    known = timm.get_pretrained_cfg(name)
    channels, *pixels = known.input_size if known else (3, 224, 224)
    height, width = (size, size) if size else pixels
    training, floats = task == "train", getattr(torch, dtype)
    sized = {"img_size": size} if size and known and known.fixed_input_size else {}

    def model() -> nn.Module:
        made: nn.Module = timm.create_model(name, pretrained=not random_weights, **sized)
        return made.to(floats)

    def inputs(seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(batch, channels, height, width, generator=generator).to(floats)
        classes = known.num_classes if known else 1000
        labels = torch.randint(classes, (batch,), generator=generator)
        return {"images": images, "labels": labels} if training else {"images": images}

    def forward(module: Any, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        output: torch.Tensor = module(tensors["images"])
        return output

    return Workload(
        f"{name} {task}", model, inputs, forward, mode=task, samples=batch,
        loss=(lambda output, tensors: F.cross_entropy(output.float(), tensors["labels"])) if training else None,
        optimizer=(lambda parameters: torch.optim.AdamW(parameters, lr=1e-4)) if training else None,
        output=not training,
    )  # fmt: skip
