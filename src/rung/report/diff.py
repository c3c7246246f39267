"""What changed between two traces, on one screen."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from msgspec.structs import replace

from rung.analysis.kernel_names import readable
from rung.records.diff import Changed, Difference, Side
from rung.report import breakdowns, units
from rung.report.tables import shortened

_ALONE = "(no operator) "
TOP = 12
_PARTS = {
    "computation_ns": "computation",
    "exposed_communication_ns": "exposed communication",
    "exposed_memcpy_ns": "exposed copies",
    "idle_ns": "idle",
}
_ON_HOST = {"computation_ns": "operators", "idle_ns": "Python and dispatch"}
_HEADS = {
    "category": "by category",
    "op": "by operator",
    "shape": "by operator and shapes",
    "module": "by module",
    "instance": "by module (each one)",
    "kernel": "by kernel name",
}


def diff_lines(found: Difference, *, width: int = 100, top: int = TOP) -> list[str]:
    """The two traces, how their steps divide, and for each table the largest changes."""
    base, new, on_host = found.base, found.new, found.clock == "cpu"
    lines = [*(f"{name:<5} {_side(side, on_host)}" for name, side in (("base:", base), ("new:", new)))]
    for note in found.notes:
        lines += textwrap.wrap(f"note: {units.clean(note)}", width, subsequent_indent="      ")
    lines += ["", verdict(found.ratio), ""]
    rows = [("a step" if on_host else "a step of a GPU", base.step_ns, new.step_ns)]
    for part, title in (_PARTS | (_ON_HOST if on_host else {})).items():
        before, now = base.parts[part] / base.per, new.parts[part] / new.per
        if before or now:
            rows.append((f"  {title}", before, now))
    lines.append(f"{'':<24}{'base':>10}{'new':>10}{'change':>11}")
    lines += [f"{title:<24}{units.duration(a):>10}{units.duration(b):>10}{_signed(b - a):>11}" for title, a, b in rows]
    counts = [units.count(side.kernels / side.per) for side in (base, new)]
    lines.append(f"{'operator calls' if on_host else 'kernels':<24}{counts[0]:>10}{counts[1]:>10}")
    for name, table in found.tables.items():
        shown = [_in_words(row, on_host) for row in table] if name == "category" else table
        lines += ["", *_table(_HEADS[name], shown, width, top)]
    return lines


def _in_words(row: Changed, on_host: bool) -> Changed:
    """A category's row with the name that every report has for it."""
    return replace(row, what=breakdowns.kind(row.what, "cpu" if on_host else "gpu"))


def verdict(ratio: float) -> str:
    """The new step beside the base's, in a sentence."""
    if abs(ratio - 1) < 0.005:
        return "The step takes as long as before."
    faster = ratio < 1
    word = "faster" if faster else "slower"
    times = 1 / ratio if faster else ratio
    return f"The step is {times:.2f}× {word}." if times < 9.995 else f"The step is {units.count(round(times))}× {word}."


def _side(side: Side, on_host: bool) -> str:
    many = f", {side.ranks} ranks" if side.ranks > 1 else ""
    many += f", {side.gpus} GPUs" if side.gpus > 1 and not on_host else ""
    many += f", {side.steps} steps" if side.steps > 1 else ""
    device = f" ({units.clean(side.device)})" if side.device else ""
    return f"{units.clean(side.source)}{device}{many}"


def _table(head: str, rows: Sequence[Changed], width: int, top: int) -> list[str]:
    changed = [row for row in rows if row.change != "same"]
    shown = changed[:top] if top else changed
    if not shown:
        return [f"{head}: nothing changed"]
    room = max(20, width - 55)
    lines = [f"{head:<{room}}  {'':<9}{'base':>10}{'new':>10}{'change':>11}{'count':>13}"]
    for row in shown:
        counts = [units.count(number) for number in (row.base_count, row.new_count)]
        count = counts[0] if counts[0] == counts[1] else "->".join(counts)
        line = (
            f"{_name(row.what, room):<{room}}  {row.change:<9}{units.duration(row.base_ns):>10}"
            f"{units.duration(row.new_ns):>10}{_signed(row.delta_ns):>11}{count:>13}"
        )
        lines.append(line)
    rest = changed[len(shown) :]
    same = [row for row in rows if row.change == "same"]
    for title, some in (("more changed", rest), ("too small to matter", same)):
        if some:
            text = f"({units.count(len(some))} {title})"
            sums = (sum(row.base_ns for row in some), sum(row.new_ns for row in some))
            lines.append(
                f"{text:<{room}}  {'':<9}{units.duration(sums[0]):>10}{units.duration(sums[1]):>10}{_signed(sums[1] - sums[0]):>11}"
            )
    return lines


def _signed(ns: float) -> str:
    return f"{'-' if ns < 0 else '+'}{units.duration(abs(ns))}" if abs(ns) >= 0.5 else "0"


def _name(text: str, room: int) -> str:
    """Of what no operator launched, the kernel as it is named elsewhere."""
    text = units.one_line(text)
    alone = _ALONE if text.startswith(_ALONE) else ""
    return shortened(alone + readable(text.removeprefix(alone)), room)
