"""The share of GPU time without a work model, of any traces, as Markdown; with what is missing.

    python benchmarks/trace/coverage.py TRACES... [--pair TRACE CAPTURE]

A pair is a trace whose kernels a graph replays, and the trace of that graph's capture.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from rung.analysis.captures import with_captures
from rung.analysis.roofline import roofline
from rung.trace import read


def row(path: Path, captures: Sequence[Path] = ()) -> str:
    trace = read(path, cache=False)
    table = roofline(with_captures(trace, captures) if captures else trace)
    without = table.filter(pl.col("reason").is_not_null())
    inferred = table.filter(pl.col("inferred"), pl.col("reason").is_null())["share"].sum()
    largest = without.group_by("op", "reason").agg(pl.col("share").sum()).sort("share", "op", descending=[True, False])
    missing = "; ".join(f"{op}: {reason}, {share:.2%}" for op, reason, share in largest.head(3).iter_rows())
    name = path.name.removesuffix(".json.gz") + (" with its capture" if captures else "")
    return f"| `{name}` | {without['share'].sum():.2%} | {inferred:.2%} | {missing or '–'} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, nargs="*")
    parser.add_argument("--pair", type=Path, nargs=2, action="append", default=[], metavar=("TRACE", "CAPTURE"))
    options = parser.parse_args()
    print("| trace | without a model | inferred | what is missing |\n|---|---|---|---|")
    for path in options.traces:
        print(row(path), flush=True)
    for trace, capture in options.pair:
        print(row(trace, [capture]), flush=True)


if __name__ == "__main__":
    main()
