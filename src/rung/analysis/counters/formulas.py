"""The figures of formulas.toml: arithmetic over counters, as polars expressions."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import polars as pl

from rung.toml import shipped

Operand = Callable[[str], "pl.Expr | float | None"]


@dataclass(frozen=True)
class Form:
    """over / under, for the architectures that match; without `under` the figure is an amount."""

    over: str
    under: str | None
    arch: str

    def names(self) -> list[str]:
        """The counters, facts and figures that it needs."""
        found = re.findall(r"[A-Za-z_]\w*\b(?!\()", f"{self.over} {self.under or ''}")
        return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Metric:
    """One figure. total: the figures that it adds up, instead of forms."""

    name: str
    means: str
    source: str
    forms: tuple[Form, ...]
    total: tuple[str, ...]


@dataclass(frozen=True)
class Formulas:
    """metrics in the order of the columns; alias: other names of a counter; arch: facts of architectures by prefix."""

    metrics: Mapping[str, Metric]
    alias: Mapping[str, tuple[str, ...]]
    arch: Mapping[str, Mapping[str, float]]


@lru_cache(maxsize=1)
def formulas() -> Formulas:
    found = shipped("analysis/counters/formulas.toml")
    return Formulas(
        {row["name"]: _metric(row) for row in found["metric"]},
        {name: tuple(names) for name, names in found["alias"].items()},
        found["arch"],
    )


def _metric(row: dict[str, Any]) -> Metric:
    forms = row.get("form", [row] if "over" in row else [])
    made = tuple(Form(form["over"], form.get("under"), form.get("arch", "")) for form in forms)
    return Metric(row["name"], row["means"], row["source"], made, tuple(row.get("sum", ())))


def counter_names(name: str) -> Iterator[str]:
    """How a trace may call a counter of a formula: the first that is there holds."""
    for base in formulas().alias.get(name, (name,)):
        yield f"{base}_sum"
        yield base


def compiled(text: str, operand: Operand) -> pl.Expr | float | None:
    """The arithmetic of a formula; None where an operand is not there."""
    return _value(ast.parse(text, mode="eval").body, operand)


def _value(node: ast.expr, operand: Operand) -> pl.Expr | float | None:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return operand(name)
        case ast.BinOp(left=left, op=op, right=right):
            one, other = _value(left, operand), _value(right, operand)
            if one is None or other is None:
                return None
            match op:
                case ast.Add():
                    return one + other
                case ast.Sub():
                    return one - other
                case ast.Mult():
                    return one * other
                case ast.Div():
                    return one / other
        case ast.Call(func=ast.Name(id="min"), args=[first, ast.Constant(value=int() | float() as most)], keywords=[]):
            return _at_most(_value(first, operand), float(most))
    raise ValueError(f"formulas.toml: {ast.unparse(node)} is not arithmetic")


def _at_most(value: pl.Expr | float | None, most: float) -> pl.Expr | float | None:
    if isinstance(value, pl.Expr):
        return value.clip(upper_bound=most)
    return None if value is None else min(value, most)
