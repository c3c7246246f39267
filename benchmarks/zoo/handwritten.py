"""Modules written by hand, which need nothing but torch.

rung climb benchmarks/zoo/handwritten.py:make --name estuary --train --numerics bf16
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from making import INFER, LABELS, TOY_ROWS, TRAIN, Case, Draw, cross_entropy, workload
from torch import nn
from torch.nn import functional as F

import rung
from rung.errors import UsageError

sys.path.append(str(Path(__file__).parents[1] / "climb"))
from workloads import Estuary


class Twice(nn.Sequential):
    """Two convolutions of a U-Net's level, each with a norm."""

    def __init__(self, before: int, after: int) -> None:
        layers = (nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
        more = (nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
        super().__init__(*layers, *more)


class UNet(nn.Module):
    """Images to a class for each pixel (Ronneberger et al. 2015), with same padding."""

    def __init__(self, width: int, levels: int, classes: int) -> None:
        super().__init__()
        widths = [width << k for k in range(levels + 1)]
        self.down = nn.ModuleList(Twice(a, b) for a, b in zip((3, *widths[:-2]), widths[:-1], strict=True))
        self.bottom = Twice(widths[-2], widths[-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.joined = nn.ModuleList(Twice(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skipped = []
        for level in self.down:
            x = level(x)
            skipped.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, joined in zip(self.up, self.joined, strict=True):
            x = joined(torch.cat((skipped.pop(), up(x)), 1))
        return self.head(x)


class Ranker(nn.Module):
    """A recommendation model: embeddings of categories, products of all pairs of them, and two multilayer perceptrons (Naumov et al. 2019)."""

    def __init__(self, categories: int, rows: int, width: int, numbers: int = 13) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(categories))
        self.bottom = nn.Sequential(
            nn.Linear(numbers, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU()
        )
        pairs = (categories + 1) * categories // 2
        self.top = nn.Sequential(
            nn.Linear(width + pairs, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)
        )

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        dense = self.bottom(numbers)
        all_ = torch.stack([dense, *(table(categories[:, k]) for k, table in enumerate(self.tables))], 1)
        products = all_ @ all_.transpose(1, 2)
        row, column = torch.tril_indices(all_.shape[1], all_.shape[1], -1, device=all_.device)
        return self.top(torch.cat((dense, products[:, row, column]), 1)).squeeze(1)


def _pixels(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.float(), labels)


def _clicks(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(output.float(), labels.float())


def make(name: str, train: bool = False, toy: bool = False) -> rung.Workload:
    """One module: estuary (a decoder in names of its own), unet or ranker."""
    if name not in _MAKERS:
        raise UsageError(f"--name is {name!r}; it is one of {', '.join(_MAKERS)}.")
    return _MAKERS[name](train, toy)


def _estuary(train: bool, toy: bool) -> rung.Workload:
    vocabulary, width, depth, heads = (200, 64, 2, 4) if toy else (16000, 640, 10, 10)
    rows, length = (TOY_ROWS, 32) if toy else (8, 512)

    def batch(draw: Draw, count: int) -> dict[str, torch.Tensor]:
        ids = draw.ids(vocabulary, count, length + 1)
        return {"ids": ids[:, :-1].contiguous(), **({LABELS: ids[:, 1:].contiguous()} if train else {})}

    return workload(
        "estuary", lambda: Estuary(vocabulary, width, depth, heads), batch, rows, train, lambda module, given: module(given["ids"]),
        loss=cross_entropy, tokens=rows * length,
    )  # fmt: skip


def _unet(train: bool, toy: bool) -> rung.Workload:
    width, levels, size, rows = (8, 2, 32, TOY_ROWS) if toy else (64, 4, 256, 16)

    def batch(draw: Draw, count: int) -> dict[str, torch.Tensor]:
        drawn = {"x": draw.normal(count, 3, size, size)}
        return {**drawn, LABELS: draw.ids(21, count, size, size, lowest=0)} if train else drawn

    return workload("unet", lambda: UNet(width, levels, 21), batch, rows, train, _by_name, loss=_pixels)


def _ranker(train: bool, toy: bool) -> rung.Workload:
    categories, entries, width, rows = (4, 50, 16, 8) if toy else (26, 100_000, 128, 4096)

    def batch(draw: Draw, count: int) -> dict[str, torch.Tensor]:
        drawn = {"numbers": draw.normal(count, 13), "categories": draw.ids(entries, count, categories, lowest=0)}
        return {**drawn, LABELS: draw.ids(2, count, lowest=0)} if train else drawn

    return workload("ranker", lambda: Ranker(categories, entries, width), batch, rows, train, _by_name, loss=_clicks)


def _by_name(module: Any, given: dict[str, torch.Tensor]) -> torch.Tensor:
    found: torch.Tensor = module(**given)
    return found


_MAKERS: dict[str, Callable[[bool, bool], rung.Workload]] = {"estuary": _estuary, "unet": _unet, "ranker": _ranker}
CASES = {
    f"own/{name}": Case(f"own/{name}", "hand-written", f"{__file__}:make", {"name": name}, (INFER, TRAIN))
    for name in _MAKERS
}
