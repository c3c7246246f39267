"""How far tensors are apart, in float64, some of their elements at a time.

What is compared of a large model lies in the host's memory (`rung.verify.observe`), and is sent to the GPU for it: each pass of the host's cores would make
gigabytes of float64. When these compared, verifying a model of a thousand million parameters took 166 s, and 1,500 s of the cores of a host with four H200.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from rung.verify.host import to_device

LARGE = 300_000_000  # parameters, from which three sets of gradients do not fit beside three models
SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
AT_ONCE = 1 << 24  # elements that are compared at once: a model's logits may take gigabytes


def plainly(t: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor as a strided tensor of real ones, without a copy where it is one. A sparse one of more elements
    than a large model has stays sparse, each element once."""
    t = t.detach()
    if t.is_sparse:
        t = t.coalesce()
    if t.layout in SPARSE and t.numel() <= LARGE:
        t = t.to_dense()
    return torch.view_as_real(t.resolve_conj().resolve_neg()) if t.is_complex() else t.resolve_neg()


def pieces(*tensors: torch.Tensor, device: str | None = None) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same parts of several tensors of one shape, each of at most AT_ONCE elements. device: where they are looked at, None for where they
    are."""
    for parts in zip(*(t.reshape(-1).split(AT_ONCE) for t in tensors), strict=True):
        yield tuple(to_device(part, device) if device else part for part in parts)


def finite(t: torch.Tensor, device: str | None = None) -> bool:
    """Whether no element is NaN or infinite."""
    return all(bool(x.isfinite().all()) for (x,) in pieces(stored(t), device=device))


def stored(t: torch.Tensor) -> torch.Tensor:
    """Of a sparse tensor the numbers that it holds."""
    return t.values() if t.is_sparse else t


def relative(a: torch.Tensor, b: torch.Tensor, device: str | None = None) -> float:
    """The relative L2 error of a against b; infinite where the shapes differ or a is not finite."""
    return over(distance(a, b, device), rms(b, device))


def distance(a: torch.Tensor, b: torch.Tensor, device: str | None = None) -> float:
    """The root mean square of a - b; infinite where the shapes differ or a is not finite."""
    if not _alike(a, b):
        return math.inf
    if a.is_sparse:
        return rms((a.double() - b.double()).coalesce(), device) if finite(a, device) else math.inf
    return _distances([a], b, device)[0]


def distances(others: list[torch.Tensor], right: torch.Tensor, device: str | None = None) -> list[float]:
    """`distance` of each of several tensors to the same one, and `rms` of that: each is gone over once."""
    if right.is_sparse or not all(_alike(other, right) for other in others):
        return [*(distance(other, right, device) for other in others), rms(right, device)]
    return _distances(others, right, device)


def _distances(others: list[torch.Tensor], right: torch.Tensor, device: str | None) -> list[float]:
    fit, squares = [True] * len(others), [0.0] * (len(others) + 1)
    for *theirs, y in pieces(*others, right, device=device):
        y64 = y.double()
        sums = [*((x.double() - y64).square().sum() for x in theirs), y64.square().sum()]
        oks = [x.isfinite().all() for x in theirs]
        squares = [so_far + float(piece) for so_far, piece in zip(squares, sums, strict=True)]
        fit = [so_far and bool(ok) for so_far, ok in zip(fit, oks, strict=True)]
    count = max(1, right.numel())
    roots = [math.sqrt(total / count) for total in squares]
    return [*(root if ok else math.inf for root, ok in zip(roots[:-1], fit, strict=True)), roots[-1]]


def rms(t: torch.Tensor, device: str | None = None) -> float:
    """The root mean square of a tensor's elements."""
    squares = sum(float(x.double().square().sum()) for (x,) in pieces(stored(t), device=device))
    return math.sqrt(squares / t.numel()) if t.numel() else 0.0


def over(error: float, size: float) -> float:
    """An error as a share of a size; of nothing, any error is infinite."""
    return error / size if size > 0 else (0.0 if error == 0 else math.inf)


def scale(a: torch.Tensor, b: torch.Tensor, device: str | None = None) -> float:
    """How far from 1 the factor is by which a is most like b; infinite as in `relative`."""
    if a.shape != b.shape or not finite(a, device):
        return math.inf
    both, size = 0.0, 0.0
    for x, y in pieces(a, b, device=device):
        x, y = x.double(), y.double()
        both, size = both + float(x @ y), size + float(y @ y)
    return abs(both / size - 1) if size > 0 else 0.0


def mismatched(a: torch.Tensor, b: torch.Tensor, device: str | None = None) -> float:
    """The share of the elements that differ."""
    if a.shape != b.shape:
        return math.inf
    differ = sum(int((x != y).sum()) for x, y in pieces(a, b, device=device))
    return differ / a.numel() if a.numel() else 0.0


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(a.shape == b.shape and a.layout == b.layout)
