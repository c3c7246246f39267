"""Batches of any seed out of the one that a user has at hand: the same values in another order."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from rung.errors import UsageError
from rung.workload.base import Batch

BY_CHANCE = 1e-4  # below this, it is no chance that a row lacks the larger values of the others


@dataclass(frozen=True)
class Shuffled:
    """The `inputs` of a workload. Seed 0 gives the batch as it was given. Other seeds give its values in another order, so that every
    value stays in the range of its column: no value is invented, and none changes its column where there are several rows. Where the rows
    have ranges of their own, none changes its row. A tensor keeps its layout, and a leaf that requires a gradient requires it.

    batch: on the CPU; along: of each of its leaves, the dimension along which it is shuffled, None for what stays as it is.
    """

    batch: Batch
    along: tuple[int | None, ...]

    def __call__(self, seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        leaves, tree = pytree.tree_flatten(self.batch)
        made = []
        for leaf, dimension in zip(leaves, self.along, strict=True):
            if not isinstance(leaf, torch.Tensor):
                made.append(leaf)
                continue
            own = leaf.detach().clone()  # a step may write to it
            if seed and dimension is not None:
                own.copy_(_shuffled(own, dimension, generator))  # which keeps the layout, as channels-last
            made.append(own.requires_grad_(leaf.requires_grad))
        return pytree.tree_unflatten(made, tree)


def shuffled(batch: Batch) -> Shuffled:
    """Other batches out of one.

    Each column of a tensor is rotated along the first dimension by a number of rows of its own; where all rows are equal, or there is
    one alone, the last dimension along which values differ is permuted. So it is where rows of integers have different ranges, as the two
    ends of edges between users and items. These tensors stay as they are: masks (at most two different values), positions and offsets
    (ascending along their last dimension), lengths that are sorted (integers that descend), sparse and nested tensors.

    Args:
        batch: a tensor, or a dict, tuple or list of tensors and other values, on any device. It is copied to the CPU.

    Raises:
        UsageError: where nothing of the batch would change.
    """
    leaves, tree = pytree.tree_flatten(batch)
    own = [_on_cpu(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    along = tuple(_dimension(leaf.detach()) if isinstance(leaf, torch.Tensor) else None for leaf in own)
    if all(dimension is None for dimension in along):
        raise UsageError(
            "inputs= cannot be varied: each of its tensors is a constant, a mask or sorted, and a climb runs on more batches than "
            "one; give a function that makes the batch of a seed, as inputs=lambda seed: torch.randn(8, 16)."
        )
    return Shuffled(pytree.tree_unflatten(own, tree), along)


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Off its graph, but differentiated where the user asked for it, and not because it was computed of what requires a gradient."""
    return tensor.detach().cpu().requires_grad_(tensor.is_leaf and tensor.requires_grad)


def _dimension(tensor: torch.Tensor) -> int | None:
    """The dimension along which a tensor may be shuffled; None where it has to stay as it is."""
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_nested
    eight_bits = tensor.is_quantized or (tensor.is_floating_point() and tensor.element_size() == 1)
    if not plain or eight_bits or tensor.numel() < 2:
        return None
    values = _comparable(tensor)
    steps = values.squeeze().diff(dim=-1)
    integers = not (tensor.is_floating_point() or tensor.is_complex())
    if values.unique().numel() <= 2 or bool((steps >= 0).all()) or (integers and bool((steps <= 0).all())):
        return None
    differs = [d for d in range(tensor.dim()) if bool((values != values.narrow(d, 0, 1)).any())]
    return 0 if 0 in differs and not (integers and _rows_have_ranges(values)) else differs[-1]


def _rows_have_ranges(values: torch.Tensor) -> bool:
    """Whether a row of a table has another range than the other rows: were all values dealt out by chance, none above its largest, or below
    its smallest, would almost never come into it. Columns may have ranges, too, where there are fewer of them than rows."""
    if values.dim() != 2 or values.shape[0] >= values.shape[1]:
        return False
    count, length = values.numel(), values.shape[1]
    ordered = values.flatten().sort().values
    above = count - torch.searchsorted(ordered, values.amax(1), right=True)
    below = torch.searchsorted(ordered, values.amin(1))
    most = int(torch.cat([above, below]).max())
    return most > count - length or _log_ways(count - most, length) - _log_ways(count, length) < math.log(BY_CHANCE)


def _log_ways(count: int, taken: int) -> float:
    """The logarithm of how many ways there are to take so many of a count."""
    return math.lgamma(count + 1) - math.lgamma(taken + 1) - math.lgamma(count - taken + 1)


def _comparable(tensor: torch.Tensor) -> torch.Tensor:
    """Its values, of a dtype in which torch sorts and subtracts; of complex numbers, their real and imaginary parts."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.double() if tensor.is_floating_point() else tensor.long()


def _shuffled(tensor: torch.Tensor, dimension: int, generator: torch.Generator) -> torch.Tensor:
    count = tensor.shape[dimension]
    columns = tensor.numel() // count
    if dimension or columns == 1:
        order = torch.randperm(count, generator=generator)
        return tensor.index_select(dimension, order)
    flat = tensor.reshape(count, columns)
    turns = torch.randint(count, (1, columns), generator=generator)
    rows = (torch.arange(count).unsqueeze(1) + turns) % count
    return flat.gather(0, rows).reshape(tensor.shape)
