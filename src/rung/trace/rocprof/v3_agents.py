"""Which GPU is meant by an agent in a rocprofv3 CSV: `4`, `Agent 4`, `Agent-4`, `GPU 0`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import polars as pl

_AGENT = re.compile(r"^\s*(?:(gpu|cpu|agent)[ _-]*)?(\d{1,9})\s*$", re.IGNORECASE)


@dataclass
class Agents:
    """The GPUs of one process, in the order of agent_info.csv: their position is the device of an event.

    Without that file, the agents that run kernels are GPUs, and are counted in the order of their numbers.
    """

    gpus: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[str, int | None] = field(default_factory=dict)  # the agent as written → device

    def number(self, on_gpus: Iterable[str], others: Iterable[str]) -> None:
        """Sets `numbers` for agents that surely are GPUs (they ran kernels) and for all that are named."""
        sure = {text: found for text in on_gpus if (found := _AGENT.match(text))}
        every = {text: found for text in others if (found := _AGENT.match(text))} | sure
        places = self._places({int(found[2]) for found in sure.values() if not _by_type(found)}, every)
        for text, found in every.items():
            number = int(found[2])
            if _by_type(found):  # `-A type-relative`
                self.numbers[text] = number if found[1].lower() == "gpu" else None
            else:
                self.numbers[text] = places.get(number)

    def _places(self, sure: set[int], every: dict[str, re.Match[str]]) -> dict[int, int]:
        if not self.gpus:
            return {number: place for place, number in enumerate(sorted(sure))}
        # Up to ROCm 6.4 a bare number is the node; from 7.0 "Agent N" is the logical node, or with `-A absolute` the node.
        named = any(found[1] for found in every.values())
        keys = ("logical_node_id", "node_id") if named else ("node_id", "logical_node_id")
        tried = [self._by(key) for key in keys]
        return next((places for places in tried if places and sure <= set(places)), tried[0])

    def _by(self, key: str) -> dict[int, int]:
        return {
            int(gpu[key]): place for place, gpu in enumerate(self.gpus) if str(gpu.get(key, "")).strip().isdecimal()
        }

    def device(self, column: str) -> pl.Expr:
        known = {text: place for text, place in self.numbers.items() if place is not None}
        if not known:
            return pl.lit(None, pl.Int32)
        return pl.col(column).replace_strict(known, default=None, return_dtype=pl.Int32)


def _by_type(found: re.Match[str]) -> bool:
    return (found[1] or "").lower() in ("gpu", "cpu")


def gpus(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """The GPUs of an agent_info.csv, its numbers as numbers."""
    rows = frame.filter(pl.col("agent_type").str.strip_chars().str.to_uppercase().is_in(["GPU", "2"])).to_dicts()
    return [{key: _value(value) for key, value in row.items()} for row in rows]


def _value(text: str | None) -> Any:
    return int(text) if text and re.fullmatch(r"-?\d{1,20}", text) else text
