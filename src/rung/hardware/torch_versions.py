"""What differs between the versions of torch that Rung runs with: each difference is one function here, and nobody else asks
which version there is for its sake."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any


def compiler_config() -> Any:
    """`torch.compiler.config`, which torch 2.6 does not import by itself."""
    import torch.compiler.config as config

    return config


def tuned_mm() -> Any:
    """Inductor's lowering of `mm`. With torch 2.6, importing its module before `torch._inductor.lowering` ends in an ImportError
    and leaves Inductor without lowerings of products, for as long as the process lives."""
    import torch._inductor.lowering  # noqa: F401  (loads the kernels in an order that all versions can be loaded in)
    from torch._inductor.kernel.mm import tuned_mm

    return tuned_mm


def compilers_own(example: Any) -> Any:
    """A fake tensor that Dynamo made, as the compiler behind it takes it. Newer torch makes it anew in its own fake mode; torch 2.6
    refuses all that are not in that mode already."""
    import torch
    from torch._guards import TracingContext, detect_fake_mode

    try:
        detect_fake_mode([example])
    except AssertionError:
        with TracingContext.get().fake_mode:
            return torch.empty_strided(
                example.size(),
                example.stride(),
                dtype=example.dtype,
                device=example.device,
                requires_grad=example.requires_grad,
            )
    return example


@cache
def _transposes() -> dict[Any, str]:
    import torch

    return {torch.ops.aten.mT: "mT", torch.ops.aten.numpy_T: "T"}


def transposing_property(target: Any) -> str:
    """ "mT" or "T" where a call in Dynamo's graph reads this property: since torch 2.15 it is written as an operator of its own,
    before as `getattr`."""
    return _transposes().get(target, "")


def shards_on_cpu() -> bool:
    """Whether `fully_shard` runs on a CPU. It records events on streams, which those of torch 2.6 for a CPU cannot."""
    import torch

    return hasattr(torch.cpu.Stream, "record_event")


def shards_called_lists() -> bool:
    """Whether `fully_shard` takes a list of modules that has a forward of its own. Torch up to 2.11 refuses every list (tried with 2.6, 2.11
    and 2.13)."""
    import torch

    return bool(torch.__version__ >= (2, 12))


def tree_key(spec: Any) -> Hashable:
    """A pytree's structure as a key of a dict: the TreeSpec itself, where this torch gives it a hash (2.6 does not)."""
    return spec if _specs_are_hashable() else _spelled(spec)


@cache
def _specs_are_hashable() -> bool:
    from torch.utils import _pytree as pytree

    try:
        hash(pytree.tree_structure([0, {"a": 0}]))
    except TypeError:
        return False
    return True


def _spelled(spec: Any) -> Hashable:
    children = spec.children() if hasattr(spec, "children") else spec.children_specs
    return spec.type, _frozen(spec.context), tuple(map(_spelled, children))


def _frozen(context: Any) -> Hashable:
    """What a node's kind keeps of it: the keys of a dict are a list, those of a registered class may be anything."""
    if isinstance(context, list | tuple):
        return type(context), tuple(_frozen(item) for item in context)
    if isinstance(context, dict):
        return dict, tuple((key, _frozen(value)) for key, value in context.items())
    found: Hashable = context
    try:
        hash(found)
    except TypeError:
        return type(context), repr(context)
    return found
