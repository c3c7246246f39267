"""What the rules of the findings look at: a trace's figures, worked out once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from rung.analysis import analyses
from rung.analysis.account import account
from rung.analysis.applicable import Applicable
from rung.analysis.gaps import caused
from rung.analysis.kernel_names import readable
from rung.analysis.timeline import timeline
from rung.quantities import duration
from rung.trace.table import Trace


@dataclass(frozen=True)
class Seen:
    """share: of the GPUs' time, what the finding is about; evidence: what was seen; left: the fractions of it that remain at
    best and at worst, where the trace says more than the rule's own range; family: of the operator that it is about, as in
    `roofline`."""

    share: float
    evidence: str
    left: tuple[float, float] | None = None
    family: str = ""


class Facts:
    """What the rules look at. Times are sums over the GPUs and steps; total_ns is what shares are of."""

    def __init__(self, trace: Trace, steps: int) -> None:
        self.trace, self.steps = trace, steps
        rows = timeline(trace).filter(pl.col("step").is_null())
        self.sums: dict[str, int] = rows.select(pl.exclude("rank", "device", "step").sum()).row(0, named=True)
        self.per = max(1, rows.height * steps)
        self.a_step = " a step" if steps > 1 else ""
        self.own = account(trace)
        self.idle = caused(trace)
        self.fits = Applicable(trace)

    def share(self, ns: Any) -> float:
        return float(ns) / max(1, self.sums["total_ns"])

    def time(self, ns: Any) -> str:
        """Of one step of one GPU."""
        return duration(float(ns) / self.per)

    def many(self, number: float, one: str = "", more: str = "s") -> str:
        """ "12 kernels a step": of one step of one GPU."""
        each = number / self.per
        shown = f"{each:.0f}" if each >= 10 or each == int(each) else f"{each:.2g}"
        what = f" {one}{'' if each == 1 else more}" if one else ""
        return f"{shown}{what}{self.a_step}"

    def spent(self, *conditions: pl.Expr) -> tuple[float, pl.DataFrame]:
        """The share of the busy events of these conditions, and the events."""
        events = self.own.filter(*conditions)
        return self.share(events["own_ns"].sum()), events

    def gaps(self, *conditions: pl.Expr) -> tuple[float, str]:
        """The share of the idle time of these conditions, and what the host did in most of it."""
        found = self.idle.filter(*conditions)
        doing = (
            found.group_by("during", "call_site").agg(pl.col("gap_ns").sum()).sort("gap_ns", descending=True).row(0)
            if found.height
            else (None, None, 0)
        )
        where = ", ".join(str(part) for part in doing[:2] if part)
        return self.share(found["gap_ns"].sum()), where

    @cached_property
    def replayed(self) -> bool:
        """Is next to all work that of graphs? Then there is nothing left to capture."""
        replayed, busy = (int(events["own_ns"].sum()) for events in (self.own.filter("graph"), self.own))
        return replayed > 0.9 * busy

    def linked(self) -> bool:
        """Does the trace have the launch of anything?"""
        return bool(self.idle.filter(pl.col("cause") != "no launches").height)

    def table(self, name: str) -> pl.DataFrame:
        """Another analysis, empty where there is none of the name."""
        return analyses.table(name, self.trace, steps=self.steps) if name in analyses.ANALYSES else pl.DataFrame()


def largest(events: pl.DataFrame) -> str:
    """The operator, else kernel, with most of the time."""
    what = pl.coalesce("op", "name").alias("what")
    sums = events.group_by(what).agg(pl.col("own_ns").sum()).sort("own_ns", "what", descending=[True, False])
    return short(str(sums["what"][0]))


def short(name: str) -> str:
    """A kernel's or operator's name for a sentence."""
    text = readable(name)
    return text if len(text) <= 70 else f"{text[:67]}..."
