"""Image models of timm, with random weights: nothing is downloaded. Float32 weights; the precision is that of the run.

rung climb benchmarks/zoo/timm_models.py:make --name resnet50 --train --numerics bf16
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from making import INFER, LABELS, TOY_ROWS, TRAIN, Case, Draw, workload
from torch import nn

import rung
from rung.errors import UsageError

CLASSES = 1000


@dataclass(frozen=True)
class Model:
    """kind: what is told apart in tables; rows: images of a batch; size: of an image; toy: another size, and what else
    `timm.create_model` is told at toy size."""

    kind: str
    rows: int = 64
    size: int = 224
    toy_size: int = 0
    toy: dict[str, Any] = field(default_factory=dict)


CONVOLUTIONS, ATTENTION, BOTH_KINDS, MIXERS = "convolutions", "attention", "convolutions and attention", "mixers"
_FLAT = {"embed_dim": 64, "depth": 2}

MODELS: dict[str, Model] = {
    "resnet50": Model(CONVOLUTIONS, toy_size=64),
    "resnext50_32x4d": Model(CONVOLUTIONS, toy_size=64),
    "densenet121": Model(CONVOLUTIONS, toy_size=64),
    "efficientnet_b0": Model(CONVOLUTIONS, toy_size=64),
    "efficientnetv2_rw_s": Model(CONVOLUTIONS, 32, 288, toy_size=64),
    "mobilenetv3_large_100": Model(CONVOLUTIONS, 128, toy_size=64),
    "regnety_032": Model(CONVOLUTIONS, toy_size=64),
    "convnext_tiny": Model(CONVOLUTIONS, toy_size=64, toy={"depths": (1, 1, 1, 1), "dims": (16, 32, 48, 64)}),
    "convnextv2_tiny": Model(CONVOLUTIONS, toy_size=64, toy={"depths": (1, 1, 1, 1), "dims": (16, 32, 48, 64)}),
    "hrnet_w18": Model(CONVOLUTIONS, 32, toy_size=64),
    "repvgg_a2": Model(CONVOLUTIONS, toy_size=64),
    "nfnet_l0": Model(CONVOLUTIONS, toy_size=64),
    "ghostnet_100": Model(CONVOLUTIONS, 128, toy_size=64),
    "inception_v3": Model(CONVOLUTIONS, 64, 299, toy_size=96),
    "vit_base_patch16_224": Model(ATTENTION, toy_size=32, toy={**_FLAT, "img_size": 32, "num_heads": 4, "patch_size": 8}),
    "deit3_small_patch16_224": Model(ATTENTION, toy_size=32, toy={**_FLAT, "img_size": 32, "num_heads": 4, "patch_size": 8}),
    "beit_base_patch16_224": Model(ATTENTION, toy_size=32, toy={**_FLAT, "img_size": 32, "num_heads": 4, "patch_size": 8}),
    "eva02_small_patch14_224": Model(ATTENTION, toy_size=28, toy={**_FLAT, "img_size": 28, "num_heads": 4}),
    "swin_tiny_patch4_window7_224": Model(ATTENTION, toy_size=56, toy={"img_size": 56, "embed_dim": 24, "depths": (2, 1), "num_heads": (2, 4)}),
    "cait_s24_224": Model(ATTENTION, 32, toy_size=32, toy={**_FLAT, "img_size": 32, "num_heads": 4}),
    "xcit_small_12_p16_224": Model(ATTENTION, toy_size=32, toy={**_FLAT, "img_size": 32, "num_heads": 4}),
    "pvt_v2_b1": Model(ATTENTION, toy_size=64, toy={"depths": (1, 1, 1, 1), "embed_dims": (16, 32, 40, 64)}),
    "twins_pcpvt_small": Model(ATTENTION, toy_size=64, toy={"img_size": 64, "depths": (1, 1, 1, 1), "embed_dims": (16, 32, 40, 64), "num_heads": (1, 2, 5, 8)}),
    "maxvit_tiny_rw_224": Model(BOTH_KINDS, 32),
    "coatnet_0_rw_224": Model(BOTH_KINDS, 32),
    "levit_256": Model(BOTH_KINDS, 128),
    "mobilevit_s": Model(BOTH_KINDS, 64, 256, toy_size=64),
    "edgenext_small": Model(BOTH_KINDS, 64, 256, toy_size=64),
    "poolformer_s12": Model(MIXERS, toy_size=64),
    "mixer_b16_224": Model(MIXERS, toy_size=32, toy={"img_size": 32}),
    "gmlp_s16_224": Model(MIXERS, toy_size=32, toy={"img_size": 32}),
}  # fmt: skip

CASES = {
    f"timm/{name}": Case(f"timm/{name}", m.kind, f"{__file__}:make", {"name": name}, (INFER, TRAIN), ("timm",)) for name, m in MODELS.items()
}  # fmt: skip


def make(name: str, train: bool = False, toy: bool = False) -> rung.Workload:
    """One architecture; see MODELS for the names."""
    if name not in MODELS:
        raise UsageError(f"--name is {name!r}; it is one of {', '.join(MODELS)}.")
    import timm

    if not timm.is_model(name):
        raise ImportError(f"timm {timm.__version__} has no {name}")
    known = MODELS[name]
    rows, size = (TOY_ROWS, known.toy_size or known.size) if toy else (known.rows, known.size)
    more = known.toy if toy else {}

    def images(draw: Draw, count: int) -> dict[str, torch.Tensor]:
        drawn = {"x": draw.normal(count, 3, size, size)}
        return {**drawn, LABELS: draw.ids(CLASSES, count, lowest=0)} if train else drawn

    model: Callable[[], nn.Module] = lambda: timm.create_model(name, num_classes=CLASSES, **more)  # noqa: E731
    return workload(name, model, images, rows, train, lambda module, given: module(given["x"]))
