"""What a chip could do at best: rates and bandwidth, from peaks.toml and the user's own file of the same form."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from rung.errors import InputError, UsageError
from rung.files import read_text
from rung.hardware.device import Device
from rung.toml import parse_toml, shipped, user_file

# What stands in where a chip has no unit of its own for a precision: the next wider one that it computes in.
_WIDER = {"fp4": "fp6", "fp6": "fp8", "fp8": "fp16", "bf16": "fp32", "fp16": "fp32", "tf32": "fp32", "int8": "fp32"}
_GFX = {"90": "gfx90a", "94": "gfx942", "95": "gfx950"}
_OWN = ("RUNG_PEAKS", "peaks.toml")  # where the user's own rows are: `user_file`
_OFF = 0.15  # share by which drivers' and data sheets' figures of a memory may differ
_NUMBERS = ("memory", "bandwidth", "cache", "cache_bandwidth")
_TABLES = ("matrix", "vector", "measured")


@dataclass(frozen=True)
class Peaks:
    """One device as torch shows it. Rates in FLOP/s by precision (fp32 means without TF32; int8 in op/s), dense.

    arch: 'gfx942' or 'sm90'; units: compute units or multiprocessors; memory and cache in bytes, bandwidth and
    cache_bandwidth in bytes/s, None where not published; any_memory: whether the rest holds for devices of other memory, too; measured: what benchmarks reached (`bandwidth` in bytes/s).
    source: where the figures are from; checked: which of them were compared with a text at hand, "" where none was.
    """

    name: str
    match: str
    arch: str
    units: int
    memory: float
    any_memory: bool
    bandwidth: float
    cache: float | None
    cache_bandwidth: float | None
    matrix: Mapping[str, float]
    vector: Mapping[str, float]
    measured: Mapping[str, float]
    source: str
    checked: str
    measured_source: str
    measured_checked: str

    def rate(self, precision: str, *, matrix: bool = True) -> float:
        """FLOP/s in a precision: of the matrix units, or of the ordinary ones; the next wider precision's rate where
        the chip has no unit for it. Raises KeyError for a precision that nothing stands in for.
        """
        found = (self.matrix.get(precision) if matrix else None) or self.vector.get(precision)
        return found or self.rate(_WIDER[precision], matrix=matrix)

    @property
    def origin(self) -> dict[str, str]:
        """Whose figures these are, and how far that was checked: for documents."""
        return {
            "name": self.name, "source": self.source, "checked": self.checked,
            "measured_source": self.measured_source, "measured_checked": self.measured_checked,
        }  # fmt: skip

    @property
    def flops(self) -> dict[str, float]:
        """The rates of a matrix product in the precisions that torch computes one in."""
        return {
            p: self.rate(p) for p in ("fp64", "fp32", "tf32", "fp16", "bf16") if p != "fp64" or "fp64" in self.vector
        }


def peaks_of(device: Device) -> Peaks | None:
    """The peaks of a torch device; None for a chip that is not listed, and for a CPU."""
    return find(device.name, device.arch, device.units, device.memory) if device.is_gpu else None


def peaks_of_properties(properties: Mapping[str, Any]) -> Peaks | None:
    """The peaks of a GPU as a trace's deviceProperties describe it; None where they describe none that is listed.

    ROCm leaves the name empty or generic at times: then the architecture (AMD: warps of 64 or a gcnArch) and the
    number of multiprocessors decide, and of two chips alike in both the memory.
    """
    arch = str(properties.get("gcnArch") or properties.get("gcnArchName") or "").partition(":")[0]
    if not arch:
        capability = f"{properties.get('computeMajor')}{properties.get('computeMinor')}"
        # ROCm's compute capability is the gfx number without its stepping.
        arch = _GFX.get(capability, "") if properties.get("warpSize") == 64 else f"sm{capability}"
    units, memory = properties.get("numSms"), properties.get("totalGlobalMem")
    return find(
        str(properties.get("name") or ""),
        arch,
        units if isinstance(units, int) else 0,
        memory if isinstance(memory, int) else 0,
    )


def find(name: str, arch: str = "", units: int = 0, memory: int = 0) -> Peaks | None:
    """The row for a device's name; else the one of its architecture and number of units, the nearest in memory.

    Where several that differ are as near, or the memory is not known, it is the slowest of them, and its name says which there are.
    None where no row fits, and where the memory is not that of the row: it is another device, and its figures are not known.
    """
    matching = [row for row in known() if name and re.search(row.match, name, re.IGNORECASE)]
    if matching:
        # libdrm calls MI250X and MI250 alike: "AMD Instinct MI250X / MI250". The number of units tells them apart. A user's row holds.
        row = matching[0]
        if row in _shipped():
            row = next((row for row in matching if not units or row.units in (0, units)), row)
        part = _partition(row, units)
        return part if part is not row or _fits(row, memory) else None
    alike = [row for row in known() if row.arch == arch and row.units == units and _fits(row, memory)]
    # A name that says what it is, and is not listed, is another chip.
    if re.search(r"\d{3,}", name) or not alike:
        return None
    if memory:
        nearest = min(alike, key=lambda row: abs(row.memory - memory)).memory
        alike = [row for row in alike if row.memory == nearest]
    return _slowest(alike)


def _fits(row: Peaks, memory: int) -> bool:
    """Whether a whole device with so much memory may be this one: vendors sell several under one name, with other bandwidths."""
    return not memory or row.any_memory or abs(memory - row.memory) <= _OFF * row.memory or row not in _shipped()


def _slowest(alike: list[Peaks]) -> Peaks:
    """Of chips that nothing tells apart the slowest, called after all that have other figures; a user's own row holds."""
    if alike[0] not in _shipped():
        return alike[0]
    slowest = min(alike, key=lambda row: (row.bandwidth, row.matrix.get("bf16", 0.0)))
    others = [row.name for row in alike if (row.bandwidth, row.matrix) != (slowest.bandwidth, slowest.matrix)]
    return replace(slowest, name=" or ".join([slowest.name, *others])) if others else slowest


def _partition(row: Peaks, units: int) -> Peaks:
    """The part of a chip that has so many of its units: AMD's partitions (CPX, DPX) and NVIDIA's MIG keep its name."""
    if not 0 < units < row.units or row.units - units < row.units // 8:  # a few units less are another product
        return row
    part = units / row.units

    def scaled(rates: Mapping[str, float]) -> dict[str, float]:
        return {key: value * part for key, value in rates.items()}

    return replace(
        row,
        name=f"{row.name}, {units} of {row.units} units",
        units=units,
        memory=row.memory * part,
        bandwidth=row.bandwidth * part,
        cache=row.cache * part if row.cache else None,
        cache_bandwidth=row.cache_bandwidth * part if row.cache_bandwidth else None,
        matrix=scaled(row.matrix),
        vector=scaled(row.vector),
        measured=scaled(row.measured),
    )


def named(name: str) -> Peaks:
    """The row that a user asks for. Raises UsageError where there is none."""
    wanted = name.strip().casefold()
    found = next((row for row in known() if row.name.casefold() == wanted), None) or find(name)
    if found is None:
        names = [row.name for row in known()]
        alike = [known for known in names if wanted and wanted in known.casefold()] or get_close_matches(name, names, 3)
        there = f"did you mean {' or '.join(alike)}?" if alike else f"there are {', '.join(names)}."
        raise UsageError(
            f"no GPU named {name!r} is known; {there} To add one, write its row into {user_file(*_OWN)} (docs/how-to/add-a-gpu.md)."
        )
    return found


def known() -> tuple[Peaks, ...]:
    """All rows, the user's first. Raises InputError where the user's file cannot be understood."""
    own = user_file(*_OWN)
    try:
        facts = own.stat()
    except OSError:
        if os.environ.get(_OWN[0]):
            raise InputError(f"{_OWN[0]} names {own}, which cannot be read: check the path.") from None
        return _shipped()
    return _users(own, facts.st_mtime_ns) + _shipped()


@lru_cache(maxsize=1)
def _shipped() -> tuple[Peaks, ...]:
    return tuple(_row(row) for row in shipped("hardware/peaks.toml")["gpu"])


@lru_cache(maxsize=4)
def _users(path: Path, _changed: int) -> tuple[Peaks, ...]:
    try:
        rows = parse_toml(read_text(path))["gpu"]
        return tuple(_row({"checked": "by who wrote it", **row}) for row in rows)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, re.error) as error:
        why = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{path} is not a list of GPUs ({why}): write rows as in rung/hardware/peaks.toml.") from None


def _row(row: dict[str, Any]) -> Peaks:
    re.compile(row["match"])
    scale = {"memory": 2.0**30, "cache": 2.0**20, "bandwidth": 1e9, "cache_bandwidth": 1e9}
    numbers = {key: float(row[key]) * scale[key] if key in row else None for key in _NUMBERS}
    if not numbers["memory"] or not numbers["bandwidth"]:
        raise KeyError("memory" if not numbers["memory"] else "bandwidth")
    tables = {key: dict(row.get(key, {})) for key in _TABLES}
    measured_source, measured_checked = (str(tables["measured"].pop(key, "")) for key in ("source", "checked"))
    rates = {
        table: {key: float(value) * (1e9 if key == "bandwidth" else 1e12) for key, value in values.items()}
        for table, values in tables.items()
    }
    if "fp32" not in rates["vector"]:
        raise KeyError("vector.fp32")
    return Peaks(
        name=str(row["name"]),
        match=str(row["match"]),
        arch=str(row.get("arch", "")),
        units=int(row.get("units", 0)),
        memory=numbers["memory"],
        any_memory=bool(row.get("any_memory", False)),
        bandwidth=numbers["bandwidth"],
        cache=numbers["cache"],
        cache_bandwidth=numbers["cache_bandwidth"],
        source=str(row.get("source", "")),
        checked=str(row.get("checked", "")),
        measured_source=measured_source,
        measured_checked=measured_checked,
        **rates,
    )
