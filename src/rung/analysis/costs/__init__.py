"""What operators cost: floating-point operations and bytes, from the shapes and types that a trace records.

One family a file; each has MODELS, from operator names to pure functions of a Call. A new operator is a line there.
The convention of all of them: a multiplication and an addition are two operations; every input is read once and every
output written once, which is the least that is possible, so that the time at the roof is a floor.
"""

from __future__ import annotations

import re

from rung.analysis.costs import (
    attention,
    compiled,
    convolution,
    copies,
    expert_kernels,
    gemm,
    indexing,
    moe,
    normalization,
    optimizer,
    pointwise,
    pooling,
    quantized,
)
from rung.analysis.costs.call import Call, Cost, Model, Tensor, Unknown, checked, read_call

LIST_ITEM = indexing.LIST_ITEM  # the element types of lists that are the same in every call
_FAMILIES = {
    "gemm": gemm.MODELS | quantized.MODELS,
    "moe": moe.MODELS | expert_kernels.MODELS,
    "attention": attention.MODELS,
    "convolution": convolution.MODELS,
    "normalization": normalization.MODELS,
    "pointwise": pointwise.MODELS | quantized.CASTS | attention.CASTS,
    "indexing": indexing.MODELS,
    "copy": copies.MODELS,
    "pooling": pooling.MODELS,
    "selection": indexing.SELECTION,
    "optimizer": optimizer.MODELS,
}
MODELS: dict[str, Model] = {name: model for models in _FAMILIES.values() for name, model in models.items()}
FAMILY_OF: dict[str, str] = {name: family for family, models in _FAMILIES.items() for name in models}


# SGLang's annotated functions end in their line in its source, a user's Triton kernels in a number of Inductor's.
_NUMBERED = re.compile(r"^(sglang_profiler::\w+?|sage_quant_kernel)_\d+$")


def model_of(name: str) -> Model | None:
    """The model of an operator; an in-place form (`aten::add_`) without a model of its own has its sibling's."""
    if name.startswith("triton_"):
        return compiled.kernel
    name = _plain(name)
    found = MODELS.get(name)
    return found or (MODELS.get(name[:-1]) if name.endswith("_") else None)


def needs_lengths(name: str) -> bool:
    """Whether an operator's work depends on lengths of sequences that are none of its inputs."""
    return _plain(name) in attention.LENGTHS


def needs_kernels(name: str) -> bool:
    """Whether an operator's work depends on weights that are none of its inputs, and its kernels say more of them."""
    return name in expert_kernels.MODELS


def tells_of_experts(kernel: str) -> bool:
    """Whether a kernel is one of those that `needs_kernels` is about."""
    return expert_kernels.tells(kernel)


def _plain(name: str) -> str:
    found = _NUMBERED.match(name) if name.startswith("s") else None
    return found[1] if found else name


def family(name: str) -> str | None:
    """The kind of work of an operator that has a model: a key of the list above, or `compiled`."""
    if name.startswith("triton_"):
        return "compiled"
    name = _plain(name)
    return FAMILY_OF.get(name) or FAMILY_OF.get(name.removesuffix("_"))


def cost(call: Call) -> Cost:
    """What the call costs. Raises Unknown where the operator has no model, or its inputs are not what it takes."""
    model = model_of(call.name)
    if model is None:
        raise Unknown
    try:
        return checked(model(call))
    except (IndexError, KeyError, ValueError, TypeError, ZeroDivisionError, OverflowError):
        raise Unknown from None  # a trace may say anything


__all__ = [
    "FAMILY_OF",
    "LIST_ITEM",
    "MODELS",
    "Call",
    "Cost",
    "Model",
    "Tensor",
    "Unknown",
    "cost",
    "family",
    "model_of",
    "needs_kernels",
    "needs_lengths",
    "read_call",
    "tells_of_experts",
]
