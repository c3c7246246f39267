"""Whose work each GPU event is: the operator that launched it or, where that has no model, one around it that has."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from rung.analysis.around import expert_kernels, step_lengths
from rung.analysis.calls import launching_calls
from rung.analysis.costs import LIST_ITEM, Cost, Unknown, cost, model_of, needs_lengths, read_call
from rung.analysis.intervals import Ints
from rung.analysis.origins import origins
from rung.analysis.outside import repeated
from rung.trace.table import Trace

INPUTS = ("name", "dims", "dtypes", "strides", "concrete")
# What an event is not the work of an operator for, in the order in which it is asked.
COLLECTIVE, GRAPH, OUTSIDE, NO_OP = "collective", "replayed by a graph", "launched outside of the trace", "no operator"
NO_SHAPES, NO_MODEL = "no shapes recorded", "no model"
# Lists of tensors are recorded without their types; the kernels' names say them.
_ITEM_OF_KERNEL = (
    (re.compile(r"OpaqueType<(\d+)u?>|OpaqueTypeILj(\d+)E"), None),
    (re.compile(r"BFloat16|bfloat16|bf16"), "bf16"),
    (re.compile(r"c10::Half|__half|\bhalf\b|4HalfE"), "fp16"),
    (re.compile(r"<double\b|\bdouble,"), "fp64"),
    (re.compile(r"<float\b|\bfloat,"), "fp32"),
    (re.compile(r"<long\b"), "int64"),
    (re.compile(r"<int\b"), "int32"),
)
_OF_SIZE = {"1": "uint8", "2": "bf16", "4": "fp32", "8": "fp64"}
_TF32 = re.compile(r"(?i)tf32|s1688gemm|xf32|_S_MX_")
_HOST = re.compile(r"HtoD|DtoH|Host -> Device|Device -> Host|HostToDevice|DeviceToHost|HOST_TO_DEVICE|DEVICE_TO_HOST")


@dataclass(frozen=True)
class Work:
    """The GPU events of `origins`, each with the number of its kind of call, and what the kinds are.

    events: one row a GPU event: `dur` (ns), `call` (the number of the call whose work it is, null where there is none: its
        position in launching_calls, and another one in each replay of a graph), `kind` (a row of `kinds`, null likewise), `reason` (why it has no cost, null where it
        has one), `tf32` (a kernel of the call says that it multiplies in TF32), `host` (copied to or from the host),
        `inferred` (launched before the recording: the work is that of recorded kernels which are the same, see outside.py).
    kinds: one row a distinct operator and inputs: INPUTS, `item` (the precision of its lists' elements) and `around`
        (what the trace says of it beside its inputs, where its work depends on that).
    costs: of each kind; None where it has none.
    """

    events: pl.DataFrame
    kinds: pl.DataFrame
    costs: list[Cost | None]


def work(trace: Trace) -> Work:
    """The cost of each kind of call is worked out once, whatever the number of calls.

    An operator without a model of its own passes its events to the innermost one around it that has a cost, unless
    operators with costs are inside that one, too: they are its work, which would be counted twice.
    """
    events = origins(trace).select("name", "kind", "dur", "role", "linked", "graph", "op", number="call")
    facts = _kernel_facts(events["name"].unique())
    events = events.join(facts, on="name", how="left", maintain_order="left")
    lengths = step_lengths(trace)
    of = ["op"] if lengths is None else ["op", "lengths"]
    events = events.with_columns(lengths=lengths if lengths is not None else pl.lit(None, dtype=pl.String))
    calls = launching_calls(trace)
    above = _operator_above(calls)

    book = _Book(calls, expert_kernels(trace))
    own = events.filter(pl.col("op").is_not_null(), pl.col("role") != "communication")
    facts_of = [pl.col("item").drop_nulls().first(), pl.col("tf32").any()]
    launched = own.group_by(of, maintain_order=True).agg(facts_of)
    position, said = (
        launched["op"].to_numpy(),
        launched.select("item", lengths="lengths" if len(of) > 1 else pl.lit(None, dtype=pl.String)),
    )
    kind = book.kinds_of(position, said)
    target = position.copy()
    inside = _all_above(position[book.has_cost(kind)], above, calls.height)
    open_ = np.flatnonzero(~book.has_cost(kind))
    current = above[position[open_]]
    while (going := (current >= 0)).any():
        open_, current = open_[going], current[going]
        found = book.kinds_of(current, said[open_])
        good = book.has_cost(found) & ~inside[current]
        target[open_[good]], kind[open_[good]] = current[good], found[good]
        inside |= _all_above(current[good], above, calls.height)
        open_, current = open_[~good], above[current[~good]]

    owners = launched.select(of).with_columns(call=pl.Series(target), of=pl.Series(kind), of_tf32=launched["tf32"])
    kinds = book.frame()
    costs = book.costs
    priced = pl.Series([found is not None for found in costs], dtype=pl.Boolean)
    shaped = kinds["dims"].is_not_null() & kinds["dtypes"].is_not_null()
    joined = events.join(owners, on=of, how="left", maintain_order="left", nulls_equal=len(of) > 1).with_columns(
        pl.when(pl.col("role") != "communication").then(column).alias(column) for column in ("call", "of")
    )
    joined = _with_repeated(trace, joined.with_columns(call=pl.col("call") + pl.col("number") - pl.col("op")))
    has, shapes = priced.gather(joined["of"]), shaped.gather(joined["of"])
    some = events["linked"].any()  # else nothing is known of any launch
    reason = (
        pl.when((pl.col("role") == "communication") & (pl.col("linked") | (not some)))
        .then(pl.lit(COLLECTIVE))
        .when(pl.col("op").is_null() & pl.col("graph"))
        .then(pl.lit(GRAPH))
        .when(pl.col("op").is_null() & ~pl.col("linked") & ~pl.col("inferred"))
        .then(pl.lit(OUTSIDE))
        .when(pl.col("op").is_null() & ~pl.col("inferred"))
        .then(pl.lit(NO_OP))
        .when(has)
        .then(pl.lit(None, dtype=pl.String))
        .when(~shapes)
        .then(pl.lit(NO_SHAPES))
        .otherwise(pl.lit(NO_MODEL))
    )
    return Work(
        joined.select(
            "dur",
            "call",
            "inferred",
            kind="of",
            reason=reason,
            tf32="of_tf32",
            host=pl.col("host") & (pl.col("role") == "memcpy"),
        ),
        kinds,
        costs,
    )


def _with_repeated(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """`events` with `inferred`, and `call`, `of` and `of_tf32` of recorded work for what was launched before the recording
    and repeats it. Where several stretches fit, only kernels that are the same kind of call in all of them count."""
    inferred = np.zeros(events.height, dtype=bool)
    kind, pairs = events["of"].fill_null(-1).to_numpy(), []
    for stream in repeated(trace):
        kinds = kind[np.array(stream.stretches)]
        certain = (kinds == kinds[0]).all(axis=0) & (kinds[0] >= 0)
        pairs.append((stream.rows[certain], stream.stretches[-1][certain]))
    if not pairs:
        return events.with_columns(inferred=pl.Series(inferred))
    rows, like = map(np.concatenate, zip(*pairs, strict=True))
    inferred[rows] = True
    taken = events.select("call", "of", "of_tf32").select(pl.all().gather(like))
    again = -1 - taken["call"]  # another call than the recorded one
    return events.with_columns(
        inferred=pl.Series(inferred),
        call=events["call"].scatter(rows, again),
        of=events["of"].scatter(rows, taken["of"]),
        of_tf32=events["of_tf32"].scatter(rows, taken["of_tf32"]),
    )


class _Book:
    """The distinct kinds of call met so far, and their costs."""

    def __init__(self, calls: pl.DataFrame, kernels: dict[int, str]) -> None:
        self._calls = calls.select(INPUTS)
        self._kernels = kernels
        self._numbers: dict[tuple[str | None, ...], int] = {}
        self.costs: list[Cost | None] = []

    def kinds_of(self, positions: Ints, said: pl.DataFrame) -> Ints:
        """The number of the kind of each of these calls; those that are new get one, and a cost.

        said: of each, `item` and `lengths` of its step.
        """
        listed = (
            pl.col("dtypes").cast(pl.String).str.contains("TensorList", literal=True)
        )  # only there does the item matter
        rows = self._calls.select(pl.all().gather(positions)).with_columns(said).with_columns(
            item=pl.when(listed).then("item"), around=self._around(positions, said["lengths"])
        ).drop("lengths")  # fmt: skip
        distinct = rows.unique(maintain_order=True)
        distinct = distinct.with_columns(
            number=pl.Series([self._number(key) for key in distinct.iter_rows()], dtype=pl.Int64)
        )
        keys = [*INPUTS, "item", "around"]
        numbers = rows.join(distinct, on=keys, how="left", maintain_order="left", nulls_equal=True)["number"]
        return numbers.to_numpy(writable=True)

    def _around(self, positions: Ints, lengths: pl.Series) -> pl.Series:
        """What the trace says beside the inputs of these calls, of those whose work depends on it."""
        if not self._kernels and lengths.null_count() == len(lengths):
            return lengths
        wanted = [name for name in self._calls["name"].unique() if needs_lengths(name)]
        needs = self._calls["name"].gather(positions).is_in(wanted)
        kernels = pl.Series([self._kernels.get(at) for at in positions.tolist()], dtype=pl.String)
        return pl.select(pl.coalesce(pl.when(needs).then(lengths), kernels)).to_series()

    def has_cost(self, kinds: Ints) -> npt.NDArray[np.bool_]:
        return np.array([found is not None for found in self.costs], dtype=bool)[kinds]

    def frame(self) -> pl.DataFrame:
        schema = {name: pl.String() for name in (*INPUTS, "item", "around")}
        return pl.DataFrame(list(self._numbers), schema=schema, orient="row")

    def _number(self, key: tuple[str | None, ...]) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.costs)
            self.costs.append(_cost(*key))
        return number


def _cost(
    name: str | None,
    dims: str | None,
    dtypes: str | None,
    strides: str | None,
    concrete: str | None,
    item: str | None,
    around: str | None,
) -> Cost | None:
    if name is None or model_of(name) is None:
        return None
    try:
        return cost(read_call(name, dims, dtypes, strides, concrete, LIST_ITEM.get(name) or item or "", around or ""))
    except Unknown:
        return None


def _operator_above(calls: pl.DataFrame) -> Ints:
    """For each call the position of the innermost operator around it, itself not counted; -1 where there is none."""
    caller, op = calls["caller"].to_numpy(), calls["op"].to_numpy()
    return np.where(caller >= 0, op[caller], -1) if caller.size else caller


def _all_above(positions: Ints, above: Ints, size: int) -> npt.NDArray[np.bool_]:
    """Which calls have one of these inside them."""
    marked = np.zeros(size, dtype=bool)
    current = np.unique(above[positions])
    while (current := current[(current >= 0)]).size:
        current = current[~marked[current]]
        marked[current] = True
        current = np.unique(above[current])
    return marked


def _kernel_facts(names: pl.Series) -> pl.DataFrame:
    """What a kernel's name says of the element type, of TF32 and of the host."""
    texts = names.to_list()
    return pl.DataFrame(
        {
            "name": texts,
            "item": [item_of_kernel(text) for text in texts],
            "tf32": [bool(_TF32.search(text)) for text in texts],
            "host": [bool(_HOST.search(text)) for text in texts],
        },
        schema={"name": pl.String(), "item": pl.String(), "tf32": pl.Boolean(), "host": pl.Boolean()},
    )


def item_of_kernel(name: str) -> str | None:
    """The precision of the elements that a kernel works on, where its name says it."""
    for pattern, item in _ITEM_OF_KERNEL:
        if found := pattern.search(name):
            return item or _OF_SIZE.get(next(group for group in found.groups() if group))
    return None
