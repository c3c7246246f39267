"""Embedding, gathering and scattering, sorting, choosing: what is picked out is read, not the whole table.

Which rows are picked is not recorded. If some repeat they may come from a cache: the bytes are those of different rows,
and never more than the whole table.

Tokens are chosen by their probabilities, experts by their scores, in one pass over what is chosen from: one operation an element that
is looked at, the least; a softmax beside it 5 (as in normalization.py). How often a kernel goes over the probabilities to find a threshold
depends on them, and is not counted. Signatures: SGLang's sgl-kernel/csrc/common_extension.cc, which has FlashInfer's sampling; vLLM's
csrc/torch_bindings.cpp and csrc/moe/torch_bindings.cpp; aiter's ops/moe_op.py and topk.py.
"""

from __future__ import annotations

import math

from rung.analysis.costs.call import Call, Cost, Model, Tensor, Unknown, precision

_SOFTMAX = 5


def embedding(call: Call) -> Cost:
    """aten::embedding(weight [rows, n], indices): a row for each index"""
    table, indices = call.tensor(0), call.tensor(1)
    return _picked(table, indices, indices.size * math.prod(table.shape[1:]))


def embedding_backward(call: Call) -> Cost:
    """aten::embedding_dense_backward(grad_output, indices, num_weights, ...): the table's gradient is zeroed and added to"""
    grad, indices = call.tensor(0), call.tensor(1)
    rows = call.integers(2)
    if not rows or not grad.shape or rows[0] < 0:
        raise Unknown
    table = rows[0] * grad.shape[-1] * grad.item
    return Cost(grad.size, grad.bytes + indices.bytes + table, precision(grad.dtype))


def embedding_bag(call: Call) -> Cost:
    """aten::_embedding_bag(weight [rows, n], indices, offsets, ...): the rows of each bag are added up"""
    table, indices, bags = (call.tensor(i) for i in range(3))
    width = math.prod(table.shape[1:])
    picked = min(indices.size * width * table.item, table.bytes)
    return Cost(indices.size * width, picked + indices.bytes + bags.bytes + bags.size * width * table.item,
                precision(table.dtype))  # fmt: skip


def index_select(call: Call) -> Cost:
    """aten::index_select(self, dim, index)"""
    x, indices, dim = call.tensor(0), call.tensor(2), call.integers(1)
    if not dim or not x.shape or not -len(x.shape) <= dim[0] < len(x.shape) or not x.shape[dim[0]]:
        raise Unknown
    return _picked(x, indices, x.size // x.shape[dim[0]] * indices.size)


def gather(call: Call) -> Cost:
    """aten::gather(self, dim, index): an element for each index"""
    x, indices = call.tensor(0), call.tensor(2)
    return _picked(x, indices, indices.size)


def index(call: Call) -> Cost:
    """aten::index(self, indices): of the index tensors only the shapes are recorded; they count as 64-bit integers"""
    x = call.tensor(0)
    chosen = _indexed(call, x)
    if chosen is None:
        raise Unknown
    return _cost(x, *chosen)


def _indexed(call: Call, x: Tensor) -> tuple[int, int] | None:
    """How many elements of `x` the index tensors choose, and the bytes of these tensors; None where they are not recorded."""
    picks = call.inputs[1] if len(call.inputs) > 1 else None
    if not isinstance(picks, tuple) or isinstance(picks, Tensor) or not picks or len(picks) > len(x.shape):
        return None
    count = max(pick.size for pick in picks)
    return count * math.prod(x.shape[len(picks) :]), sum(pick.size * 8 for pick in picks)


def scatter(call: Call) -> Cost:
    """aten::scatter_(self, dim, index, src), index_add_, index_copy_: what is written, and where"""
    x, indices, source = call.tensor(0), call.tensor(2), call.maybe(3)
    written = source.size if source else indices.size
    read = source.bytes if source else 0
    return Cost(0, indices.bytes + read + written * x.item, precision(x.dtype))


def index_put(call: Call) -> Cost:
    """aten::index_put_(self, indices, values, accumulate): values are written to all that the indices choose. Where these are not recorded, as
    many are taken for written as there are values, if none of their dimensions can be one that is repeated"""
    x, values = call.tensor(0), call.tensor(2)
    chosen = _indexed(call, x)
    if chosen is None and (len(values.shape) < len(x.shape) or 1 in values.shape):
        raise Unknown
    written, indices = chosen or (values.size, 0)
    return Cost(0, values.bytes + written * x.item + indices, precision(x.dtype))


def _picked(table: Tensor, indices: Tensor, elements: int) -> Cost:
    return _cost(table, elements, indices.bytes)


def _cost(table: Tensor, elements: int, indices: int) -> Cost:
    out = elements * table.item
    return Cost(0, min(out, table.bytes) + indices + out, precision(table.dtype))


def sort(call: Call) -> Cost:
    """aten::sort(self, ...): values and their places are written; comparisons are no floating-point operations"""
    x = call.tensor(0)
    return Cost(0, x.bytes + x.size * (x.item + 8), precision(x.dtype))


def topk(call: Call) -> Cost:
    """aten::topk(self, k, dim, ...)"""
    x, k, dim = call.tensor(0), call.integers(1), call.integers(2)
    if not k or not x.shape or k[0] < 0:
        raise Unknown
    length = x.shape[dim[0] if dim and -len(x.shape) <= dim[0] < len(x.shape) else -1]
    kept = x.size // max(length, 1) * min(k[0], length)
    return Cost(0, x.bytes + kept * (x.item + 8), precision(x.dtype))


def nonzero(call: Call) -> Cost:
    """aten::nonzero(self): how many there are is not recorded; the input is read"""
    x = call.tensor(0)
    return Cost(0, x.bytes)


def item(call: Call) -> Cost:
    """aten::_local_scalar_dense(self), is_nonzero: one number goes to the host"""
    x = call.tensor(0)
    return Cost(0, x.item)


# The lists of these hold indices, whatever type their kernels' names show.
LIST_ITEM = dict.fromkeys(("aten::index", "aten::_unsafe_index", "aten::index_put_", "aten::_index_put_impl_"), "int64")


def once(source: int, each: int = 1) -> Model:
    """Every tensor that is recorded is read or written once; `each` operations for an element of the source."""

    def model(call: Call) -> Cost:
        x = call.tensor(source)
        return Cost(each * x.size, sum(t.bytes for t in call.tensors), precision(x.dtype))

    return model


def replaced(call: Call) -> Cost:
    """_C::apply_repetition_penalties_(logits, prompt_mask, output_mask, repetition_penalties): logits are read and written"""
    cost, logits = once(0)(call), call.tensor(0)
    return Cost(cost.flops, cost.bytes + logits.bytes, cost.precision)


MODELS: dict[str, Model] = {
    "aten::embedding": embedding,
    "aten::embedding_dense_backward": embedding_backward,
    "aten::_embedding_bag": embedding_bag,
    "aten::_embedding_bag_forward_only": embedding_bag,
    "aten::index_select": index_select,
    "aten::gather": gather,
    "aten::take_along_dim": gather,
    "aten::index": index,
    "aten::_unsafe_index": index,
    "aten::scatter_": scatter,
    "aten::scatter": scatter,
    "aten::scatter_add_": scatter,
    "aten::scatter_add": scatter,
    "aten::index_add_": scatter,
    "aten::index_copy_": scatter,
    "aten::index_put_": index_put,
    "aten::_index_put_impl_": index_put,
    "aten::sort": sort,
    "aten::argsort": sort,
    "aten::topk": topk,
    "aten::nonzero": nonzero,
    "aten::_local_scalar_dense": item,
    "aten::item": item,
}
SELECTION: dict[str, Model] = {
    **{f"sgl_kernel::{name}": once(0) for name in ("top_k_renorm_probs", "top_p_renorm_probs", "min_p_sampling_from_probs",
                                                   "top_p_sampling_from_probs", "top_k_top_p_sampling_from_probs",
                                                   "top_k_mask_logits")},
    "_C::apply_repetition_penalties_": replaced,
    "_C::top_k_per_row_prefill": once(0),
    "_C::top_k_per_row_decode": once(0),
    "_moe_C::topk_softmax": once(3, _SOFTMAX),
    "sgl_kernel::topk_softmax": once(2, _SOFTMAX),
    "vllm::rocm_aiter_topk_softmax": once(3, _SOFTMAX),
    "aiter::topk_softmax": once(3, _SOFTMAX),
    "vllm::rocm_aiter_grouped_topk": once(0, _SOFTMAX),
    "vllm::rocm_aiter_biased_grouped_topk": once(0, _SOFTMAX),
    "sgl_kernel::moe_fused_gate": once(0, _SOFTMAX),
    "_moe_C::moe_align_block_size": once(0),
    "sgl_kernel::moe_align_block_size": once(0),
    "_moe_C::moe_sum": once(0),
    "sgl_kernel::shuffle_rows": once(0),
}  # fmt: skip
