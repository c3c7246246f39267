"""What a model costs, on one screen."""

from __future__ import annotations

from rung.analysis.estimate.memory import SHARE
from rung.records.estimate import Estimate, Parted, Serving, Training
from rung.report import units

_MODES = {
    "train": "one training step (forward, backward, AdamW)",
    "infer": "one forward pass over all tokens",
    "decode": "one token for each sequence, the others cached",
}


def estimate_lines(found: Estimate) -> list[str]:
    """The model, the parts with their work and their time at the roof, the sum, what is exchanged, and the memory."""
    active = f" ({units.count(found.active)} active)" if found.active != found.parameters else ""
    source = f", {found.source:,} of source" if found.source else ""
    lines = [
        f"{units.count(found.parameters)} parameters{active}, {found.dtype}: {_MODES[found.mode]}, "
        f"{found.tokens:,} token{'' if found.tokens == 1 else 's'}",
        *units.wrapped(f"{units.one_line(found.name)}: {found.says}; {found.batch} x {found.seq:,}{source}", 118),
    ]
    if found.omitted:
        lines.append(f"Not counted: {', '.join(found.omitted)}.")
    ranks = found.tensor_parallel * found.data_parallel
    if ranks > 1:
        sharding = f", {found.memory.sharding}" if isinstance(found.memory, Training) else ""
        batches = f"; {found.tokens * found.data_parallel:,} tokens in all" if found.data_parallel > 1 else ""
        lines.append(
            f"On each of {ranks} GPUs ({found.tensor_parallel} tensor-parallel x {found.data_parallel} data-parallel{sharding}{batches}):"
        )
    lines += ["", *_table(found), ""]
    lines += _time(found)
    moved = found.communication
    if moved.tensor:
        lines.append(
            f"Tensor parallelism: each GPU sends {units.data_size(moved.tensor_per_layer)} a layer, {units.data_size(moved.tensor)} in all"
            " (not in the time)."
        )
    if moved.data:
        lines.append(f"Data parallelism: each GPU sends {units.data_size(moved.data)} a step (not in the time).")
    if found.cache_per_sequence and found.mode != "train":
        lines.append(
            f"Cache: {units.data_size(found.cache_per_token)} a token, {units.data_size(found.cache_per_sequence)} a sequence of {found.seq:,}."
        )
    return lines + _memory(found)


def _table(found: Estimate) -> list[str]:
    roof = found.peaks is not None
    head: tuple[str, ...] = ("part", "work", "share", "memory traffic", "FLOP/byte")
    head = (*head, "time at the roof", "bound") if roof else head
    rows: list[tuple[str, ...]] = [head]
    named: list[tuple[str, Parted | Estimate]] = [(part.name, part) for part in found.parts]
    for name, part in [*named, ("total", found)]:
        share = f"{part.flops / found.flops:.1%}" if found.flops and part.flops else units.NONE
        row: tuple[str, ...] = (
            name,
            flop(part.flops) if part.flops else units.NONE,  # of norms only the bytes are counted
            share,
            units.data_size(part.bytes),
            units.digits(part.intensity) if part.flops else units.NONE,
        )
        rows.append((*row, units.duration(part.floor_ns), part.bound or "") if roof else row)
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = []
    for number, row in enumerate(rows):
        cells = [cell.ljust(widths[i]) if i in (0, 6) else cell.rjust(widths[i]) for i, cell in enumerate(row)]
        lines.append("  ".join(cells).rstrip())
        if number == len(rows) - 2:
            lines.append("  ".join("-" * width for width in widths))
    return lines


def _time(found: Estimate) -> list[str]:
    if found.peaks is None:
        return ["Add --gpu NAME for the least time on that GPU, and whether the memory is enough."]
    each = "one" if found.tensor_parallel == 1 else f"{found.tensor_parallel} of"
    lines = [f"At the roof of {each} {found.gpu}: {units.count(found.tokens_per_s)} tokens/s, {found.bound}-bound."]
    if found.measured_floor_ns:
        lines.append(f"At the rates that benchmarks reached on it: {units.duration(found.measured_floor_ns)}.")
    if not found.peaks["checked"]:
        lines.append("Its peaks were not checked against their source, which --json names.")
    return lines


def _memory(found: Estimate) -> list[str]:
    memory = found.memory
    if isinstance(memory, Serving):
        parts = {"weights": memory.weights, "cache": memory.cache, "activations": memory.activations}
        lines = _sum(found, "Memory", memory.total, parts)
        if memory.max_batch is not None:
            lines.append(
                f"At most {memory.max_batch:,} sequence{'' if memory.max_batch == 1 else 's'} of {found.seq:,} tokens fit into"
                f" {SHARE:.0%} of its memory, in pages of {memory.page_tokens} tokens."
                if memory.max_batch
                else f"No sequence of {found.seq:,} tokens fits into {SHARE:.0%} of its memory beside the weights: use more GPUs."
            )
        return lines
    states = {"weights": memory.weights, "gradients": memory.gradients, "optimizer": memory.optimizer,
              "gathered": memory.gathered, "buckets": memory.buckets}  # fmt: skip
    return [
        *_sum(found, "Memory", memory.total, {**states, "activations": memory.activations}),
        *_sum(found, "With recomputation of each layer", memory.total_recomputed, {"activations": memory.recomputed}),
        _states(found.dtype),
        *_way_to_fit(found, memory),
    ]


def _states(dtype: str) -> str:
    """What AdamW keeps, which is most of the memory."""
    if dtype in ("fp16", "bf16"):
        return f"Weights and gradients are in {dtype}; the optimizer, AdamW, keeps two moments and a copy of the weights in fp32."
    return "All of it is in fp32; the optimizer, AdamW, keeps two moments."


def _way_to_fit(found: Estimate, memory: Training) -> list[str]:
    """What to change where even recomputation is not enough."""
    if found.gpu_memory is None or memory.total_recomputed <= found.gpu_memory:
        return []
    if memory.recomputed > found.gpu_memory:
        return ["The activations alone do not fit: give a smaller --batch or --seq, or --tensor-parallel N."]
    if not memory.gathered:
        return ["--data-parallel N --sharding fsdp divides weights, gradients and optimizer among N GPUs."]
    return ["To fit it, give more GPUs (--data-parallel, --tensor-parallel), or a smaller --batch or --seq."]


def _sum(found: Estimate, what: str, total: int, parts: dict[str, int]) -> list[str]:
    room = ""
    if found.gpu_memory is not None:
        verdict = "fits" if total <= found.gpu_memory else "does not fit"
        room = f" ({verdict} in {units.data_size(found.gpu_memory)})"
    text = ", ".join(f"{name} {units.data_size(size)}" for name, size in parts.items() if size)
    return units.wrapped(f"{what}: {units.data_size(total)}{room}: {text}.", 118)


def flop(value: float) -> str:
    """31_839_000_000_000 -> "31.8 TFLOP"."""
    for unit, scale in (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)):
        if value >= scale:
            return f"{units.digits(value / scale)} {unit}"
    return f"{units.digits(value)} FLOP" if value else "0"
