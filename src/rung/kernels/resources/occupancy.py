"""How many waves of a kernel fit on an architecture, and what bounds them."""

from __future__ import annotations

from functools import cache
from typing import Any

from msgspec.structs import replace

from rung.records.kernels import Resources
from rung.toml import shipped


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
