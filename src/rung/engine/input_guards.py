"""Guards on a call: its inputs but for their numbers, and the modes (autocast, gradients) that it is made in.

A replay reads copies of the inputs, to which every call writes first. What Python or the host reads is in the graph as it was when it
was recorded: an object's attributes, a number that lies in the host's memory.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from rung.engine.guards import NAMED, PLAIN
from rung.hardware.device import matmul_precision_name

VALUES = (*PLAIN, *NAMED, complex, enum.Enum, torch.Size)


def recordable(leaves: Sequence[Any], kind: str) -> bool:
    """Whether a graph may be recorded of a call with these inputs, on devices of that kind: copies can be made of all tensors, and
    all else is plain values. A tensor on the host is read when kernels are launched, and one with a gradient gets it itself."""
    return all(_copyable(leaf, kind) if isinstance(leaf, torch.Tensor) else isinstance(leaf, VALUES) for leaf in leaves)


def _copyable(tensor: torch.Tensor, kind: str) -> bool:
    wrapped = type(tensor) is not torch.Tensor and is_traceable_wrapper_subclass(tensor)
    strided = tensor.layout is torch.strided and not tensor.is_nested and not wrapped
    return strided and tensor.device.type == kind and not (tensor.requires_grad and torch.is_grad_enabled())


def signature(leaves: Sequence[Any]) -> Hashable:
    """Of inputs that are recordable, what has to be equal where a graph is replayed; which of them are one tensor, too."""
    first: dict[int, int] = {}
    return tuple(
        (t.shape, t.dtype, t.stride(), first.setdefault(id(t), k)) if isinstance(t, torch.Tensor) else (type(t), t)
        for k, t in enumerate(leaves)
    )


def modes() -> Hashable:
    """Whether a call is made in inference mode, under which autocast, where it is under any, and with which of torch's settings that
    decide what kernels are launched."""
    autocasts = (
        torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in ("cuda", "cpu")
    )
    cuda = torch.backends.cuda
    attention = (
        cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled(),
    )  # fmt: skip
    settings = matmul_precision_name(), torch.are_deterministic_algorithms_enabled(), attention
    return torch.is_inference_mode_enabled(), *autocasts, settings


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that is written to again, in inference mode or outside of it."""
    with torch.inference_mode(False), torch.no_grad():
        return tensor.detach().clone()


def as_copied(leaves: Sequence[Any]) -> list[Any]:
    """The inputs as their copies are: what is compiled in the calls before capture is then what runs on those."""
    made = {id(leaf): laid_as_copied(leaf) for leaf in leaves}
    return [made[id(leaf)] for leaf in leaves]


def laid_as_copied(leaf: Any) -> Any:
    """A tensor of the kind, and with the strides, that a copy of it has: a slice, or a row that is expanded, is copied, and so is
    what was made in inference mode. For others Dynamo would compile anew."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.is_inference() or torch.empty_like(leaf, device="meta").stride() != leaf.stride():
        return copied(leaf)
    return leaf.detach() if leaf.requires_grad or isinstance(leaf, torch.nn.Parameter) else leaf
