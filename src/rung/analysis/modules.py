"""Which nn.Modules take the GPU's time?"""

from __future__ import annotations

from collections import Counter

import polars as pl

from rung.analysis.classified import classified
from rung.analysis.frames import enclosing, module_frames
from rung.analysis.once import once
from rung.analysis.spending import part, spending, without
from rung.trace.table import Trace

_ABOVE = " / "


_NUMBER = r"_\d+( / |$)"


def modules(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a class path of nn.Modules, as in `Model / Block / Linear`: equal layers together.

    See `layers` for what the trace needs.

    time_ns: own GPU time per step, the sum of durations.
    share: of the durations of all GPU events.
    count: GPU events per step.
    inclusive_ns: with the modules inside of them.
    module: the class path.
    backward_share: of the own time.
    modules: how many different ones.
    mean_ns, median_ns, min_ns, max_ns, std_ns: mean, median, least, most and standard deviation of one GPU event.
    """
    return _by(trace, steps, together=True)


def layers(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row an nn.Module, by its path of calls as in `Model_0 / Block_3 / Linear_1`, most own GPU time first.

    The trace must have been recorded with stacks and modules. Work of a backward operator belongs to the module whose forward operator
    caused it. Work outside of any module has a row of its own, so that the own times add up to that of all GPU events.

    time_ns: own GPU time per step, the sum of durations.
    share: of the durations of all GPU events.
    count: GPU events per step.
    inclusive_ns: with the modules inside of it. A module whose own time is zero has a row for that.
    module: the path of calls.
    backward_share: of the own time.
    mean_ns, median_ns, min_ns, max_ns, std_ns: mean, median, least, most and standard deviation of one GPU event.
    """
    return _by(trace, steps, together=False)


def _by(trace: Trace, steps: int, together: bool) -> pl.DataFrame:
    path = paths(trace)
    named = classified(trace).select("dur", "backward", path=path, module=pl.coalesce(path, without("module")))
    if together:
        named = named.with_columns(classes(named["module"]))
    own = spending(named, ["module"], steps, [part("backward", "backward"), pl.col("path").n_unique().alias("modules")])
    columns = ["time_ns", "share", "count", "inclusive_ns", "module", "backward_share", "cumulative_share"]
    statistics = ["mean_ns", "median_ns", "min_ns", "max_ns", "std_ns"]
    return _inclusive(own).select(*columns, *(["modules"] if together else []), *statistics)


@once
def paths(trace: Trace) -> pl.Series:
    """For each GPU event of `origins` the path of nn.Modules that it belongs to; null for none."""
    frames = module_frames(trace)
    of_event, above = enclosing(trace, frames)
    known: list[str] = []
    names = frames["name"].str.strip_prefix("nn.Module: ").to_list()
    for name, caller in zip(names, above.to_list(), strict=True):
        known.append(name if caller is None else f"{known[caller]}{_ABOVE}{name}")
    return pl.Series(known, dtype=pl.String).gather(of_event)


def classes(path: pl.Series) -> pl.Series:
    """Paths without the numbers of their modules. A path is long, and of many few are different."""
    different = path.drop_nulls().unique()
    return path.replace_strict(different, different.str.replace_all(_NUMBER, "$1"), default=None)


def _inclusive(own: pl.DataFrame) -> pl.DataFrame:
    """With `inclusive_ns`, and a row for each module whose own time is zero but not that of those inside it."""
    inclusive: Counter[str] = Counter()
    for path, ns in own.select("module", "time_ns").iter_rows():
        inclusive[path] += ns
        while _ABOVE in path:
            path = path.rpartition(_ABOVE)[0]
            inclusive[path] += ns
    sums = pl.DataFrame(list(inclusive.items()), schema={"module": pl.String, "inclusive_ns": pl.Int64}, orient="row")
    return (
        own.join(sums, on="module", how="full", coalesce=True, maintain_order="left_right")
        .with_columns(pl.col("count", "share", "time_ns").fill_null(0), pl.col("cumulative_share").fill_null(1.0))
        .sort("time_ns", "inclusive_ns", "module", descending=[True, True, False])
    )
