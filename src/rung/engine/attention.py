"""Whose kernels `scaled_dot_product_attention` runs: torch asks its backends in an order, and takes the first that can.

The order is read when attention is called, and in compiled code when it is traced, for the backward pass as well.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator

import torch
from torch.nn import attention

from rung.hardware.device import Device
from rung.hardware.torch_versions import compiler_config
from rung.rewrites.attention.short import first


def takes_backend_order() -> bool:
    """Whether this torch takes an order, and keeps code compiled under another one apart in its caches (2.6 does both)."""
    ordered = "set_priority" in inspect.signature(attention.sdpa_kernel).parameters
    return ordered and hasattr(compiler_config(), "cache_key_tag")


def prefer_backend(name: str) -> contextlib.AbstractContextManager[None]:
    """cuDNN is asked before all others where name is `cudnn`; whom it refuses goes to the others, those that are
    switched off left out. No name: as it was."""
    return _in_order(name) if name else contextlib.nullcontext()


@contextlib.contextmanager
def _in_order(name: str) -> Iterator[None]:
    order = first(attention.SDPBackend.CUDNN_ATTENTION)
    config = compiler_config()
    # AOTAutograd keeps traced graphs on disk, under a key that does not know of the order.
    with (
        config.patch(cache_key_tag=f"{config.cache_key_tag}{name} attention first"),
        attention.sdpa_kernel(order, set_priority=True),
    ):
        yield


def chosen_backends(device: Device) -> dict[str, str]:
    """The backend that torch takes for a plain causal call in bfloat16 on this device: by itself (`default`), and where
    cuDNN is asked first (`cudnn first`). Empty where it cannot be told."""
    choice = getattr(torch, "_fused_sdp_choice", None)  # torch's own name for the question; it has no public one
    if choice is None or not takes_backend_order():
        return {}
    query = torch.empty(1, 8, 128, 128, dtype=torch.bfloat16, device=device.torch_name)
    found = {}
    for what, name in (("default", ""), ("cudnn first", "cudnn")):
        with prefer_backend(name):
            found[what] = attention.SDPBackend(choice(query, query, query, is_causal=True)).name
    return found
