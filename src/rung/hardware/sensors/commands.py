"""Sensors of AMD GPUs through the commands amd-smi and rocm-smi: slow, and there where nothing else is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from rung.hardware.sensors.reading import Reading

LIMIT = 10.0  # seconds


class _Answers:
    """What one command says of all GPUs. An answer is as old as the command is slow, so GPUs read in turn share one."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._took = self._at = 0.0
        self._rows: list[Mapping[str, Any]] = []

    def rows(self) -> list[Mapping[str, Any]]:
        """One a GPU, in the tool's order; empty where the command fails, hangs or does not answer in JSON."""
        begun = time.monotonic()
        if not self._at or begun - self._at > self._took:
            self._rows = _rows(_answer(self._command))
            self._at = time.monotonic()
            self._took = self._at - begun
        return self._rows


@lru_cache(maxsize=8)
def _answers(*command: str) -> _Answers:
    return _Answers(command)


def _answer(command: tuple[str, ...]) -> Any:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT, check=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    text = done.stdout.decode("utf-8", "replace")
    for begin in re.finditer(r"^\s*[\[{]", text, re.MULTILINE):  # warnings may stand before the document
        try:
            return json.loads(text[begin.start() :])
        except ValueError:
            continue
    return None


def _rows(found: Any) -> list[Mapping[str, Any]]:
    """amd-smi: a list, {"gpu_data": [...]} from ROCm 7 on; rocm-smi: {"card0": {...}, "system": {...}}."""
    if isinstance(found, dict):
        cards = [key for key in found if re.fullmatch(r"card\d+", key)]
        found = found.get("gpu_data") or [found[key] for key in sorted(cards, key=lambda key: int(key[4:]))]
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


class AmdSmiCommand:
    source = "amd-smi"

    def __init__(self, bus: str | None, index: int) -> None:
        """Raises LookupError where there is no such command or GPU."""
        tool = _tool("amd-smi")
        gpus = _answers(tool, "list", "--json").rows()
        named = [str(row.get("bdf", "")).lower() for row in gpus]
        self._place = _place(named, bus, index)
        self.bus: str | None = bus or named[self._place] or None
        self._metrics = _answers(tool, "metric", "-p", "-c", "-t", "-u", "-m", "--json")
        limits = _at(_nth(_answers(tool, "static", "--limit", "--json").rows(), self._place), "limit")
        self.limit = _first(_at(limits, "ppt0") or limits, "socket_power_limit", "socket_power", "max_power")

    def read(self) -> Reading:
        row = _nth(self._metrics.rows(), self._place)
        power, use, memory, heat, clock = (_at(row, k) for k in ("power", "usage", "mem_usage", "temperature", "clock"))
        return Reading(
            time.monotonic(),
            None,
            _first(power, "socket_power", "current_socket_power", "average_socket_power"),
            _first(_at(clock, "gfx_0"), "clk", "cur_clk"),
            _first(_at(clock, "mem_0"), "clk", "cur_clk"),
            _first(heat, "hotspot", "junction", "edge"),
            (),
            _bytes(_first(memory, "used_vram")),
            _bytes(_first(memory, "total_vram")),
            _share(_first(use, "gfx_activity")),
            _share(_first(use, "umc_activity")),
        )


class RocmSmiCommand:
    source = "rocm-smi"
    limit: float | None = None

    def __init__(self, bus: str | None, index: int) -> None:
        """Raises LookupError where there is no such command or GPU."""
        tool = _tool("rocm-smi")
        named = [str(row.get("PCI Bus", "")).lower() for row in _answers(tool, "--showbus", "--json").rows()]
        self._place = _place(named, bus, index)
        self.bus: str | None = bus or named[self._place] or None
        self._metrics = _answers(tool, "--showpower", "--showclocks", "--showtemp", "--showuse", "--showmemuse",
                                 "--showmeminfo", "vram", "--json")  # fmt: skip

    def read(self) -> Reading:
        row = _nth(self._metrics.rows(), self._place)
        used, total = _first(row, "VRAM Total Used Memory (B)"), _first(row, "VRAM Total Memory (B)")
        return Reading(
            time.monotonic(),
            None,
            # The second die of an MI200 has no power of its own: "N/A (Secondary die)".
            _first(row, "Current Socket Graphics Package Power (W)", "Average Graphics Package Power (W)"),
            _first(row, "sclk clock speed:"),
            _first(row, "mclk clock speed:"),
            _first(row, "Temperature (Sensor junction) (C)", "Temperature (Sensor edge) (C)"),
            (),
            int(used) if used is not None else None,
            int(total) if total is not None else None,
            _share(_first(row, "GPU use (%)")),
            _share(_first(row, "GPU Memory Read/Write Activity (%)")),
        )


def _tool(name: str) -> str:
    path = shutil.which(name) or shutil.which(name, path="/opt/rocm/bin")
    if path is None:
        raise LookupError(name)
    return path


def _place(named: list[str], bus: str | None, index: int) -> int:
    if bus and bus.lower() in named:
        return named.index(bus.lower())
    if bus or not 0 <= index < len(named):
        raise LookupError(f"no GPU {bus or index}")
    return index


def _nth(rows: list[Mapping[str, Any]], place: int) -> Mapping[str, Any]:
    return rows[place] if place < len(rows) else {}


def _at(row: Any, key: str) -> Mapping[str, Any]:
    found = row.get(key) if isinstance(row, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _first(row: Mapping[str, Any], *keys: str) -> float | None:
    """The first of these that is a number: bare, {"value", "unit"}, or in a text, "144.0" or "(2100Mhz)"; not "N/A"."""
    for key in keys:
        value = row.get(key)
        if isinstance(value, Mapping):
            value = value.get("value")
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        found = re.match(r"\(?(\d+(?:\.\d+)?)", value) if isinstance(value, str) else None
        if found:
            return float(found[1])
    return None


def _bytes(megabytes: float | None) -> int | None:
    return int(megabytes * 2**20) if megabytes is not None else None


def _share(percent: float | None) -> float | None:
    return percent / 100 if percent is not None else None
