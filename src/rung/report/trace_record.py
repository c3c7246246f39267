"""What the scripts of a trace's page draw: the timeline and the icicles, as columns of numbers and texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import polars as pl

from rung.analysis.breakdown import part_of
from rung.analysis.icicle import Icicle
from rung.analysis.kernel_names import readable
from rung.analysis.lanes import Lanes
from rung.report import breakdowns, units

SIDES = {"idle": "idle", "gpu": "GPU", "collectives": "collectives", "host": "host"}
ON_HOST = {"cpu_op": "operator", "runtime": "runtime call", "annotation": "annotation", "module": "nn.Module"}
_OWN_COLOUR = ("idle", "launch_gap", *ON_HOST)


class Row(msgspec.Struct):
    """Slices that follow each other. gap: ns from the end of the one before (of the first: from the start); dur: ns; kind: a
    position in Kinds. together: (position, events, their durations in ns) of the slices that several events share."""

    gap: list[int]
    dur: list[int]
    kind: list[int]
    together: list[tuple[int, int, int]]


class Lane(msgspec.Struct):
    """side: a key of SIDES; rows: below each other."""

    title: str
    side: str
    rows: list[Row]


class Curve(msgspec.Struct):
    """ts: ns from the start of the timeline; each value holds until the next."""

    title: str
    unit: str
    ts: list[int]
    value: list[float]


class Group(msgspec.Struct):
    """A rank, or all where there is one. note: what there is to say of it."""

    title: str
    note: str
    lanes: list[Lane]
    curves: list[Curve]


class Kinds(msgspec.Struct):
    """What slices are: for each a position in `names`, in `details` and in `categories`."""

    name: list[int]
    detail: list[int]
    category: list[int]


class Tree(msgspec.Struct):
    """An icicle: for each node its name and category (positions in Page), its parent (-1: the root), time in ns and events."""

    title: str
    name: list[int]
    category: list[int]
    parent: list[int]
    time: list[int]
    count: list[int]


class Page(msgspec.Struct):
    """span: ns of the timeline. categories: as people read them. short: of a name what fits into a picture, "" where it is the name. parts: of a category the class of its
    colour."""

    span: int
    names: list[str]
    short: list[str]
    details: list[str]
    categories: list[str]
    parts: list[str]
    kinds: Kinds
    groups: list[Group]
    trees: list[Tree]


class _Texts:
    """Each text once, by its position."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def of(self, text: str | None) -> int:
        return self.known.setdefault(units.one_line(text), len(self.known))

    @property
    def all(self) -> list[str]:
        return list(self.known)


def record(
    lanes: Lanes,
    curves: pl.DataFrame,
    trees: Iterable[tuple[str, Icicle]],
    late: dict[int, str],
    titles: Sequence[str] = (),
) -> Page:
    """curves: columns as in CURVES. trees: with their titles. late: what there is to say of ranks on which others waited. titles: what to
    call ranks 0, 1, ... where they are none."""
    names, details, categories = _Texts(), _Texts(), _Texts()
    kinds = Kinds([], [], [])
    for category, name, detail in lanes.kinds.iter_rows():
        kinds.name.append(names.of(name))
        kinds.detail.append(details.of(detail))
        kinds.category.append(categories.of(category))
    drawn = [_tree(title, icicle, names, categories) for title, icicle in trees]
    groups = _groups(lanes, curves, late, titles)
    shorter = [readable(name) for name in names.all]
    return Page(
        span=lanes.span_ns,
        names=names.all,
        short=["" if short == name else short for short, name in zip(shorter, names.all, strict=True)],
        details=details.all,
        categories=[ON_HOST.get(category) or breakdowns.kind(category) for category in categories.all],
        parts=[colour(category) for category in categories.all],
        kinds=kinds,
        groups=groups,
        trees=drawn,
    )


def colour(category: str) -> str:
    """The class of a category's colour: that of its part of a step, or its own."""
    return category if category in _OWN_COLOUR else part_of(category) if category else "frame"


def _groups(lanes: Lanes, curves: pl.DataFrame, late: dict[int, str], titles: Sequence[str]) -> list[Group]:
    ranks = lanes.lanes["rank"].unique(maintain_order=True).to_list()
    rows = dict(lanes.slices.group_by("lane", "row", maintain_order=True))
    groups = []
    for rank in ranks:
        of_rank = lanes.lanes.filter(pl.col("rank").eq_missing(rank))
        found = [
            Lane(units.one_line(where), side, [_row(rows.get((number, row))) for row in range(deep)])
            for side, where, number, deep in of_rank.select("side", "where", "lane", "rows").iter_rows()
        ]
        title = (
            titles[rank] if titles else f"rank {rank}" if rank is not None else "all ranks" if len(ranks) > 1 else ""
        )
        own = curves.filter(pl.col("rank").eq_missing(rank))
        groups.append(
            Group(title, late.get(rank, "") if rank is not None else "", found, _curves(own, lanes.origin_ns))
        )
    return groups


def _row(slices: pl.DataFrame | None) -> Row:
    if slices is None:
        return Row([], [], [], [])
    end = (pl.col("ts") + pl.col("dur")).shift(1).fill_null(0)
    many = slices.with_row_index("at").filter(pl.col("count") > 1)
    return Row(
        slices.select(pl.col("ts") - end).to_series().to_list(),
        slices["dur"].to_list(),
        slices["kind"].to_list(),
        many.select("at", "count", "busy_ns").rows(),
    )


def _curves(curves: pl.DataFrame, origin: int) -> list[Curve]:
    found = []
    for (name, unit, _, device), part in curves.group_by("name", "unit", "rank", "device", maintain_order=True):
        where = f"GPU {device}: " if device is not None else ""
        known = part.filter(pl.col("value").is_finite()).sort("ts", maintain_order=True)
        ts = (known["ts"] - origin).to_list()
        found.append(Curve(f"{where}{units.one_line(name)}", units.one_line(unit), ts, known["value"].to_list()))
    return found


def _tree(title: str, icicle: Icicle, names: _Texts, categories: _Texts) -> Tree:
    nodes = icicle.nodes
    return Tree(
        title,
        [names.of(name) for name in nodes["name"]],
        [categories.of(category) for category in nodes["category"]],
        nodes["parent"].fill_null(-1).to_list(),
        nodes["time_ns"].to_list(),
        nodes["count"].to_list(),
    )
