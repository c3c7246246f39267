"""Rung beside plain PyTorch on models that nobody tuned for: one process a case, resumable, one results file a machine.

    python benchmarks/zoo/zoo.py list
    python benchmarks/zoo/zoo.py check hf timm                   one eager step of each at toy size
    python benchmarks/zoo/zoo.py check --rewritten hf timm       each at toy size, verified under all rewrites
    python benchmarks/zoo/zoo.py run --out h100.jsonl --budget 120 --seconds 500 --first 20 hf
    python benchmarks/zoo/zoo.py run --out h100.jsonl --budget 30 --numerics tf32 --kernelbench ~/KernelBench/KernelBench --first 20 kernelbench/level1
    python benchmarks/zoo/zoo.py table h100.jsonl
    python benchmarks/zoo/zoo.py chart h100.jsonl --out h100.html

`run` goes on where it stopped: the same command again leaves out what the file has. Cases are run in an order that a fixed seed draws, which
is the file's first line; NAMES say which of them are run, and never in which order. docs/zoo.md says what is counted how.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from checking import check
from choosing import cases, chosen, in_drawn_order
from rows import Results
from running import run, say

MODES = ("default", "reduce-overhead")
KNOWN_MODES = (*MODES, "max-autotune")


def listed(given: argparse.Namespace) -> int:
    known = cases(given.kernelbench)
    order = in_drawn_order(known)
    for case, variant in chosen(known, order, given.names, None):
        say(f"{case.name}:{variant}  ({case.kind})")
    return 0


def tables(given: argparse.Namespace) -> int:
    from tables import table

    print(table(Results(given.file)))
    return 0


def charts(given: argparse.Namespace) -> int:
    from chart import page

    given.out.write_text(page(Results(given.file)))
    say(f"chart: {given.out}")
    return 0


def _modes(text: str) -> tuple[str, ...]:
    found = tuple(m for m in text.split(",") if m)
    if odd := next((m for m in found if m not in KNOWN_MODES), None):
        raise argparse.ArgumentTypeError(f"{odd!r} is no mode; there are {', '.join(KNOWN_MODES)}")
    return found


def _numbers(text: str) -> tuple[int, ...]:
    if not all(part.isdecimal() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of GPUs; write their numbers, as in 0,1")
    return tuple(int(part) for part in text.split(","))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)

    def add(name: str, call: object, help_text: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = commands.add_parser(name, help=help_text)
        made.set_defaults(call=call)
        return made

    run_ = add("run", run, "measure what the results file lacks")
    run_.add_argument("--out", type=Path, required=True, metavar="FILE", help="the results file, JSON lines")
    run_.add_argument("--budget", type=float, default=120.0, metavar="SECONDS", help="of a climb (default: 120)")
    run_.add_argument("--seconds", type=float, metavar="N", help="begin no process after so many seconds")
    run_.add_argument(
        "--numerics", choices=("exact", "tf32", "bf16"), help="of every side (default: bf16 on a GPU, exact on a CPU)"
    )
    run_.add_argument(
        "--modes",
        type=_modes,
        default=MODES,
        metavar="A,B",
        help=f"of {', '.join(KNOWN_MODES)} (default: the first two)",
    )
    run_.add_argument(
        "--first", type=int, metavar="N", help="of the chosen cases, the first so many in the drawn order"
    )
    run_.add_argument(
        "--gpus", type=_numbers, metavar="0,1", help="several cases at a time, each on a GPU and its part of the cores"
    )
    run_.add_argument("--toy", action="store_true", help="models of toy size, to try the runner on a CPU")
    check_ = add("check", check, "make cases at toy size on the CPU, and step once")
    check_.add_argument(
        "--rewritten", action="store_true", help="verify each under all rewrites instead: seconds to minutes a case"
    )
    others = [run_, add("list", listed, "the cases, in the drawn order"), check_]
    for one in others:
        one.add_argument(
            "names", nargs="*", metavar="NAMES", help="cases, families, variants or `slice` (default: all)"
        )
        one.add_argument(
            "--kernelbench", type=Path, metavar="DIR", help="the folder of a KernelBench checkout that has level1"
        )
    table_ = add("table", tables, "Markdown")
    chart_ = add("chart", charts, "one HTML page without scripts")
    for one in (table_, chart_):
        one.add_argument("file", type=Path)
    chart_.add_argument("--out", type=Path, default=Path("zoo.html"), metavar="FILE")
    given = parser.parse_args()
    return int(given.call(given))


if __name__ == "__main__":
    raise SystemExit(main())
