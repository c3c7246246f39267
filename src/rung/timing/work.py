"""What a step does, floating-point operations and bytes, and how near that comes to what the chip could do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rung.errors import UsageError
from rung.hardware import Device, peaks_of
from rung.hardware.peaks import Peaks

PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")


@dataclass(frozen=True)
class Told:
    """What a user knows of one step: flops, and in which precision they are computed; nbytes: what it has to read from
    and write to memory. Raises UsageError for what is no amount."""

    flops: float | None = None
    flops_in: str | None = None
    nbytes: float | None = None

    def __post_init__(self) -> None:
        for name, amount in (("flops", self.flops), ("bytes", self.nbytes)):
            if amount is not None and not 0 < amount < math.inf:
                raise UsageError(f"{name} of a step: {amount:g} is no amount of work; give a number above 0.")
        if self.flops_in is not None and self.flops_in not in PRECISIONS:
            raise UsageError(f"there is no precision {self.flops_in!r} of FLOP; there are {', '.join(PRECISIONS)}.")
        if self.flops_in and not self.flops:
            raise UsageError("the precision of the FLOP was given without the FLOP; give both.")


UNTOLD = Told()


def rates(peaks: Peaks) -> dict[str, float]:
    """FLOP/s of matrix products; fp8 only where the chip has units for it."""
    return peaks.flops | ({"fp8": peaks.matrix["fp8"]} if "fp8" in peaks.matrix else {})


def roof(device: Device, precision: str | None) -> dict[str, Any]:
    """What the chip could do at best: FLOP/s in a precision, bytes/s of its memory; None where it is not known."""
    peaks = peaks_of(device)
    return {
        "precision": precision,
        "peak_flops": rates(peaks).get(precision) if peaks and precision else None,
        "peak_bandwidth": peaks.bandwidth if peaks else None,
    }


def achieved(work: Mapping[str, Any], told: Told, step_ns: float) -> dict[str, Any]:
    """The work of a step with what was told of it, and what is known of `flops_per_second` and `bytes_per_second` and of
    their shares of the chip's peaks: `of_peak`, `of_bandwidth`."""
    found = {**work, "flops": told.flops or work.get("flops"), "bytes": told.nbytes}
    for amount, rate, peak, share in (
        ("flops", "flops_per_second", "peak_flops", "of_peak"),
        ("bytes", "bytes_per_second", "peak_bandwidth", "of_bandwidth"),
    ):
        if found[amount]:
            found[rate] = found[amount] / step_ns * 1e9
            found[share] = found[rate] / found[peak] if found.get(peak) else None
    return found
