"""What a call of the GPU's runtime is for, told by its name. The names are data: runtime_calls.toml."""

from __future__ import annotations

import re
from functools import lru_cache

import polars as pl

from rung.toml import shipped

LAUNCHING = ("launch", "graph launch", "copy", "blocking copy")  # roles of calls that give the GPU work


@lru_cache(maxsize=1)
def _roles() -> list[tuple[str, re.Pattern[str]]]:
    rows = shipped("analysis/runtime_calls.toml")["role"]
    return [(row["role"], re.compile("|".join(row["patterns"]))) for row in rows]


@lru_cache(maxsize=4096)
def role(name: str) -> str:
    """The role of a runtime call, as in "launch" or "synchronize"; "other" where none fits."""
    return next((role for role, pattern in _roles() if pattern.search(name)), "other")


def with_role(calls: pl.DataFrame) -> pl.DataFrame:
    """Runtime calls with their `role`."""
    names = calls.select("name").unique()
    roles = names.with_columns(role=pl.Series([role(name) for name in names["name"]], dtype=pl.String))
    return calls.join(roles, on="name", how="left", maintain_order="left")
