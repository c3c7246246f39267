"""What a compiled kernel takes, read out of what a compiler wrote (AMD's assembly text, NVIDIA's cubin), and how many of its waves fit. Needs no
tool."""

from __future__ import annotations

import re
import struct
from functools import cache
from typing import Any

from msgspec.structs import replace

from rung.errors import InputError
from rung.records.kernels import Resources
from rung.toml import shipped

_AMD = {
    "registers": r"^[ \t]*\.vgpr_count:\s*(\d+)",
    "agprs": r"^[ \t]*(?:- )?\.agpr_count:\s*(\d+)",
    "sgprs": r"^[ \t]*\.sgpr_count:\s*(\d+)",
    "vector spills": r"^[ \t]*\.vgpr_spill_count:\s*(\d+)",
    "scalar spills": r"^[ \t]*\.sgpr_spill_count:\s*(\d+)",
    "scratch": r"^[ \t]*\.private_segment_fixed_size:\s*(\d+)",
    "shared": r"^[ \t]*\.group_segment_fixed_size:\s*(\d+)",
}


def amdgcn(text: str) -> dict[str, int]:
    """Of the kernel in assembly text for amdgcn: registers (accumulation registers among them), agprs, sgprs, spills,
    scratch, and shared as far as it is known at compile time. Raises InputError."""
    found = {}
    for name, pattern in _AMD.items():
        match = re.search(pattern, text, re.MULTILINE)
        if match is None and name != "agprs":  # before gfx90a there are no such registers to count together
            raise InputError(f"the assembly has no {name} of a kernel; is it AMD's, with its metadata at the end?")
        found[name] = int(match.group(1)) if match else 0
    found["spills"] = found.pop("vector spills") + found.pop("scalar spills")
    return found


_FRAME, _REGISTERS = 0x11, 0x2F  # attributes of .nv.info: bytes of stack, registers of a thread; each of a function


def cubin(data: bytes) -> dict[str, int]:
    """Of the kernel in a cubin, an ELF file: registers, and spills = scratch = bytes of its stack. Raises InputError."""
    try:
        info = _section(data, ".nv.info")
        found = _attributes(info)
        return {"registers": max(found[_REGISTERS]), "spills": max(found[_FRAME]), "scratch": max(found[_FRAME])}
    except (KeyError, ValueError, IndexError, struct.error) as error:
        raise InputError(f"the cubin could not be read ({type(error).__name__}: {error}); is it an ELF file?") from None


def _section(data: bytes, wanted: str) -> bytes:
    """A section of a little-endian ELF64 file."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit ELF header")
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<3H", data, 58)
    rows = [struct.unpack_from("<IIQQQQ", data, table + k * size) for k in range(count)]
    start = rows[names][4]
    for name, _, _, _, offset, length in rows:
        end = data.index(b"\0", start + name)
        if data[start + name : end].decode() == wanted:
            return data[offset : offset + length]
    raise KeyError(wanted)


def _attributes(info: bytes) -> dict[int, list[int]]:
    """Attributes with a size (format 4) as (function, value); the others are 4 bytes and say nothing of it here."""
    found: dict[int, list[int]] = {}
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == 4:
            if size >= 8:
                found.setdefault(attribute, []).append(struct.unpack_from("<II", info, at)[1])
            at += size
    return found


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
