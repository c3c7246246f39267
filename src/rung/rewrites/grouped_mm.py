"""Feed-forwards of which each token takes a few: rows sorted by expert, one product for the weights of all experts.

Every size is known beforehand, whatever the router chooses: nothing waits for the GPU, and a whole step can be captured as
a graph. These are functions of plain operations, which a captured graph calls and AOTAutograd takes apart.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

ALIGNED = 16  # bytes: what the kernel asks of every row


def sort_rows(
    x: torch.Tensor, chosen: torch.Tensor, experts: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """x [tokens, width] as [tokens * k, width], all rows of an expert together, in the order of the experts; chosen
    [tokens, k] of numbers below `experts`. With it: where each expert's rows end [experts], int32; the expert of each row;
    and where the row of each (token, k) went [tokens * k].

    A count in place of a sort: the place of a row is the number of rows before it that its expert has, after those of all
    experts before.
    """
    flat = chosen.flatten()
    mine = flat[:, None] == torch.arange(experts, device=x.device)
    seen = mine.int().cumsum(0, dtype=torch.int32)
    ends = seen[-1].cumsum(0, dtype=torch.int32)
    places = torch.where(mine, seen - 1 + (ends - seen[-1]), 0).sum(1)
    order = torch.empty_like(places).scatter(0, places, torch.arange(len(flat), device=x.device))
    return x[order // chosen.shape[1]], ends, flat[order], places


def expert_linear(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, ends: torch.Tensor, owner: torch.Tensor
) -> torch.Tensor:
    """Each row by the weight of its expert. rows [n, k], sorted; weight [experts * out, k] and bias [experts * out], those of
    all experts below one another; ends [experts] and owner [n] as `sort_rows` gives them."""
    weights = weight.view(len(ends), -1, weight.shape[1])
    biases = None if bias is None else bias.view(len(ends), -1)
    if one_kernel(rows, weights):
        made = torch._grouped_mm(rows, weights.transpose(1, 2), offs=ends)
        return made if biases is None else made + biases[owner]
    # Every expert computes all rows: for what has no such kernel, as float32, in which rewrites are checked.
    made = rows.new_zeros(len(rows), weights.shape[1])
    for k in range(len(ends)):
        part = F.linear(rows, weights[k], None if biases is None else biases[k])
        made = torch.where((owner == k)[:, None], part, made)
    return made


def combine(rows: torch.Tensor, places: torch.Tensor, weights: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[tokens, width]: the sum of each token's rows, by their weights [tokens, k], in float32 and rounded once."""
    back = rows[places].view(*weights.shape, rows.shape[1])
    wide = torch.promote_types(torch.float32, back.dtype)
    return (back.to(wide) * weights.to(wide)[..., None]).sum(1).to(dtype)


# For writes.py: they are no operations of torch's own.
sort_rows.reads_only = True  # type: ignore[attr-defined]
expert_linear.reads_only = True  # type: ignore[attr-defined]
combine.reads_only = True  # type: ignore[attr-defined]


def one_kernel(rows: torch.Tensor, weights: torch.Tensor) -> bool:
    """Whether torch has a kernel for this that leaves the sizes on the GPU: bfloat16, compute capability 9 and 10, rows of
    whole 16 bytes (aten/src/ATen/native/cuda/GroupedBlas.cpp). Elsewhere torch loops over the groups and waits for their sizes."""
    if not hasattr(torch, "_grouped_mm") or rows.device.type != "cuda" or torch.version.hip:
        return False
    whole = all(size * rows.itemsize % ALIGNED == 0 for size in weights.shape[1:])
    half = rows.dtype == weights.dtype == torch.bfloat16
    return half and whole and torch.cuda.get_device_capability(rows.device)[0] in (9, 10)
