"""One step of a model: its work by part, its time at a GPU's roof, what ranks exchange, and the memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rung.analysis.costs.call import Cost, roof
from rung.analysis.estimate.architecture import Architecture
from rung.analysis.estimate.block import PARTS, Step, Work
from rung.analysis.estimate.memory import SHARDINGS, Serving, Training, serving, training
from rung.errors import UsageError
from rung.hardware.peaks import Peaks

MODES = ("train", "infer", "decode")
DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8")
_MOST = 2**31


@dataclass(frozen=True)
class Parted:
    """A part of a step on one GPU, over all layers. floor_ns and bound are None without a GPU; intensity is FLOP a byte."""

    name: str
    flops: int
    bytes: int
    intensity: float
    floor_ns: int | None
    bound: str | None
    measured_floor_ns: int | None


@dataclass(frozen=True)
class Communication:
    """Bytes that each GPU sends in a step. tensor_per_layer: of a layer's all-reduces in tensor parallelism; data: of gradients and
    gathered weights in data parallelism. Rings: an all-reduce of S bytes among N sends 2 S (N - 1) / N (nccl-tests, PERFORMANCE.md), a
    gather or a scatter half of it. Not in the time: no data sheet's link is known here.
    """

    tensor_per_layer: int
    tensor: int
    data: int


@dataclass(frozen=True)
class Estimate:
    """What a step costs on one GPU. parameters, active: of the whole model; gpu_parameters: of one rank of tensor parallelism. tokens: that a
    data-parallel rank computes. cache_per_token, cache_per_sequence: bytes over all layers, on one GPU; a token beyond a window costs
    less. tokens_per_s: of one data-parallel rank, at the roof, communication left out.
    """

    mode: str
    dtype: str
    name: str
    says: str
    omitted: tuple[str, ...]
    batch: int
    seq: int
    source: int
    tensor_parallel: int
    data_parallel: int
    parameters: int
    active: int
    gpu_parameters: int
    tokens: int
    parts: tuple[Parted, ...]
    flops: int
    bytes: int
    cache_per_token: int
    cache_per_sequence: int
    communication: Communication
    memory: Training | Serving
    peaks: Peaks | None
    floor_ns: int | None
    measured_floor_ns: int | None
    bound: str | None

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes

    @property
    def tokens_per_s(self) -> float | None:
        return self.tokens / self.floor_ns * 1e9 if self.floor_ns else None

    @property
    def fits(self) -> bool | None:
        return self.memory.total <= self.peaks.memory if self.peaks else None

    def as_dict(self) -> dict[str, Any]:
        """The whole record, for a document."""
        found = {name: value for name, value in vars(self).items() if name not in ("peaks", "parts")}
        memory = asdict(self.memory) | {"total": self.memory.total}
        if isinstance(self.memory, Training):
            memory |= {"states": self.memory.states, "total_recomputed": self.memory.total_recomputed}
        return {
            "kind": "estimate",
            **found,
            "parts": [asdict(part) for part in self.parts],
            "communication": asdict(self.communication),
            "memory": memory,
            "intensity": self.intensity,
            "gpu": self.peaks.name if self.peaks else None,
            "peaks": self.peaks.origin if self.peaks else None,
            "gpu_memory": self.peaks.memory if self.peaks else None,
            "tokens_per_s": self.tokens_per_s,
            "fits": self.fits,
        }


def estimate(
    model: Architecture,
    *,
    mode: str,
    seq: int | None = None,
    source: int | None = None,
    batch: int = 1,
    dtype: str = "bf16",
    peaks: Peaks | None = None,
    tensor_parallel: int = 1,
    data_parallel: int = 1,
    sharding: str = "ddp",
) -> Estimate:
    """One step (train: forward, backward and AdamW; infer: forward of all tokens; decode: one token a sequence, of `seq` that are cached
    with it).

    seq, source: tokens of a sequence and of its source; None for the model's own lengths, else 2048 and as many as seq. batch:
    sequences of a data-parallel rank.

    flops are those of matrix products and attention, as torch.utils.flop_counter counts them but for what a causal mask or a window
    leaves out; bytes: every operator reads its inputs and writes its outputs once, nothing fused but attention.
    Raises UsageError for what the model does not do, and for numbers that are none.
    """
    seq = (model.tokens or 2048) if seq is None else seq
    source = source if source is not None else seq if model.source is None else model.source
    _check(model, mode, dtype, sharding, {"seq": seq, "batch": batch, "source": source or 1,
           "tensor-parallel": tensor_parallel, "data-parallel": data_parallel})  # fmt: skip
    if source and model.source == 0:
        raise UsageError(
            f"--source is for models with an encoder or a text beside the image, and {model.name} has none."
        )
    decode, train = mode == "decode", mode == "train"
    step = Step(batch, 1 if decode else seq, seq, source, dtype, train, cached=decode)
    rank = model.shard(tensor_parallel)
    works = [*rank.work(step)]
    if train:
        works.append(_optimizer(rank, step, 1 if sharding == "ddp" else data_parallel))
    parts = tuple(
        _parted(name, mine, dtype, peaks)
        for name in PARTS
        if (mine := [w for w in works if w.part == name and w.times])
    )
    floors = [part.floor_ns for part in parts if part.floor_ns is not None]
    measured = [part.measured_floor_ns for part in parts if part.measured_floor_ns is not None]
    memory: Training | Serving = (
        training(rank, step, sharding, data_parallel)
        if train
        else serving(rank, step, seq, peaks.memory if peaks else None)
    )
    return Estimate(
        mode=mode,
        dtype=dtype,
        name=model.name,
        says=model.says,
        omitted=model.omitted,
        batch=batch,
        seq=seq,
        source=source,
        tensor_parallel=tensor_parallel,
        data_parallel=data_parallel,
        parameters=model.parameters,
        active=model.active,
        gpu_parameters=rank.parameters,
        tokens=step.rows("tokens"),
        parts=parts,
        flops=sum(part.flops for part in parts),
        bytes=sum(part.bytes for part in parts),
        cache_per_token=rank.cache(1, 0) * step.item,
        cache_per_sequence=rank.cache(seq, source) * step.item,
        communication=_communication(model, rank, step, tensor_parallel, data_parallel, sharding),
        memory=memory,
        peaks=peaks,
        floor_ns=sum(floors) if floors else None,
        measured_floor_ns=sum(measured) if measured else None,
        bound=_bound(parts) if floors else None,
    )


def _check(model: Architecture, mode: str, dtype: str, sharding: str, numbers: dict[str, int]) -> None:
    for what, value, known in (("mode", mode, MODES), ("dtype", dtype, DTYPES), ("sharding", sharding, SHARDINGS)):
        if value not in known:
            raise UsageError(f"there is no {what} {value!r}: choose from {', '.join(known)}.")
    for name, number in numbers.items():
        if not 0 < number < _MOST:
            raise UsageError(f"--{name} must be a number from 1 to 2^31, not {number}.")
    if mode == "train" and dtype == "fp8":
        raise UsageError("--dtype fp8 is estimated for inference only: choose bf16 to train.")
    if mode == "decode" and not model.decodes:
        raise UsageError(f"{model.name} makes no token after the other: choose --mode infer or train.")
    if mode != "train" and (numbers["data-parallel"] > 1 or sharding != "ddp"):
        raise UsageError("--data-parallel and --sharding are about training: add --mode train.")


def _optimizer(model: Architecture, step: Step, ranks: int) -> Work:
    """AdamW over the parameters of this rank: weights and two moments read and written in fp32, gradients read, and the weights' short
    copy written.
    """
    item = step.weight
    return Work("optimizer", Cost(0, -(-model.parameters // ranks) * (6 * 4 + item + (item if item < 4 else 0))))


def _communication(
    model: Architecture, rank: Architecture, step: Step, tensor: int, data: int, sharding: str
) -> Communication:
    """Tensor parallelism sums once after attention and once after the MLP, and as often in backward (Megatron-LM, section 3). Data
    parallelism sums the gradients; where weights are divided, they are gathered twice and gradients scattered ("ZeRO", section 7).
    """

    def summed(layers_alone: bool) -> int:
        groups = [group for group in model.groups if group.layer or not layers_alone]
        elements = sum(g.count * sum(block.reduced(step) for block in g.blocks) for g in groups)
        return 2 * elements * step.item * (tensor - 1) // tensor * (2 if step.train else 1)

    moved = rank.parameters * step.weight * (data - 1) // data if step.train else 0
    return Communication(
        tensor_per_layer=summed(True) // max(model.layers, 1),
        tensor=summed(False),
        data=moved * (3 if sharding in ("fsdp", "zero3") else 2),
    )


def _parted(name: str, works: list[Work], dtype: str, peaks: Peaks | None) -> Parted:
    flops = sum(work.times * work.cost.flops for work in works)
    moved = sum(work.times * work.cost.bytes for work in works)
    if peaks is None:
        return Parted(name, flops, moved, flops / moved, None, None, None)
    tf32 = "tf32" if dtype == "tf32" else ""
    compute = memory = floor = measured = 0.0
    for work in works:
        found = roof(work.cost, peaks, tf32 if work.cost.matrix else "")
        compute += work.times * found.compute
        memory += work.times * found.memory
        floor += work.times * found.floor
        measured += work.times * found.measured
    bound = "compute" if compute > memory else "memory"
    reached = round(measured * 1e9) if peaks.measured else None
    return Parted(name, flops, moved, flops / moved, round(floor * 1e9), bound, reached)


def _bound(parts: tuple[Parted, ...]) -> str:
    """Which roof most of the time is spent under."""
    time = {"compute": 0, "memory": 0}
    for part in parts:
        if part.bound and part.floor_ns:
            time[part.bound] += part.floor_ns
    return max(time, key=lambda name: time[name])
