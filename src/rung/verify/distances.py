"""How far tensors are apart, in float64, some of their elements at a time.

What is compared of a large model lies in the host's memory (`rung.verify.observe`), and is sent to the GPU for it: each pass of the host's cores would make
gigabytes of float64. When these compared, verifying a model of a thousand million parameters took 166 s, and 1,500 s of the cores of a host with four H200.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from rung.verify.host_transfers import to_device

LARGE = 300_000_000  # parameters, from which three sets of gradients do not fit beside three models
COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
SPARSE = (torch.sparse_coo, *COMPRESSED)
PIECE = 1 << 24  # elements that are compared at once: a model's logits may take gigabytes
# How many powers of two without any element set large elements apart from small ones: no element between 8 and 2048, say. Numbers
# that are spread evenly have no such gap above their eight smallest (once in 2^64 outputs).
GAP, FEWEST = 8, 8
OFFSET = 1000.0  # the least large number that is no result, and what it is spread by at most as a share of it
SHRUNK = 2.0**-600  # times the numbers of float64 whose squares are not finite


def plainly(t: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor as a strided tensor of real ones, without a copy where it is one. A sparse one of more elements
    than a large model has stays sparse, each element once. Of one that ranks share out, this rank's part."""
    t = own_part(t).detach()
    if t.is_sparse:
        t = t.coalesce()
    if t.layout in SPARSE and t.numel() <= LARGE:
        t = t.to_dense()
    return torch.view_as_real(t.resolve_conj().resolve_neg()) if t.is_complex() else t.resolve_neg()


def own_part(t: torch.Tensor) -> torch.Tensor:
    """What this rank has of a tensor that ranks share out, in the same memory and without its history; any other tensor itself."""
    return t.detach().to_local() if hasattr(t, "to_local") else t


def pieces(*tensors: torch.Tensor, device: str | None = None) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same parts of several tensors of one shape, each of at most PIECE elements. device: where they are looked at, None for where they
    are."""
    for parts in zip(*(t.reshape(-1).split(PIECE) for t in tensors), strict=True):
        yield tuple(to_device(part, device) if device else part for part in parts)


def finite(t: torch.Tensor, device: str | None = None) -> bool:
    """Whether no element is NaN or infinite."""
    return all(bool(x.isfinite().all()) for (x,) in pieces(stored(t), device=device))


def kinds(t: torch.Tensor) -> torch.Tensor:
    """Of each element a number that says whether it is NaN, infinite in the one or in the other direction, or finite."""
    return t.isnan() + 2.0 * (t == math.inf) + 3.0 * (t == -math.inf)


def stored(t: torch.Tensor) -> torch.Tensor:
    """Of a sparse tensor the numbers that it holds."""
    return t.values() if t.is_sparse else t


def relative(a: torch.Tensor, b: torch.Tensor, device: str | None = None) -> float:
    """The relative L2 error of a against b; infinite where the shapes differ or a is not finite."""
    error, size = distances([a], b, device)
    return over(error, size)


def distance(a: torch.Tensor, b: torch.Tensor, device: str | None = None) -> float:
    """The root mean square of a - b; infinite where the shapes differ or a is not finite."""
    if not _alike(a, b):
        return math.inf
    if a.is_sparse:
        return rms((a.double() - b.double()).coalesce(), device) if finite(a, device) else math.inf
    return _distances([a], b, device)[0]


def distances(
    others: list[torch.Tensor], right: torch.Tensor, device: str | None = None, elements: torch.Tensor | None = None
) -> list[float]:
    """`distance` of each of several tensors to the same one, and `rms` of that: each is gone over once. elements: those that are
    looked at; the mean is over all as ever. The reference is taken to the range of the others (`ranged`)."""
    if right.is_sparse or not all(_alike(other, right) for other in others):
        return [*(distance(other, right, device) for other in others), rms(right, device)]
    return _distances(others, right, device, elements)


def _distances(
    others: list[torch.Tensor],
    right: torch.Tensor,
    device: str | None,
    elements: torch.Tensor | None = None,
    times: float = 1.0,
) -> list[float]:
    fit, squares = [True] * len(others), [0.0] * (len(others) + 1)
    for *theirs, y, kept in _with(elements, *others, right, device=device):
        y64 = _only(ranged(y, theirs) * times, kept)
        sums = [*((_only(x.double() * times, kept) - y64).square().sum() for x in theirs), y64.square().sum()]
        oks = [x.isfinite().all() for x in theirs]
        squares = [so_far + float(piece) for so_far, piece in zip(squares, sums, strict=True)]
        fit = [so_far and bool(ok) for so_far, ok in zip(fit, oks, strict=True)]
    if times == 1 and all(fit) and not all(map(math.isfinite, squares)):
        return _distances(others, right, device, elements, SHRUNK)
    count = max(1, right.numel())
    roots = [math.sqrt(total / count) / times for total in squares]
    return [*(root if ok else math.inf for root, ok in zip(roots[:-1], fit, strict=True)), roots[-1]]


def ranged(right: torch.Tensor, others: list[torch.Tensor]) -> torch.Tensor:
    """A reference in float64, as far as the formats of those reach that are compared with it: `torch.finfo(x.dtype).min`, which hides
    elements, is another number in each format, and in float64 one whose square is infinite."""
    formats = [torch.finfo(t.dtype) for t in others if t.dtype.is_floating_point]
    right = right.double()
    if not formats:
        return right
    within = right.clamp(max(f.min for f in formats), min(f.max for f in formats))
    return torch.where(right.isinf(), right, within)


@dataclass(frozen=True)
class Group:
    """Elements of an output that are compared by themselves, as a mask. larger: those above them whose rounding may reach into them."""

    name: str
    elements: torch.Tensor
    larger: torch.Tensor | None = None


def overshadowed(baseline: torch.Tensor, reference: torch.Tensor, device: str | None = None) -> list[Group]:
    """Elements whose errors drown in the size of others: a fill of -1e9 or a time in seconds is some thousand million times as large as
    what lies beside it, and 2e-6 of it are thousands.

    Small elements lie below a gap of `GAP` powers of two, one group for each gap. Rounded elements are what the untouched model (baseline) does
    not give exactly as the reference does, where that is far smaller than the rest. Only these two choose, so no candidate can.
    """
    if (
        reference.is_sparse
        or not _alike(baseline, reference)
        or not reference.is_floating_point()
        or not baseline.is_floating_point()
    ):
        return []
    counts = torch.zeros(2048, dtype=torch.int64)
    inexact, rounded, whole = 0, 0.0, 0.0
    for x, y in pieces(baseline, reference, device=device):
        y = ranged(y, [x])
        # The exponent that a number of float64 is stored with, 0 for zero.
        counts += torch.bincount((y.view(torch.int64) >> 52) & 2047, minlength=2048).cpu()
        differs = x.double() != y
        inexact += int(differs.sum())
        rounded = max(rounded, float(_only(y, differs).abs().max()) if y.numel() else 0.0)
        whole = max(whole, float(y.abs().max()) if y.numel() else 0.0)
    limits = _gaps(counts.tolist(), torch.finfo(baseline.dtype).tiny)
    groups = []
    larger = None
    for number, (limit, above) in enumerate(zip(limits, [math.inf, *limits], strict=False), 1):
        if not _offset(baseline, reference, device, limit, above):
            among = _mask(baseline, reference, device, limit, above)
            larger = among if larger is None else among | larger
        elements = _mask(baseline, reference, device, 0.0, limit)
        groups.append(Group(f"small elements{f' {number}' if number > 1 else ''}", elements, larger))
    if inexact >= FEWEST and rounded * 2**GAP < whole:
        groups.append(Group("rounded elements", _mask(baseline, reference, device)))
    return groups


def _gaps(counts: list[int], tiny: float) -> list[float]:
    """The smallest numbers above each gap, as powers of two, the largest first, from how many elements have which exponent. Numbers below
    `tiny` have few digits or none, and are no group of their own."""
    least = math.frexp(tiny)[1] + 1022
    used = [exponent for exponent in range(2046, least - 1, -1) if counts[exponent]]
    limits = []
    for upper, lower in itertools.pairwise(used):
        if upper - lower > GAP and sum(counts[least : lower + 1]) >= FEWEST:
            limits.append(math.ldexp(1.0, upper - 1023))
    return limits


def _mask(
    baseline: torch.Tensor,
    reference: torch.Tensor,
    device: str | None,
    least: float | None = None,
    most: float = math.inf,
) -> torch.Tensor:
    """The elements of these sizes, or those that rounding changes. It lies where the tensors do."""
    masks = []
    for x, y in pieces(baseline, reference, device=device):
        y = ranged(y, [x])
        size = y.abs()
        masks.append(((x.double() != y) if least is None else (size >= least) & (size < most)).to(reference.device))
    return torch.cat(masks).view(reference.shape)


def _offset(baseline: torch.Tensor, reference: torch.Tensor, device: str | None, least: float, most: float) -> bool:
    """Whether all elements of these sizes are about one large number, which somebody chose: small elements were not computed from it. That
    is a fill to which a score was added, or a time. An output that is computed, as ones of a softmax, is smaller or is spread."""
    low, high = math.inf, 0.0
    for x, y in pieces(baseline, reference, device=device):
        size = ranged(y, [x]).abs()
        size = size[(size >= least) & (size < most)]
        if size.numel():
            low, high = min(low, float(size.min())), max(high, float(size.max()))
    return low >= OFFSET and high - low <= low / OFFSET


def _with(elements: torch.Tensor | None, *tensors: torch.Tensor, device: str | None) -> Iterator[tuple[Any, ...]]:
    """`pieces` of tensors, and of a mask where there is one, else None."""
    for parts in pieces(*tensors, *([] if elements is None else [elements]), device=device):
        yield parts if elements is not None else (*parts, None)


def _only(t: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
    """Zero beside the elements that are kept."""
    return t if kept is None else torch.where(kept, t, 0.0)


def rms(t: torch.Tensor, device: str | None = None) -> float:
    """The root mean square of a tensor's elements."""
    squares = sum(float(x.double().square().sum()) for (x,) in pieces(stored(t), device=device))
    return math.sqrt(squares / t.numel()) if t.numel() else 0.0


def over(error: float, size: float) -> float:
    """An error as a share of a size; of nothing, any error is infinite."""
    return error / size if size > 0 else (0.0 if error == 0 else math.inf)


def scale(a: torch.Tensor, b: torch.Tensor, device: str | None = None, elements: torch.Tensor | None = None) -> float:
    """How far from 1 the factor is by which a is most like b; infinite as in `relative`. elements: as in `distances`."""
    if a.shape != b.shape or not finite(a, device):
        return math.inf
    for times in (1.0, SHRUNK):
        both, size = 0.0, 0.0
        for x, y, kept in _with(elements, a, b, device=device):
            x, y = _only(x.double() * times, kept), _only(ranged(y, [x]) * times, kept)
            both, size = both + float(x @ y), size + float(y @ y)
        if math.isfinite(size) and math.isfinite(both):
            break
    return abs(both / size - 1) if size > 0 else 0.0


def mismatched(a: torch.Tensor, b: torch.Tensor, device: str | None = None) -> float:
    """The share of the elements that differ."""
    if a.shape != b.shape:
        return math.inf
    differ = sum(int((x != y).sum()) for x, y in pieces(a, b, device=device))
    return differ / a.numel() if a.numel() else 0.0


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(a.shape == b.shape and a.layout == b.layout)
