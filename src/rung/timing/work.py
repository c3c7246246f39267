"""The work of a step, in FLOP and bytes, and how near that comes to the peaks of the chip."""

from __future__ import annotations

import math
from dataclasses import dataclass

from msgspec.structs import replace

from rung.errors import UsageError
from rung.hardware import Device, peaks_of
from rung.hardware.peaks import Peaks
from rung.records.bench import Work

PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8")


@dataclass(frozen=True)
class SuppliedWork:
    """FLOP and bytes of one step that a user supplies.

    Args:
        flops: floating-point operations.
        flops_in: the precision in which they are computed.
        nbytes: bytes that it has to read from memory and write to it.

    Raises UsageError where one of them is no amount.
    """

    flops: float | None = None
    flops_in: str | None = None
    nbytes: float | None = None

    def __post_init__(self) -> None:
        for name, amount in (("flops", self.flops), ("bytes", self.nbytes)):
            if amount is not None and not 0 < amount < math.inf:
                raise UsageError(f"{name} of a step: {amount:g} is not an amount of work; give a number above 0.")
        if self.flops_in is not None and self.flops_in not in PRECISIONS:
            raise UsageError(f"there is no precision {self.flops_in!r} of FLOP; there are {', '.join(PRECISIONS)}.")
        if self.flops_in and not self.flops:
            raise UsageError("the precision of the FLOP was given without the FLOP; give both.")


NOTHING_SUPPLIED = SuppliedWork()


def rates(peaks: Peaks) -> dict[str, float]:
    """FLOP/s of matrix products; fp8 only where the chip has units for it."""
    return peaks.flops | ({"fp8": peaks.matrix["fp8"]} if "fp8" in peaks.matrix else {})


def work_with_peaks(device: Device, precision: str | None) -> Work:
    """A Work with the peaks of the chip: FLOP/s in a precision, bytes/s of its memory; None where that is not known."""
    peaks = peaks_of(device)
    return Work(
        precision=precision,
        peak_flops=rates(peaks).get(precision) if peaks and precision else None,
        peak_bandwidth=peaks.bandwidth if peaks else None,
    )


def achieved(work: Work, supplied: SuppliedWork, step_ns: float) -> Work:
    """The work of a step with what the user supplied, its FLOP/s and bytes/s, and their shares of the chip's peaks."""
    found = replace(work, flops=supplied.flops or work.flops, bytes=supplied.nbytes)
    if found.flops:
        found.flops_per_second = found.flops / step_ns * 1e9
        found.of_peak = found.flops_per_second / work.peak_flops if work.peak_flops else None
    if found.bytes:
        found.bytes_per_second = found.bytes / step_ns * 1e9
        found.of_bandwidth = found.bytes_per_second / work.peak_bandwidth if work.peak_bandwidth else None
    return found
