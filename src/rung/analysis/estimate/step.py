"""One step of a model: its work by part, its time at a GPU's roof, what ranks exchange, and the memory."""

from __future__ import annotations

from rung.analysis.costs.call import Cost, roof
from rung.analysis.estimate.architecture import Architecture
from rung.analysis.estimate.block import PARTS, Step, Work
from rung.analysis.estimate.memory import SHARDINGS, serving, training
from rung.errors import UsageError
from rung.hardware.peaks import Peaks
from rung.records.estimate import Communication, Estimate, Parted, Serving, Training

MODES = ("train", "infer", "decode")
DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8")
_MOST = 2**31


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
            f"--source is for models with an encoder, or with a text beside the image; {model.name} has neither, so leave it out."
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
    flops, moved = sum(part.flops for part in parts), sum(part.bytes for part in parts)
    floor, tokens = sum(floors) if floors else None, step.rows("tokens")
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
        tokens=tokens,
        parts=parts,
        flops=flops,
        bytes=moved,
        intensity=flops / moved,
        cache_per_token=rank.cache(1, 0) * step.item,
        cache_per_sequence=rank.cache(seq, source) * step.item,
        communication=_communication(model, rank, step, tensor_parallel, data_parallel, sharding),
        memory=memory,
        gpu=peaks.name if peaks else None,
        peaks=peaks.origin if peaks else None,
        gpu_memory=peaks.memory if peaks else None,
        floor_ns=floor,
        measured_floor_ns=sum(measured) if measured else None,
        bound=_bound(parts) if floors else None,
        tokens_per_s=tokens / floor * 1e9 if floor else None,
        fits=memory.total <= peaks.memory if peaks else None,
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
        raise UsageError(f"{model.name} does not generate one token after another: choose --mode infer or train.")
    if mode != "train" and (numbers["data-parallel"] > 1 or sharding != "ddp"):
        raise UsageError("--data-parallel and --sharding are for training: add --mode train.")


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
    floor_ns = bound = measured_ns = None
    if peaks is not None:
        tf32 = "tf32" if dtype == "tf32" else ""
        compute = memory = floor = measured = 0.0
        for work in works:
            found = roof(work.cost, peaks, tf32 if work.cost.matrix else "")
            compute += work.times * found.compute
            memory += work.times * found.memory
            floor += work.times * found.floor
            measured += work.times * found.measured
        floor_ns, bound = round(floor * 1e9), "compute" if compute > memory else "memory"
        measured_ns = round(measured * 1e9) if peaks.measured else None
    return Parted(
        name=name,
        flops=flops,
        bytes=moved,
        intensity=flops / moved,
        floor_ns=floor_ns,
        bound=bound,
        measured_floor_ns=measured_ns,
    )


def _bound(parts: tuple[Parted, ...]) -> str:
    """Which roof most of the time is spent under."""
    time = {"compute": 0, "memory": 0}
    for part in parts:
        if part.bound and part.floor_ns:
            time[part.bound] += part.floor_ns
    return max(time, key=lambda name: time[name])
