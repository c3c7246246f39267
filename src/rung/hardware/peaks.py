"""What a chip could do at best: dense matrix rates and memory bandwidth, from peaks.toml."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import resources

from rung.hardware.device import Device

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Peaks:
    """Dense matrix rates in FLOP/s by precision (fp32 means without TF32), bandwidth in bytes/s."""

    match: str
    flops: dict[str, float]
    bandwidth: float


def peaks_of(device: Device) -> Peaks | None:
    """The peaks of a device, by its name and else by its architecture; None for a chip that is not listed."""
    text = resources.files("rung.hardware").joinpath("peaks.toml").read_text()
    rows = tomllib.loads(text)["gpu"]
    found = [r for r in rows if r["match"] in device.name] or [r for r in rows if r["arch"] == device.arch]
    if not found or not device.is_gpu:
        return None
    row = found[0]
    return Peaks(row["match"], {p: row[p] * 1e12 for p in ("fp64", "fp32", "tf32", "bf16")}, row["bandwidth"] * 1e9)
