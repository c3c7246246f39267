"""Whether a weight's memory is its own: what is moved out of memory that others have is seen by them no more."""

from __future__ import annotations

import torch


def held(tensor: torch.Tensor) -> bool:
    """Whether others write to this memory or read it: a state dict that is kept, a parameter with the same `.data`, another process.
    Where that cannot be told, it may be so."""
    shared = tensor.device.type == "cpu" and tensor.is_shared()  # of a GPU's memory it is always said
    if shared or not hasattr(torch._C, "_storage_Use_Count"):  # builds for CPUs have it since torch 2.8
        return True
    return _holders(tensor) > _holders(torch.empty(0))


def _holders(tensor: torch.Tensor) -> int:
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))
