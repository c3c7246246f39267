"""Text on a terminal: its width in columns, wrapped lines, colors, and a table whose last column takes the room left."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rung.report.units import WORD

GAP = 2  # between columns
_MOST = 24  # columns of a cell that does not wrap
_LEAST_LAST, _LEAST_WRAPPED = 10, 8
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


@dataclass(frozen=True)
class Column:
    """head: its heading, a line break where it may be broken. wraps: its cells break into lines where there is no room."""

    head: str
    right: bool = False
    wraps: bool = False


@dataclass(frozen=True)
class Cell:
    """Lines of text, in one style."""

    text: str
    style: str = ""


def width_of(text: str) -> int:
    """Columns of a terminal: East Asian wide characters take two, marks on another character none."""
    if text.isascii():
        return len(text)
    return sum(map(_width, text))


def _width(c: str) -> int:
    if unicodedata.category(c) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


def styled(text: str, style: str, color: bool) -> str:
    """In "bold green", say; plain where `color` is not wanted."""
    codes = ";".join(_STYLES[word] for word in style.split())
    return f"\x1b[{codes}m{text}\x1b[0m" if color and codes and text else text


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most so many columns, broken between words, a number never parted from its unit; a longer word is broken anywhere.
    Other spaces stay."""
    lines = []
    for paragraph in text.expandtabs().split("\n"):
        line, used = "", 0
        for word in re.findall(WORD, paragraph.rstrip()):
            if line and used + width_of(word) > width:
                lines.append(line)
                line, used, word = "", 0, word.lstrip()
            *full, word = _pieces(word, width)
            lines += full
            line, used = line + word, used + width_of(word)
        lines.append(line)
    return lines


def hanging(text: str, width: int) -> list[str]:
    """A line as lines of so many columns, the later ones further in. A longer word stays whole: it may be a path, which is copied."""
    margin = " " * (len(text) - len(text.lstrip()) + 2)
    lines, line = [], ""
    for word in re.findall(WORD, text.rstrip()):
        if line.strip() and width_of(line + word) > width:
            lines.append(line)
            line = margin + word.lstrip()
        else:
            line += word
    return [*lines, line]


def _pieces(word: str, width: int) -> Iterator[str]:
    """Its pieces of at most so many columns, or of one character that takes more."""
    begin = used = 0
    for k, c in enumerate(word):
        used += _width(c)
        if used > width and k > begin:
            yield word[begin:k]
            begin, used = k, _width(c)
    yield word[begin:]


def table_of(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int, color: bool) -> list[str]:
    """A heading, a rule and the rows. The last column takes what the others leave; where that is too little, the columns
    that wrap become narrower, the widest first."""
    heads = [Cell(column.head, "bold") for column in columns]
    widths = [max(_wide(row[k], column) for row in (heads, *rows)) for k, column in enumerate(columns)]
    widths[-1] = _LEAST_LAST
    left = width - sum(widths) - GAP * (len(columns) - 1)
    shrinking = [k for k, column in enumerate(columns[:-1]) if column.wraps]
    while left < 0 and any(widths[k] > _LEAST_WRAPPED for k in shrinking):
        widths[max(shrinking, key=lambda k: widths[k])] -= 1
        left += 1
    widths[-1] += max(0, left)
    return [
        *_lines(heads, columns, widths, color, from_below=True),
        "─" * width,
        *(line for row in rows for line in _lines(row, columns, widths, color)),
    ]


def _wide(cell: Cell, column: Column) -> int:
    widest = max(map(width_of, cell.text.split("\n")))
    return widest if column.wraps else min(widest, _MOST)


def _lines(
    row: Sequence[Cell], columns: Sequence[Column], widths: Sequence[int], color: bool, from_below: bool = False
) -> list[str]:
    """The lines of one row, its cells side by side."""
    stacks = []
    for cell, column, width in zip(row, columns, widths, strict=True):
        lines = cell.text.split("\n")
        stacks.append(wrap(cell.text, width) if column.wraps else [next(_pieces(line, width)) for line in lines])
    tall = max(map(len, stacks))
    found = []
    for at in range(tall):
        line = ""
        for cell, column, width, stack in zip(row, columns, widths, stacks, strict=True):
            k = at - (tall - len(stack) if from_below else 0)
            text = stack[k] if 0 <= k < len(stack) else ""
            space = " " * (width - width_of(text))
            shown = styled(text, cell.style, color)
            line += (space + shown if column.right else shown + space) + " " * GAP
        found.append(line.rstrip())
    return found
