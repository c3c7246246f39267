"""Why TraceLens counts other operations or bytes of a call than Rung, where the recorded shapes show it."""

from __future__ import annotations

from raw_events import near

from rung.analysis.costs import Call, Cost, family

_REDUCTIONS = tuple(f"aten::{name}" for name in ("mean", "sum", "amax", "amin", "max", "min", "prod", "norm"))


def operations(call: Call, mine: Cost, peer: int) -> str | None:
    """Why a peer counts other operations, where the numbers show it."""
    kind, more = family(call.name), peer - mine.flops
    first = max((t.size for t in call.tensors), default=0)
    if kind == "gemm" and call.name == "aten::addmm" and near(more, call.tensor(1).shape[0] * call.tensor(2).shape[1]):
        return "it counts the additions of the bias"
    if kind == "gemm" and call.maybe(2) and near(more, mine.flops / 2 / call.tensor(1).shape[-1]):
        return "it counts the additions of the bias"
    if kind == "attention":
        keys = call.tensor(1).shape[2 if call.tensor(0).shape[2] == call.tensor(1).shape[2] else 1]
        if near(peer * (keys + 1), mine.flops * keys):
            return "it halves the square of the causal mask, Rung counts its diagonal whole"
    if kind == "copy" and not mine.flops:
        return "it counts an operation for each element that is copied"
    if call.name == "aten::convolution_backward" and near(peer, 2 * mine.flops):
        return f"it counts two gradients, of which output_mask ({call.text(10)}) asks for one"
    if kind == "compiled" and not mine.flops:
        return (
            "of Inductor's pointwise kernels and reductions Rung counts bytes alone, it guesses operations by the name"
        )
    if kind in ("normalization", "pointwise", "pooling", "indexing", "optimizer") and first:
        return f"it counts {peer / first:.3g} operations an element, Rung {mine.flops / first:.3g} (the bytes decide there)"
    return None


def traffic(call: Call, mine: Cost, peer: int) -> str | None:
    kind, less = family(call.name), mine.bytes - peer
    if kind == "attention":
        q = call.tensor(0)
        if near(less, 4 * q.size // q.shape[-1]):
            return "the log-sum-exp of each row is written, too"
    if call.name == "aten::convolution_backward" and near(peer, 2 * mine.bytes):
        return f"it counts two gradients, of which output_mask ({call.text(10)}) asks for one"
    if kind == "pointwise" and call.name in _REDUCTIONS and less > 0:
        item = call.tensor(0).item
        if less % item == 0 and peer == call.tensor(0).bytes + item:
            return f"it takes the result for one element; {less // item + 1} are written"
    if kind == "compiled" and any(near(-less, t.bytes) for t in call.tensors):
        return (
            "nothing recorded says which argument is replaced in place: Rung counts each once, it one more as written"
        )
    if call.name == "aten::cumsum" and less == call.tensor(0).size * (8 - call.tensor(0).item):
        return "sums of narrow integers have 64 bits"
    if kind == "copy" and not peer:
        return "it takes a copy of this type for nothing"
    if kind == "convolution" and call.maybe(2) and less == call.tensor(2).bytes:
        return "the bias is read, too"
    if any(t.stored < t.size for t in call.tensors) and less < 0:
        return "it counts an expanded view whole, which stores less"
    small = sum(t.bytes for t in call.tensors if len(t.shape) <= 1)
    if kind == "normalization" and abs(less) <= 3 * small + 4 * 4 * max(
        (t.size for t in call.tensors if len(t.shape) == 1), default=0
    ):
        return f"gains and statistics ({abs(less)} bytes) are read or written, too"
    return None
