"""Registers, spills and stack out of what a compiler wrote: AMD's assembly text, NVIDIA's cubin. Needs no tool."""

from __future__ import annotations

import re
import struct

from rung.errors import InputError

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
