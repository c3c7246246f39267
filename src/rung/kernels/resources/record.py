"""One kernel on one architecture, and how many of its waves fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from rung.toml import shipped


@dataclass(frozen=True)
class Resources:
    """registers: of a thread (AMD: VGPRs, accumulation registers among them); agprs, sgprs: AMD only; spills: registers
    that went to memory (AMD), bytes of a thread's stack that hold them (NVIDIA); scratch: bytes of a thread's private
    memory; shared: bytes of LDS or shared memory of a program; warps: of a program (waves on AMD); config: what it was
    compiled with.

    waves: resident on a SIMD (AMD) or multiprocessor (NVIDIA) at most, of `most`; limit: what bounds it. None: unknown.
    """

    kernel: str
    arch: str
    config: str
    warps: int
    registers: int
    spills: int
    scratch: int
    shared: int
    agprs: int | None = None
    sgprs: int | None = None
    waves: float | None = None
    most: int | None = None
    limit: str | None = None
    source: str = ""


@cache
def limits() -> dict[str, dict[str, Any]]:
    """The limits of an architecture by its name, with `vendor`."""
    table = shipped("kernels/resources/limits.toml")
    return {name: {**row, "vendor": vendor} for vendor, rows in table.items() for name, row in rows.items()}


def with_occupancy(found: Resources) -> Resources:
    """The same with its occupancy, where the architecture's limits are known."""
    row = limits().get(found.arch)
    if row is None:
        return found
    programs = _amd(found, row) if row["vendor"] == "amd" else _nvidia(found, row)
    limit = min(programs, key=lambda name: programs[name])
    resident = programs[limit] * found.warps
    if row["vendor"] == "amd":
        waves, most = min(row["waves"], resident / row["simds"]), row["waves"]
    else:
        waves, most = resident, row["warps"]
    return replace(found, waves=waves, most=most, limit="nothing" if waves == most else limit)


def _amd(found: Resources, row: dict[str, Any]) -> dict[str, int]:
    """Programs (workgroups) of a compute unit that each resource allows; a program's waves share out to the SIMDs."""
    taken = max(row["granule"], -(-found.registers // row["granule"]) * row["granule"])
    of_simd = min(row["waves"], row["registers"] // taken)
    return {
        "waves": row["waves"] * row["simds"] // found.warps,
        "registers": of_simd * row["simds"] // found.warps,
        **({"shared memory": row["lds"] // found.shared} if found.shared else {}),
    }


def _nvidia(found: Resources, row: dict[str, Any]) -> dict[str, int]:
    """Programs (blocks) of a multiprocessor that each resource allows."""
    taken = max(row["granule"], -(-found.registers // row["granule"]) * row["granule"]) * 32
    return {
        "warps": row["warps"] // found.warps,
        "blocks": row["blocks"],
        "registers": row["registers"] // taken // found.warps,
        "shared memory": row["shared"] // (found.shared + row["reserved"]),
    }
