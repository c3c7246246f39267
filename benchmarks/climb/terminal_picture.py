"""Draws what a terminal shows at the end of a recorded command, as an SVG with text:

script --quiet --command "stty cols 100; rung climb tiny-transformer --size medium --numerics bf16 --budget 300" climb.typescript
python benchmarks/climb/terminal_picture.py climb.typescript --rows 1-36,74-85 --out docs/img/climb-terminal.svg
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape

STEP, LINE, MARGIN = 8.0, 18, 16  # pixels: the width of a column, the height of a row, the space around
STYLE = """
text { font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1c1f23; white-space: pre; }
.page { fill: #fbfbfa; stroke: #d5d8dc; } .bold { font-weight: 600; } .dim { fill: #5b636d; } .green { fill: #00705a; } .yellow { fill: #8a5a00; }
.red { fill: #a3262a; }
@media (prefers-color-scheme: dark) { text { fill: #e8eaec; } .page { fill: #14171a; stroke: #31373d; } .dim { fill: #a3abb4; }
  .green { fill: #3fae90; } .yellow { fill: #d9a441; } .red { fill: #ef7b7e; } }
""".strip()
CLASSES = {"1": "bold", "2": "dim", "31": "red", "32": "green", "33": "yellow"}  # of the codes that Rung writes
_PARTS = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")

Cell = tuple[str, str]  # a character, and the classes it is shown in


def screen(written: str, columns: int) -> list[list[Cell]]:
    """The rows of a terminal of this width, those that have scrolled away among them. It knows what Rung writes: returns, one row up,
    erase to the end, bold, dim and colours. Raises ValueError where something else stands."""
    rows: list[list[Cell]] = [[]]
    row = column = 0
    style = ""
    for part in _PARTS.finditer(written):
        codes, verb, end, text = part.groups()
        if end == "\r":
            column = 0
        elif end == "\n":
            row += 1
        elif text:
            for character in text:
                if column == columns:
                    row, column = row + 1, 0
                rows += [[] for _ in range(row + 1 - len(rows))]
                line = rows[row]
                line += [(" ", "")] * (column + 1 - len(line))
                line[column] = (character, style)
                column += 1
        elif verb == "A":
            row = max(0, row - int(codes or 1))
        elif verb == "J" and codes in ("", "0"):
            rows[row:] = [rows[row][:column] if row < len(rows) else []]
        elif verb == "m":
            style = " ".join(CLASSES[code] for code in codes.split(";") if code in CLASSES)
        else:
            raise ValueError(f"the typescript has the sequence {part[0]!r}, which is not known here")
        rows += [[] for _ in range(row + 1 - len(rows))]
    return rows


def picture(command: str, rows: list[list[Cell]], columns: int) -> str:
    """The SVG: the command, then these rows."""
    lines = [[(character, "bold") for character in f"$ {command}"], *rows]
    width, height = round(2 * MARGIN + columns * STEP), 2 * MARGIN + len(lines) * LINE
    body = [f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>']
    for k, line in enumerate(lines):
        body += _row(line, MARGIN + k * LINE + 13)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    label = escape(f"What a terminal shows after: {command}", {'"': "&quot;"})
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" {size} role="img" aria-label="{label}"><style>{STYLE}</style>'
        + "\n".join(body)
        + "</svg>\n"
    )


def _row(line: list[Cell], y: int) -> Iterator[str]:
    """Texts of one style. Each states its length, so that columns stand below each other in any font."""
    start = 0
    while start < len(line):
        style = line[start][1]
        end = next((k for k in range(start, len(line)) if line[k][1] != style), len(line))
        text = "".join(character for character, _ in line[start:end])
        lead = len(text) - len(text.lstrip())
        if text := text.strip():
            x = MARGIN + (start + lead) * STEP
            named = f' class="{style}"' if style else ""
            yield f'<text{named} x="{x:g}" y="{y}" textLength="{len(text) * STEP:g}">{escape(text)}</text>'
        start = end


def chosen(rows: list[list[Cell]], ranges: str) -> list[list[Cell]]:
    """The rows of ranges like 1-20,60-70, counted from 1. A mark stands for what is left out between them."""
    found: list[list[Cell]] = []
    for part in ranges.split(","):
        first, last = map(int, part.split("-"))
        found += [[("⋮", "dim")]] * bool(found) + rows[first - 1 : last]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("typescript", type=Path)
    parser.add_argument("--columns", type=int, default=100, help="of the terminal that was recorded")
    parser.add_argument("--rows", metavar="1-20,60-70", help="of the output, what is drawn (all)")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    text = options.typescript.read_bytes().decode()
    begun, _, rest = text.partition("\n")
    written = rest.rpartition("\nScript done on")[0]
    command = re.search(r"\brung [^\"]*", begun)
    if command is None:
        parser.error(f"{options.typescript} is no typescript of a rung command: its first line names none")
    try:
        rows = screen(written, options.columns)
    except ValueError as error:
        parser.error(str(error))
    while rows and not rows[-1]:
        rows.pop()
    options.out.write_text(
        picture(command[0], chosen(rows, options.rows) if options.rows else rows, options.columns), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
