"""How close is each kernel to the roofs of its memory levels and of its arithmetic, by the counters?"""

from __future__ import annotations

import polars as pl

from rung.analysis.counters.gpu import Gpu, gpu_of
from rung.analysis.counters.metrics import figures, parts
from rung.analysis.counters.verdict import LEVELS, RATES, peak_rate
from rung.analysis.counters.wide import wide
from rung.trace.table import Trace

SCHEMA: dict[str, pl.DataType] = {
    "kernel": pl.String(),
    "time_ns": pl.Int64(),
    "roof": pl.String(),
    "used_share": pl.Float64(),
    "measured_share": pl.Float64(),
    "rate": pl.Float64(),
    "peak": pl.Float64(),
    "measured_peak": pl.Float64(),
    "unit": pl.String(),
    "intensity": pl.Float64(),
    "amount": pl.Float64(),
    "device": pl.Int32(),
    "rank": pl.Int32(),
}
_SHOWN = {"hbm": "HBM", "infinity cache": "Infinity Cache", "l2": "L2", "l1": "L1", "lds": "LDS"}


def counter_roofline(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a kernel (of a device and rank) and roof that it uses, the kernel with most time first, its nearest roof first.

    HBM and Infinity Cache rows rest on the same counters, the traffic between L2 and fabric: HBM is at most that.

    kernel: its name.
    time_ns: of its dispatches.
    roof: "HBM", "Infinity Cache", "L2", "L1", "LDS", or a kind of arithmetic, as in "vector fp32", "matrix bf16".
    used_share, measured_share: rate / peak, and rate / measured_peak.
    rate: what the kernel did in its time.
    peak: by data sheet and clock.
    measured_peak: what a benchmark reached on that machine (rocprof-compute's roofline.csv), if the folder has it.
    unit: of rate and peaks: GB/s or TFLOP/s.
    intensity: FLOP per byte of that level, over all the arithmetic that was counted; null for arithmetic.
    amount: bytes or FLOP of all dispatches.
    """
    table = wide(trace)
    rows = []
    for device in table["device"].unique(maintain_order=True):
        gpu = gpu_of(trace, device)
        mine = table.filter(pl.col("device").eq_missing(device))
        for row in figures(parts(mine, gpu), ("kernel", "rank")).iter_rows(named=True):
            rows += [
                {"kernel": row["kernel"], "device": device, "rank": row["rank"], **roof} for roof in _roofs(row, gpu)
            ]
    found = pl.DataFrame(rows, schema=SCHEMA)
    return found.sort("time_ns", "kernel", "rank", "used_share", descending=[True, False, False, True], nulls_last=True)


def _roofs(row: dict[str, float | None], gpu: Gpu) -> list[dict[str, object]]:
    time, flops = row["time_ns"], row.get("flops")
    if not time:
        return []
    made: list[dict[str, object]] = []
    for level in ("hbm", "infinity cache", "l2", "l1", "lds"):
        moved = row.get(LEVELS["hbm" if level == "infinity cache" else level])
        if moved and (level != "infinity cache" or level in gpu.bandwidth or level in gpu.measured):
            intensity = flops / moved if flops is not None else None
            made.append(_roof(_SHOWN[level], moved, time, 1e9, gpu.bandwidth.get(level), gpu.measured.get(level)))
            made[-1] |= {"unit": "GB/s", "intensity": intensity}
    for name, (precision, matrix) in RATES.items():
        if row.get(name):
            said = f"{'matrix' if matrix else 'vector'} {precision}"
            measured = gpu.measured.get(f"mfma {precision}" if matrix else precision)
            made.append(_roof(said, row[name] or 0.0, time, 1e12, peak_rate(gpu, precision, matrix=matrix), measured))
            made[-1] |= {"unit": "TFLOP/s"}
    return made


def _roof(
    name: str, amount: float, time: float, unit: float, peak: float | None, measured: float | None
) -> dict[str, object]:
    rate = amount / time * 1e9
    return {
        "time_ns": int(time),
        "roof": name,
        "used_share": rate / peak if peak else None,
        "measured_share": rate / measured if measured else None,
        "rate": rate / unit,
        "peak": peak / unit if peak else None,
        "measured_peak": measured / unit if measured else None,
        "amount": amount,
    }
