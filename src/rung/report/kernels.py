"""Kernels and what they take of a GPU, on the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rung.records.kernels import Function, Resources
from rung.report import units
from rung.report.tables import shortened

_HEADS = (
    "kernel",
    "for",
    "warps",
    "registers",
    "AGPR",
    "SGPR",
    "spilled",
    "shared",
    "resident",
    "limited by",
    "config",
)
_TEXT = {0, 1, 9, 10}


def list_lines(kernels: Sequence[Function]) -> list[str]:
    """A name and what it computes, a line each."""
    margin = max(len(k.name) for k in kernels) + 2
    return [f"{k.name:<{margin}}{k.computes}" for k in kernels]


def resource_lines(rows: Sequence[Resources], width: int = 100) -> list[str]:
    """A table an architecture; the last column, the configuration, goes below where there is no room for it."""
    lines: list[str] = []
    for arch in dict.fromkeys(row.arch for row in rows):
        lines += ([""] if lines else []) + [_about(arch)]
        lines += _table([_cells(row) for row in rows if row.arch == arch], width)
    spilled = [row for row in rows if row.spills]
    worst = max(spilled, key=lambda row: row.spills, default=None)
    told = f"no kernel of {len(rows)} spills registers." if worst is None else (
        f"{len(spilled)} of {len(rows)} spill registers, most of all {worst.kernel} on {worst.arch}: fewer elements "
        "a thread (a smaller block, or more warps) would keep them."
    )  # fmt: skip
    return [*lines, "", *textwrap.wrap(units.clean(told), width)]


def _about(arch: str) -> str:
    if arch.startswith("gfx"):
        return f"{arch}: registers of a thread (VGPRs), shared is LDS of a workgroup, resident is waves on a SIMD"
    return f"{arch}: registers of a thread, shared memory of a block, resident is warps on a multiprocessor"


def _cells(row: Resources) -> list[str]:
    resident = "" if row.waves is None else f"{row.waves:g}/{row.most}"
    spilled = str(row.spills) if row.arch.startswith("gfx") else units.data_size(row.spills)
    return [
        shortened(units.clean(row.kernel), 44),
        shortened(units.clean(row.source.rpartition("/")[2]), 24),
        str(row.warps),
        str(row.registers),
        str(row.agprs or ""),
        "" if row.sgprs is None else str(row.sgprs),
        spilled if row.spills else "0",
        units.data_size(row.shared) if row.shared else "0",
        resident,
        row.limit or "",
        units.clean(row.config),
    ]


def _table(rows: list[list[str]], width: int) -> list[str]:
    shown = [i for i in range(len(_HEADS)) if any(row[i] for row in rows)]
    widths = {i: max(len(_HEADS[i]), *(len(row[i]) for row in rows)) for i in shown}
    below = sum(widths.values()) + 2 * (len(shown) - 1) > width
    columns = [i for i in shown if not (below and i == len(_HEADS) - 1)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(
            cells[i].ljust(widths[i]) if i in _TEXT else cells[i].rjust(widths[i]) for i in columns
        ).rstrip()

    lines = [line(_HEADS)]
    for row in rows:
        lines.append(line(row))
        if below and row[-1]:
            lines += textwrap.wrap(row[-1], width, initial_indent="    ", subsequent_indent="    ")
    return lines
