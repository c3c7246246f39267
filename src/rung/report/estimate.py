"""What a transformer costs, on one screen."""

from __future__ import annotations

from typing import Any

from rung.report import units

_MODES = {
    "train": "one training step (forward, backward, AdamW)",
    "infer": "one forward pass over all tokens",
    "decode": "one token for each sequence, the others cached",
}


def estimate_lines(found: dict[str, Any]) -> list[str]:
    """The shape, the parts with their work and their time at the roof, the sum, and the memory."""
    shape = found["shape"]
    lines = [
        f"{units.count(found['parameters'])} parameters, {found['dtype']}: {_MODES[found['mode']]}, "
        f"{found['tokens']:,} token{'' if found['tokens'] == 1 else 's'}",
        f"hidden {shape['hidden']}, {shape['layers']} layers, {shape['heads']} heads of {shape['head_dim']}"
        + (f" ({shape['kv_heads']} of keys and values)" if shape["kv_heads"] != shape["heads"] else "")
        + f", MLP {shape['ffn']}{' gated' if shape['gated'] else ''}, vocabulary {shape['vocab']}"
        f"{' (tied)' if shape['tied'] else ''}, {shape['batch']} x {shape['seq']}"
        f" {'causal' if shape['causal'] else 'full'}",
        "",
    ]
    roof = found["gpu"] is not None
    rows = [("part", "work", "share", "memory traffic", "FLOP/byte", *(("time at the roof", "bound") if roof else ()))]
    for part in [*found["parts"], found | {"name": "total"}]:
        share = f"{part['flops'] / found['flops']:.1%}" if found["flops"] else units.NONE
        row = (
            part["name"],
            flop(part["flops"]),
            share,
            units.data_size(part["bytes"]),
            units.digits(part["intensity"]),
        )
        rows.append((*row, *((units.duration(part["floor_ns"]), part["bound"]) if roof else ())))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = [cell.ljust(widths[i]) if i in (0, 6) else cell.rjust(widths[i]) for i, cell in enumerate(row)]
        lines.append("  ".join(cells).rstrip())
        if number == len(rows) - 2:
            lines.append("  ".join("-" * width for width in widths))
    lines += [""]
    if roof:
        lines.append(
            f"At the roof of one {found['gpu']}: {units.count(found['tokens_per_s'])} tokens/s, {found['bound']}-bound."
        )
        if found["measured_floor_ns"]:
            lines.append(f"At the rates that benchmarks reached on it: {units.duration(found['measured_floor_ns'])}.")
        if not (found.get("peaks") or {}).get("checked"):
            lines.append("Its peaks are as the source is remembered, not checked against it (--json: the source).")
    memory = found["memory"]
    total = sum(memory.values())
    parts = ", ".join(f"{name} {units.data_size(size)}" for name, size in memory.items())
    room = (
        ""
        if not roof
        else f" ({'fits' if found['fits'] else 'does not fit'} in {units.data_size(found['gpu_memory'])})"
    )
    lines.append(f"Memory: {units.data_size(total)}{room}: {parts}.")
    return lines


def flop(value: float) -> str:
    """31_839_000_000_000 -> "31.8 TFLOP"."""
    for unit, scale in (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6)):
        if value >= scale:
            return f"{units.digits(value / scale)} {unit}"
    return f"{units.digits(value)} FLOP" if value else "0"
