"""What a transformer of a given shape costs: work, memory, and the time at a GPU's roof."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rung.analysis.costs.attention import pairs
from rung.analysis.costs.call import ITEM, Cost, Tensor
from rung.analysis.costs.gemm import product
from rung.analysis.roof import roof
from rung.errors import UsageError
from rung.hardware.peaks import Peaks

MODES = ("train", "infer", "decode")
DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8")
_KV_READS = 2  # keys and values
_NUMBERS = ("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab", "seq", "batch")


@dataclass(frozen=True)
class Shape:
    """A decoder of the Llama kind: no biases, norms with a gain, an embedding and an output head.

    gated: the MLP has gate, up and down projections, else up and down. tied: the output head is the embedding.
    causal: each token attends to those before it, else to all. In decode one token a sequence is computed, and `seq`
    are cached (it among them).
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    seq: int
    batch: int = 1
    gated: bool = True
    tied: bool = False
    causal: bool = True

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            if not 0 < getattr(self, name) < 2**31:
                raise UsageError(
                    f"--{name.replace('_', '-')} must be a number from 1 to 2^31, not {getattr(self, name)}."
                )
        if self.heads % self.kv_heads:
            raise UsageError(f"--heads {self.heads} must be a multiple of --kv-heads {self.kv_heads}.")

    @classmethod
    def of(cls, *, kv_heads: int | None, head_dim: int | None, ffn: int | None, gated: bool, **given: Any) -> Shape:
        """A shape with what is left out derived: as many heads of keys as of queries, hidden / heads, and an MLP of
        8/3 of hidden to the next multiple of 256 (Llama's rule), or 4 x hidden where it is not gated.
        """
        hidden, heads = given["hidden"], given["heads"]
        if head_dim is None:
            if heads < 1 or hidden % heads:
                raise UsageError(f"--hidden {hidden} is no multiple of --heads {heads}: give --head-dim.")
            head_dim = hidden // heads
        if ffn is None:
            ffn = -(-8 * hidden // (3 * 256)) * 256 if gated else 4 * hidden
        return cls(kv_heads=heads if kv_heads is None else kv_heads, head_dim=head_dim, ffn=ffn, gated=gated, **given)

    @property
    def layer_parameters(self) -> int:
        attention = self.hidden * self.head_dim * 2 * (self.heads + self.kv_heads)
        return attention + self.hidden * self.ffn * (3 if self.gated else 2) + 2 * self.hidden

    @property
    def parameters(self) -> int:
        heads = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * self.layer_parameters + heads + self.hidden


@dataclass(frozen=True)
class Part:
    """A kind of work of one step over all layers. floor_ns and bound are None without a GPU; intensity is FLOP a byte."""

    name: str
    flops: int
    bytes: int
    intensity: float
    floor_ns: int | None
    bound: str | None
    measured_floor_ns: int | None


def estimate(shape: Shape, *, mode: str, dtype: str = "bf16", peaks: Peaks | None = None) -> dict[str, Any]:
    """One step (train: forward, backward and AdamW; infer: forward of all tokens; decode: one token a sequence).

    flops are those of matrix products and attention, as torch.utils.flop_counter counts them but for what a causal
    mask leaves out; bytes: every operator reads its inputs and writes its outputs once, nothing fused but attention.
    memory in bytes: weights; gradients and optimizer (AdamW after "ZeRO", Rajbhandari et al. 2020, section 3.1:
    moments in fp32, and a copy of the weights in fp32 where they are 16 bits); activations that backward needs,
    without recomputation; cache of keys and values.
    """
    if mode not in MODES:
        raise UsageError(f"there is no mode {mode!r}: choose from {', '.join(MODES)}.")
    if dtype not in DTYPES:
        raise UsageError(f"there is no dtype {dtype!r}: choose from {', '.join(DTYPES)}.")
    if mode == "train" and dtype == "fp8":
        raise UsageError("--dtype fp8 is estimated for inference only: choose bf16 to train.")
    parts = [_part(name, costs, dtype, peaks) for name, costs in _costs(shape, mode, dtype)]
    flops, moved = sum(part.flops for part in parts), sum(part.bytes for part in parts)
    floors = [part.floor_ns for part in parts if part.floor_ns is not None]
    measured = [part.measured_floor_ns for part in parts if part.measured_floor_ns is not None]
    tokens = shape.batch * (1 if mode == "decode" else shape.seq)
    total = sum(floors) if floors else None
    memory = _memory(shape, mode, dtype)
    return {
        "kind": "estimate",
        "mode": mode,
        "dtype": dtype,
        "gpu": peaks.name if peaks else None,
        "peaks": peaks.origin if peaks else None,
        "shape": asdict(shape),
        "parameters": shape.parameters,
        "tokens": tokens,
        "parts": [asdict(part) for part in parts],
        "flops": flops,
        "bytes": moved,
        "intensity": flops / moved,
        "floor_ns": total,
        "measured_floor_ns": sum(measured) if measured else None,
        "tokens_per_s": tokens / total * 1e9 if total else None,
        "bound": _bound(parts) if floors else None,
        "memory": memory,
        "fits": sum(memory.values()) <= peaks.memory if peaks else None,
        "gpu_memory": peaks.memory if peaks else None,
    }


def _costs(shape: Shape, mode: str, dtype: str) -> Iterator[tuple[str, list[tuple[int, Cost]]]]:
    """The parts of a step, each as (how often, what it costs)."""
    s, train, layers = shape, mode == "train", shape.layers
    rows = s.batch * (1 if mode == "decode" else s.seq)
    queries = s.heads * s.head_dim
    keys = s.kv_heads * s.head_dim

    def linear(inner: int, out: int, times: int = layers) -> list[tuple[int, Cost]]:
        return [(times, cost) for cost in _linear(rows, inner, out, dtype, train)]

    yield "qkv", linear(s.hidden, queries + 2 * keys)
    yield "scores", [(layers, cost) for cost in _attention(s, mode, dtype)]
    yield "projection", linear(queries, s.hidden)
    yield "mlp", [*linear(s.hidden, s.ffn, layers * (2 if s.gated else 1)), *linear(s.ffn, s.hidden)]
    yield "logits", linear(s.hidden, s.vocab, 1)
    yield "norms and elementwise", [(1, Cost(0, _elementwise(s, mode, rows, dtype)))]
    if train:
        # Weights, moments: read and written in fp32; gradients read; the weights' short copy written.
        item = ITEM[_storage(dtype)]
        yield "optimizer", [(1, Cost(0, s.parameters * (6 * 4 + item + (item if item < 4 else 0))))]


def _linear(rows: int, inner: int, out: int, dtype: str, train: bool) -> list[Cost]:
    """x [rows, inner] by a weight [out, inner]; in training its two gradients, each another product of that size."""
    kind = _storage(dtype)
    x, weight = _tensor(rows, inner, dtype=kind), _tensor(inner, out, dtype=kind)
    result = "bf16" if kind == "fp8" else kind
    costs = [product(x, weight, rows * out, inner, dtype=result)]
    if train:
        grad = _tensor(rows, out, dtype=kind)
        costs += [product(grad, weight, rows * inner, out), product(grad, x, inner * out, rows)]
    return costs


def _attention(s: Shape, mode: str, dtype: str) -> list[Cost]:
    """q k^T and the product with v, one layer, fused as in FlashAttention: the formulas of costs/attention.py."""
    item = 2 if dtype == "fp8" else ITEM[_storage(dtype)]
    queries = 1 if mode == "decode" else s.seq
    seen = s.batch * s.heads * pairs(queries, s.seq, s.causal, last_key=True)
    q = s.batch * queries * s.heads * s.head_dim * item
    kv = _KV_READS * s.batch * s.seq * s.kv_heads * s.head_dim * item
    rows = s.batch * s.heads * queries * 4
    once = 2 * seen * s.head_dim
    kind = "bf16" if dtype == "fp8" else dtype
    costs = [Cost(2 * once, 2 * q + kv + (rows if mode == "train" else 0), kind, matrix=True)]
    if mode == "train":
        costs.append(Cost(5 * once, 4 * q + 2 * kv + rows, kind, matrix=True))
    return costs


def _elementwise(s: Shape, mode: str, rows: int, dtype: str) -> int:
    """Bytes of two norms, two residual additions and the activation a layer, the last norm and the embedding.

    Each forward operator reads its inputs and writes its output; backward moves twice as much.
    """
    item = 2 if dtype == "fp8" else ITEM[_storage(dtype)]
    layer = 2 * 2 * s.hidden + 2 * 3 * s.hidden + (5 if s.gated else 2) * s.ffn
    layer += 2 * (s.heads + s.kv_heads) * s.head_dim  # rotary embedding
    forward = rows * item * (s.layers * layer + 2 * s.hidden + 2 * s.hidden)
    return forward * (3 if mode == "train" else 1)


def _memory(s: Shape, mode: str, dtype: str) -> dict[str, int]:
    item = ITEM[_storage(dtype)]
    wide = 2 if dtype == "fp8" else item
    memory = {"weights": s.parameters * item}
    if mode == "train":
        rows = s.batch * s.seq
        memory["gradients"] = s.parameters * item
        memory["optimizer"] = s.parameters * (8 + (4 if item < 4 else 0))
        # Inputs of both norms and of both projections behind them, q, k, v, the attention's result, and in the MLP
        # what the activation, the gate's product and the last projection need.
        saved = 4 * s.hidden + 2 * (s.heads + s.kv_heads) * s.head_dim + (4 if s.gated else 2) * s.ffn
        memory["activations"] = rows * (s.layers * saved * item + s.vocab * (item + 4))
    else:
        memory["cache"] = _KV_READS * s.layers * s.batch * s.seq * s.kv_heads * s.head_dim * wide
        rows = s.batch * (1 if mode == "decode" else s.seq)
        memory["activations"] = rows * wide * max(2 * s.hidden + 3 * s.ffn, s.vocab)
    return memory


def _part(name: str, costs: list[tuple[int, Cost]], dtype: str, peaks: Peaks | None) -> Part:
    flops = sum(times * cost.flops for times, cost in costs)
    moved = sum(times * cost.bytes for times, cost in costs)
    if peaks is None:
        return Part(name, flops, moved, flops / moved, None, None, None)
    tf32 = "tf32" if dtype == "tf32" else ""
    roofs = [(times, roof(cost, peaks, tf32 if cost.matrix else "")) for times, cost in costs]
    compute, memory, floor, measured = (
        sum(n * seconds for n, seconds in column)
        for column in zip(
            *([(n, r.compute), (n, r.memory), (n, r.floor), (n, r.measured)] for n, r in roofs), strict=True
        )
    )
    bound = "compute" if compute > memory else "memory"
    reached = round(measured * 1e9) if peaks.measured else None
    return Part(name, flops, moved, flops / moved, round(floor * 1e9), bound, reached)


def _bound(parts: list[Part]) -> str:
    """Which roof most of the time is spent under."""
    time = {"compute": 0, "memory": 0}
    for part in parts:
        if part.bound and part.floor_ns:
            time[part.bound] += part.floor_ns
    return max(time, key=lambda name: time[name])


def _storage(dtype: str) -> str:
    return "fp32" if dtype == "tf32" else dtype


def _tensor(*shape: int, dtype: str) -> Tensor:
    size = shape[0] * shape[1]
    return Tensor(shape, dtype, size)
