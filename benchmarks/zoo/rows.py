"""The results file of one machine: JSON lines, the first with the order in which cases are run, then one row a case."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

sys.path.append(str(Path(__file__).parents[1] / "climb"))
from fresh import Climb, Timed

SEED = 20261124
LIBRARIES = ("torch", "triton", "transformers", "timm", "diffusers")  # whose versions a plain process depends on


class Header(msgspec.Struct, tag="order", kw_only=True):
    """Written before the first run. order: of all cases that there are, `NAME:VARIANT`, drawn by `seed`."""

    seed: int
    began: str
    order: list[str]


class Row(msgspec.Struct, tag="row", kw_only=True):
    """One model and variant at one precision and budget.

    reason: why there is nothing to climb: the library lacks the model, or not even the untouched one runs here. eager, plain: at this
    precision, a process each. done: nothing more is to be run for it.
    """

    name: str
    variant: str
    kind: str
    numerics: str
    budget_s: float
    toy: bool = False
    reason: str = ""
    eager: Timed | None = None
    plain: list[Timed] = []
    climb: Climb | None = None
    done: bool = False
    versions: dict[str, str] = {}

    @property
    def case(self) -> str:
        return f"{self.name}:{self.variant}"

    @property
    def label(self) -> str:
        """Of this row alone: a case may be run at several precisions and budgets."""
        return f"{self.case}, {self.numerics}, {self.budget_s:.0f} s"

    @property
    def family(self) -> str:
        return self.name.partition("/")[0]

    @property
    def device(self) -> str:
        return self.eager.device if self.eager else ""

    def same_runs(self, other: Row) -> bool:
        """Whether the plain processes of both are the same work: they may differ in the budget alone."""
        mine, theirs = ((row.case, row.numerics, row.toy, *map(row.versions.get, LIBRARIES)) for row in (self, other))
        return mine == theirs


Line = Header | Row


def drawn(cases: Iterable[str], seed: int = SEED) -> list[str]:
    """The cases in an order that the seed alone decides. The place of one does not depend on which others there are."""
    return sorted(cases, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())


class Results:
    """A results file, rewritten whole with every change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: Header | None = None
        self.rows: list[Row] = []
        decoder = msgspec.json.Decoder(Line)
        for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else (), 1):
            try:
                read = decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise SystemExit(f"{path}, line {number}, is no line of the zoo: {error}") from None
            if isinstance(read, Header):
                self.header = read
            else:
                self.rows.append(read)

    def row_of(self, wanted: Row) -> Row:
        """The row of this case, precision, budget and size: the one that is there, or `wanted`, which is added."""
        asked = (wanted.case, wanted.numerics, wanted.budget_s, wanted.toy)
        for row in self.rows:
            if (row.case, row.numerics, row.budget_s, row.toy) == asked:
                return row
        self.rows.append(wanted)
        return wanted

    def write(self) -> None:
        lines = [self.header, *self.rows] if self.header else self.rows
        partial = self.path.with_name(self.path.name + ".partial")
        partial.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
        os.replace(partial, self.path)
