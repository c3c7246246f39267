"""Cross-entropy of a linear layer, a few rows at a time: the logits of all rows never exist together.

The gradients with respect to the layer's input and weights are worked out in the forward pass, while the rows' logits
are there, so no product is done twice: three GEMMs a step, as in the plain form. They are rounded before the backward pass
scales them, so float16, whose small gradients a scaled loss is to save, is left alone (cross_entropy.py).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from rung.kernels.once import no_forward_mode, once

LEAST_ROWS, MOST_CHUNKS = 1024, 8  # fewer rows a chunk make poor GEMMs; every chunk is compiled on its own


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    target: torch.Tensor,
    ignore_index: int = -100,
    mean: bool = True,
) -> torch.Tensor:
    """``F.cross_entropy(F.linear(hidden, weight, bias).float(), target)`` in chunks; float32, a scalar.

    hidden [M, K], weight [V, K], bias [V] of one floating dtype; target [M], int64. mean: over the rows that are not
    ignored (NaN where all are, as in torch), otherwise the sum.
    """
    loss: torch.Tensor = _Chunked.apply(hidden, weight, bias, target, ignore_index, mean)
    return loss


def chunk_rows(rows: int) -> int:
    return max(LEAST_ROWS, -(-rows // MOST_CHUNKS))


class _Chunked(torch.autograd.Function):
    jvp = staticmethod(no_forward_mode)

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        target: torch.Tensor,
        ignore_index: int,
        mean: bool,
    ) -> torch.Tensor:
        kept = target != ignore_index
        share = kept.sum().float().reciprocal() if mean else torch.ones((), device=hidden.device)
        wanted = ctx.needs_input_grad
        classes = torch.arange(weight.shape[0], device=hidden.device)
        total = torch.zeros((), device=hidden.device)
        of_hidden: list[torch.Tensor] = []
        of_weight = of_bias = None
        for rows in range(0, hidden.shape[0], chunk_rows(hidden.shape[0])):
            part = slice(rows, rows + chunk_rows(hidden.shape[0]))
            mine, labels, counts = hidden[part], target[part].masked_fill(~kept[part], 0), kept[part]
            logits = F.linear(mine, weight, bias).float()
            log_sum = logits.logsumexp(-1, keepdim=True)
            losses = (log_sum - logits.gather(1, labels[:, None])).squeeze(1)
            total = total + torch.where(counts, losses, 0.0).sum()
            if not any(wanted[:3]):
                continue
            right = classes == labels[:, None]
            slope = (logits - log_sum).exp() - right.to(logits.dtype)
            slope = (slope * torch.where(counts, share, 0.0)[:, None]).to(hidden.dtype)
            if wanted[0]:
                of_hidden.append(slope @ weight)
            if wanted[1]:
                of_weight = slope.T @ mine if of_weight is None else torch.addmm(of_weight, slope.T, mine)
            if wanted[2]:
                one = slope.float().sum(0)
                of_bias = one if of_bias is None else of_bias + one
        ctx.save_for_backward(
            torch.cat(of_hidden) if of_hidden else None,
            of_weight,
            None if of_bias is None else of_bias.to(weight.dtype),
            kept.any(),
        )
        return total * share

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> Any:
        *gradients, counted = ctx.saved_tensors
        # A sum of no rows, divided by their number, has an infinite slope; as in torch, it reaches nothing.
        slope = torch.where(counted, slopes[0], 0.0)
        with torch.no_grad():
            scaled = [_scaled(saved, slope) for saved in gradients]
        # They were worked out in forward, so a second derivative would miss all that depends on the inputs.
        return (*once(scaled), None, None, None)


def _scaled(gradient: torch.Tensor | None, slope: torch.Tensor) -> torch.Tensor | None:
    """The loss may be scaled by what 16 bits cannot hold: 65536 is infinite in float16, and 0.3 is not 0.3 in bfloat16."""
    if gradient is None:
        return None
    wide = torch.promote_types(gradient.dtype, torch.float32)
    return (gradient.to(wide) * slope).to(gradient.dtype)
