"""Makes the partials of more ranks from those of synthetic_ranks.py, to see what merging them costs; and merges them.

    rung analyze /tmp/ranks --partials /tmp/partials
    python benchmarks/trace/more_partials.py /tmp/partials /tmp/more --times 16

Each copy is of other ranks: its groups of all ranks are those of the larger run, and its nodes follow those of the copy before.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import polars as pl
from many_ranks import measured
from synthetic_ranks import NODE

from rung.analysis.partials.table import ENDING


def copied(partial: pl.DataFrame, turn: int, ranks: int, times: int) -> pl.DataFrame:
    """A partial of rank + turn * ranks, in a run of ranks * times."""
    facts = json.loads(partial["facts"][0])
    rank = facts["stated"][0] + turn * ranks
    facts |= {
        "stated": [rank, *facts["stated"][1:]],
        "world_size": ranks * times,
        "ranks": [rank],
        "file": f"rank{rank:06}.json.gz",
    }
    facts["ts_sum"] += turn  # no copy of another
    calls = partial.select("calls").explode("calls").unnest("calls")
    of_all = pl.col("group") == "0"
    group = pl.when(of_all).then("group").otherwise(1 + rank // NODE)
    names = pl.when(of_all).then("group_ranks").otherwise(pl.lit(f"node {rank // NODE}"))
    size = pl.when(of_all).then(ranks * times).otherwise("group_size").cast(pl.Int64)
    calls = calls.with_columns(group=group.cast(pl.String), group_ranks=names, group_size=size)
    return partial.with_columns(
        facts=pl.lit(json.dumps(facts)), calls=calls.select(pl.struct(pl.all()).implode()).to_series()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("partials", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", type=int, default=16)
    given = parser.parse_args()
    files = sorted(given.partials.glob(f"*{ENDING}"))
    there = given.folder.is_dir()
    given.folder.mkdir(parents=True, exist_ok=True)
    for file in [] if there else files:
        partial = pl.read_parquet(file)
        for turn in range(given.times):
            copied(partial, turn, len(files), given.times).write_parquet(
                given.folder / f"{turn:04}.{file.name}", statistics=False
            )
    print(f"{len(files) * given.times} partials")
    rung = [sys.executable, "-m", "rung.cli.main", "analyze", str(given.folder)]
    print(measured("merge", rung, 20e-3 * len(files) * given.times))


if __name__ == "__main__":
    main()
