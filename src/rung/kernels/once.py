"""Gradients that have no gradient of their own: whoever takes one gets an error, and not a number that misses a part.

torch's `once_differentiable` says nothing where a gradient depends on what forward saved, and the slope that comes in needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad


def once(gradients: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor | None, ...]:
    """The same gradients. Where autograd records what is done in backward (`create_graph=True`), their own backward raises."""
    if not torch.is_grad_enabled():
        return tuple(gradients)
    return tuple(g if g is None else _Once.apply(g.detach().requires_grad_()) for g in gradients)


def in_forward_mode() -> bool:
    """Whether forward-mode AD is going on, that of torch.func.jvp, too. torch tells it by a private name alone."""
    return bool(forward_ad._current_level >= 0)


def no_forward_mode(ctx: Any, *tangents: Any) -> Any:
    """As `jvp` of an autograd.Function: torch's own error tells its author what to implement."""
    raise RuntimeError(
        "this fused operation has no forward-mode derivative; under forward-mode AD (torch.func.jvp, too) run the model without it."
    )


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> Any:
        raise RuntimeError(
            "the gradient of this fused operation has no gradient of its own; for second derivatives run the model without it."
        )
