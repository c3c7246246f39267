"""Curves over time with no more points than a picture can show."""

from __future__ import annotations

import polars as pl

from rung.trace.counter_tracks import tracks
from rung.trace.table import Trace

MOST = 1500  # points of a curve
_CURVE = ("name", "unit", "rank", "device")


def curves(trace: Trace, *, most: int = MOST) -> pl.DataFrame:
    """The curves of `counter_tracks.tracks`, columns as in CURVES, each of about `most` points: where it has more, of each stretch of
    time the highest value and the last one, so that no peak is lost.
    """
    every = tracks(trace)
    if every.is_empty():
        return every
    parts = [_thinned(part, most) for part in every.partition_by(_CURVE, maintain_order=True)]
    return pl.concat(parts)


def _thinned(curve: pl.DataFrame, most: int) -> pl.DataFrame:
    if curve.height <= most:
        return curve
    ordered = curve.sort("ts", maintain_order=True).with_row_index("row")
    first, last = int(ordered["ts"][0]), int(ordered["ts"][-1])
    stretch = (pl.col("ts") - first) // max(1, (last - first) // (most // 2) + 1)
    rows = ordered.group_by(stretch).agg(
        highest=pl.col("row").gather(pl.col("value").arg_max()), last=pl.col("row").last()
    )
    kept = pl.concat([rows["highest"].explode(), rows["last"]]).unique().sort()
    return ordered.filter(pl.col("row").is_in(kept.implode())).drop("row")
