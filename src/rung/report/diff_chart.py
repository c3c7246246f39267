"""What became faster and slower: a bar a row from the middle, to the left what takes less time, to the right what takes more."""

from __future__ import annotations

from collections.abc import Sequence

from rung.analysis.kernel_names import readable
from rung.records.diff import Changed
from rung.report import units
from rung.report.svg import escaped, line, svg, text

MOST = 20
_ROW = 44.0  # pixels
_SIDE = 31.0  # percent of the width for the longest bar; the rest is for figures
_LONGEST = 44  # characters of a name: more would be cut off on a narrow page
_HEAD = 12  # of them where a name is told from others by what comes later
_WITHIN = " / "


def diff_bars(rows: Sequence[Changed], label: str) -> str:
    """The largest changes of a table of `analysis.diff`; "" where nothing changed."""
    changed = [row for row in rows if row.change != "same" and row.delta_ns][:MOST]
    if not changed:
        return ""
    longest = max(abs(row.delta_ns) for row in changed)
    bottom = _ROW * len(changed)
    body = []
    names = _short([units.one_line(row.what) for row in changed])
    for place, (row, name) in enumerate(zip(changed, names, strict=True)):
        y, delta = place * _ROW, row.delta_ns
        wide = _SIDE * abs(delta) / longest
        faster = delta < 0
        left = 50 - wide if faster else 50.0
        what = units.one_line(row.what)
        tip = f"{what}: {row.change}, {units.duration(row.base_ns)} → {units.duration(row.new_ns)}, {_times(row)}"
        figure = f"{'−' if faster else '+'}{units.duration(abs(delta))}"
        body.append(
            f"<g>{text(name, 0, y + 14, 'name')}"
            f'<rect x="{left:.3f}%" y="{y + 20:.0f}" width="{max(wide, 0.15):.3f}%" height="14" class="{"faster" if faster else "slower"}"/>'
            f"{text(figure, left - 0.6 if faster else 50.6 + wide, y + 31, 'tick', 'end' if faster else 'start')}"
            f"<title>{escaped(tip)}</title></g>"
        )
    return svg(
        bottom,
        "diffs",
        label,
        [*(line(50, place * _ROW + 18, 50, place * _ROW + 36, "axis") for place in range(len(changed))), *body],
    )


def _short(texts: Sequence[str]) -> list[str]:
    """Each name as it fits. Of a path of modules its end; names that would look the same keep the place where they differ."""
    whole = [readable(what) for what in texts]
    short = [_of_path(what) or _middle_cut(name, _LONGEST) for what, name in zip(texts, whole, strict=True)]
    for same in {name for name in short if short.count(name) > 1}:
        rows = [k for k, name in enumerate(short) if name == same]
        full = [whole[k] if len({whole[k] for k in rows}) == len(rows) else texts[k] for k in rows]
        first = next((k for k, letters in enumerate(zip(*full, strict=False)) if len({*letters}) > 1), 0)
        begin = max(0, first - _LONGEST // 4)
        for k, name in zip(rows, full, strict=True):
            head = f"{name[:_HEAD]}…" if begin > _HEAD else name[:begin]
            short[k] = head + _end_cut(name[begin:], _LONGEST - len(head))
    return short


def _of_path(what: str) -> str:
    path = what.split(_WITHIN)
    return f"… / {_WITHIN.join(path[-2:])}" if len(path) > 3 else ""


def _middle_cut(name: str, width: int) -> str:
    """The beginning and the end, which say most of a kernel."""
    tail = width // 3
    return name if len(name) <= width else f"{name[: width - 1 - tail]}…{name[-tail:]}"


def _end_cut(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"


def _times(row: Changed) -> str:
    counts = [units.count(number) for number in (row.base_count, row.new_count)]
    return f"{counts[0]} times" if counts[0] == counts[1] else f"{counts[0]} → {counts[1]} times"
