"""The collectives of a run in parts that fit into memory: the calls of one operation are in one part, whatever its ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from rung.analysis.collectives import how_matched

MOST_ROWS = 1_000_000  # calls in a part: some 700 MB, with what is worked out of them


class Buckets:
    """Rows go in by ranks, and come out by operations; where there is more than one bucket they wait on the disk.

    calls: how many are to be expected. folder: for the files.
    """

    def __init__(self, calls: int, folder: Path) -> None:
        self._number = -(-calls // MOST_ROWS) or 1
        self._folder = folder
        self._here: list[pl.DataFrame] = []
        self._batches = 0

    def add(self, calls: pl.DataFrame) -> None:
        """calls: as `collective_calls` gives them, of some ranks."""
        if self._number == 1:
            self._here.append(calls)
            return
        self._batches += 1
        for (bucket,), part in _with_bucket(calls, self._number).partition_by("bucket", as_dict=True).items():
            place = self._folder / f"calls-{bucket}"
            place.mkdir(exist_ok=True)
            part.drop("bucket").write_parquet(
                place / f"{self._batches:06}.parquet", compression="lz4", statistics=False
            )

    def __iter__(self) -> Iterator[pl.DataFrame]:
        """The parts; each by rank and time."""
        if self._number == 1:
            if self._here:
                yield _ordered(pl.concat(self._here))
            return
        for bucket in range(self._number):
            place = self._folder / f"calls-{bucket}"
            if place.is_dir():
                yield _ordered(pl.read_parquet(sorted(place.iterdir())))


def _with_bucket(calls: pl.DataFrame, number: int) -> pl.DataFrame:
    """By the columns that `with_key` tells an operation by; one that is alone may be anywhere."""
    matched = pl.col("matched")
    told = pl.struct(
        "group", "group_ranks", "collective", seq=pl.when(matched == "seq").then("seq"),
        step=pl.when(matched == "order").then("step"), turn=pl.when(matched == "order").then("turn"),
    )  # fmt: skip
    return how_matched(calls).with_columns(bucket=told.hash(seed=0) % number).drop("matched")


def _ordered(calls: pl.DataFrame) -> pl.DataFrame:
    return calls.sort("rank", "ts", maintain_order=True)
