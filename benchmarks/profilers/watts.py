"""Whether the power that Rung reads is true: NVML and nvidia-smi beside the same load."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from commands import Bench, end

from rung.profilers.sampling import Sampling

# A load that keeps the tensor cores busy.
LOAD = """
import sys, time, torch
a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
until = time.monotonic() + float(sys.argv[1])
print("ready", flush=True)
while time.monotonic() < until:
    for _ in range(20):
        a @ b
    torch.cuda.synchronize()
"""


def sensors(bench: Bench, seconds: float = 20.0) -> Iterator[str]:
    """NVML through Rung and nvidia-smi, both beside the same load; the window leaves its first and last 3 s out."""
    query = "timestamp,index,power.draw,power.draw.instant,memory.used,clocks.sm,temperature.gpu"
    log = bench.folder / "nvidia-smi.csv"
    load = bench.started(LOAD, [str(seconds)])
    with log.open("w") as out:
        smi = subprocess.Popen(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "-lms", "50"],
                               stdout=out, stderr=subprocess.STDOUT)  # fmt: skip
        try:
            with Sampling(bench.folder / "nvml", 20.0) as sampling:
                load.wait(timeout=seconds + 30)
        finally:
            smi.terminate()
            smi.wait()
            end(load)
    table = sampling.table().filter(gpu=0)
    first, last = table["realtime_ns"].min() / 1e9 + 3, table["realtime_ns"].max() / 1e9 - 3
    ours = table.filter((table["realtime_ns"] / 1e9 >= first) & (table["realtime_ns"] / 1e9 <= last))
    theirs = [row for row in smi_rows(log) if first <= row[0] <= last]
    if len(theirs) < 10 or len(ours) < 10:
        yield f"too few samples: {len(ours)} of ours, {len(theirs)} of nvidia-smi; see {log.name}."
        return
    span = (ours["monotonic_ns"].max() - ours["monotonic_ns"].min()) / 1e9
    energy = ours["energy_j"].max() - ours["energy_j"].min()
    ordinary = statistics.fmean(row[1] for row in theirs)
    instant = [row[2] for row in theirs if row[2] is not None]
    rows = [
        ("mean power: NVML's readings, nvidia-smi's power.draw", ours["power_w"].mean(), ordinary, "W"),
        ("mean power: NVML's energy counter by time, power.draw", energy / span, ordinary, "W"),
        ("energy: counter, power.draw over the same time", energy, ordinary * span, "J"),
        ("memory in use (median)", ours["used_bytes"].median() / 2**20, statistics.median(r[3] for r in theirs), "MiB"),
        ("core clock (median)", ours["core_mhz"].median(), statistics.median(r[4] for r in theirs), "MHz"),
        ("temperature (highest)", ours["celsius"].max(), max(r[5] for r in theirs), "°C"),
    ]
    if instant:
        rows.insert(3, ("mean power: energy counter by time, power.draw.instant", energy / span, statistics.fmean(instant), "W"))  # fmt: skip
    yield from (f"{span:.1f} s of bf16 products of 8192³, {len(ours)} samples of ours, {len(theirs)} of nvidia-smi.", "",
             "| what | Rung | nvidia-smi | difference | within 5 %? |", "|---|---|---|---|---|")  # fmt: skip
    for what, mine, other, unit in rows:
        share = mine / other - 1 if other else float("nan")
        verdict = "agree" if abs(share) <= 0.05 else "DISAGREE"
        yield f"| {what} | {mine:.1f} {unit} | {other:.1f} {unit} | {share:+.1%} | {verdict} |"
    yield from ("", f"Sampling at 20 rounds a second: {sampling.overhead}.")


def smi_rows(log: Path) -> list[tuple[float, float, float | None, float, float, float]]:
    """Seconds of the day's clock, power, instant power, MiB, MHz, °C of GPU 0."""
    found = []
    for line in log.read_text(errors="replace").splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        try:
            stamp, _, fraction = cells[0].partition(".")
            at = time.mktime(time.strptime(stamp, "%Y/%m/%d %H:%M:%S")) + float(f"0.{fraction or 0}")
            power, used, clock, celsius = (float(cells[i]) for i in (2, 4, 5, 6))
        except (ValueError, IndexError):
            continue
        instant = float(cells[3]) if cells[3].replace(".", "").isdigit() else None
        if cells[1] == "0":
            found.append((at, power, instant, used, clock, celsius))
    return found
