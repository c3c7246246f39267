"""What moves data and computes nothing: every byte read once and written once."""

from __future__ import annotations

import math

from rung.analysis.costs.call import ITEM, SCALAR_TYPES, Call, Cost, Model, Tensor, Unknown


def copy(call: Call) -> Cost:
    """aten::copy_(self, src): also between types and devices; an expanded source is read once"""
    target, source = call.tensor(0), call.tensor(1)
    return Cost(0, source.bytes + target.size * target.item)


def same(call: Call) -> Cost:
    """(self, ...): a result of the same size and type, as of clone, flip and roll"""
    x = call.tensor(0)
    return Cost(0, x.bytes + x.size * x.item)


def cast(call: Call) -> Cost:
    """aten::_to_copy(self, dtype, ...)"""
    x, number = call.tensor(0), call.integers(1)
    item = ITEM[SCALAR_TYPES.get(number[0], x.dtype)] if number else x.item
    return Cost(0, x.bytes + x.size * item)


def fill(call: Call) -> Cost:
    """aten::fill_, zero_, normal_ ...(self, ...): written, not read"""
    x = call.tensor(0)
    return Cost(0, x.size * x.item)


def cat(call: Call) -> Cost:
    """aten::cat(tensors, dim), stack"""
    return _moved(call.tensor_list(0))


def flat(call: Call) -> Cost:
    """All tensors of the call read, and as much written: torch's bucketing of gradients"""
    return _moved(tuple(call.tensors))


def copy_list(call: Call) -> Cost:
    """aten::_foreach_copy_(self, src)"""
    return _moved(call.tensor_list(1))


def fill_list(call: Call) -> Cost:
    """aten::_foreach_zero_(self)"""
    return Cost(0, sum(t.size * t.item for t in call.tensor_list(0)))


def _moved(tensors: tuple[Tensor, ...]) -> Cost:
    if not tensors:
        raise Unknown
    return Cost(0, sum(t.bytes + t.size * t.item for t in tensors))


def repeat(call: Call) -> Cost:
    """aten::repeat(self, repeats)"""
    x, times = call.tensor(0), call.integers(1)
    if not times or min(times) < 0:
        raise Unknown
    return Cost(0, x.bytes + x.size * math.prod(times) * x.item)


def pad(call: Call) -> Cost:
    """aten::constant_pad_nd(self, pad, value): pairs of what is put before and after, the last dimension first"""
    x, amounts = call.tensor(0), call.integers(1)
    shape = list(x.shape)
    if len(amounts) % 2 or len(amounts) > 2 * len(shape):
        raise Unknown
    for i in range(len(amounts) // 2):
        shape[-1 - i] += amounts[2 * i] + amounts[2 * i + 1]
    if min(shape, default=0) < 0:
        raise Unknown
    return Cost(0, x.bytes + math.prod(shape) * x.item)


def arange(call: Call) -> Cost:
    """aten::arange(start, end, step, ...): 64-bit integers unless another type was asked for"""
    given = call.maybe(len(call.inputs) - 1)  # the overload that writes into a tensor
    if given is not None:
        return Cost(0, given.size * given.item)
    try:
        numbers = [float(value) for value in call.values[:3] if value not in ("", "None")]
    except ValueError:
        raise Unknown from None
    start, end, step = (0.0, *numbers[:1], 1.0) if len(numbers) == 1 else (*numbers[:2], 1.0)
    if len(numbers) == 0 or not math.isfinite(end - start) or abs(end - start) > 2**40:
        raise Unknown
    return Cost(0, math.ceil(abs(end - start) / step) * 8)


def cache_write(call: Call) -> Cost:
    """_C_cache_ops::reshape_and_cache*(key, value, key_cache, value_cache, slots, ...) and sglang::store_cache: the new keys
    and values, and where they go"""
    key, value, slots = call.tensor(0), call.tensor(1), call.maybe(4)
    written = (key.size + value.size) * call.tensor(2).item
    return Cost(0, key.bytes + value.bytes + written + (slots.bytes if slots else 0), cache=written)


def latent_write(call: Call) -> Cost:
    """_C_cache_ops::concat_and_cache_mla(kv_c [tokens, n], k_pe [tokens, m], kv_cache, slots, ...): one row a token"""
    latent, rotary, slots = call.tensor(0), call.tensor(1), call.maybe(3)
    written = (latent.size + rotary.size) * call.tensor(2).item
    return Cost(0, latent.bytes + rotary.bytes + written + (slots.bytes if slots else 0), cache=written)


MODELS: dict[str, Model] = {
    "aten::copy_": copy,
    "aten::_copy_from": copy,
    **{f"aten::{name}": same for name in ("clone", "contiguous", "flip", "roll", "rot90", "permute_copy", "view_copy",
                                          "transpose_copy", "reshape", "split_with_sizes_copy", "_to_dense")},
    "aten::_to_copy": cast,
    "aten::to": cast,
    **{f"aten::{name}": fill for name in ("fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_",
                                          "log_normal_", "cauchy_", "geometric_", "eye")},
    "aten::cat": cat,
    "aten::stack": cat,
    "aten::_chunk_cat": cat,
    "fsdp::chunk_cat": cat,
    "aten::flatten_dense_tensors": cat,
    "aten::repeat": repeat,
    "aten::constant_pad_nd": pad,
    "aten::arange": arange,
    "aten::_foreach_copy_": copy_list,
    "aten::_foreach_zero_": fill_list,
    "torch.distributed.ddp.reducer::copy_bucket_to_grad": flat,
    "_C_cache_ops::reshape_and_cache": cache_write,
    "_C_cache_ops::reshape_and_cache_flash": cache_write,
    "_C_cache_ops::concat_and_cache_mla": latent_write,
    "aiter::reshape_and_cache": cache_write,
    "sglang::store_cache": cache_write,
}  # fmt: skip
