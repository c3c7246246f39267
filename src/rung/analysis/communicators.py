"""Which kernels and operators communicate, told by their names. The names are data: collectives.toml."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from rung.toml import shipped

# In words, for `detail` of the classifier.
_WORDS = {"send_recv": "send and receive", "dispatch": "dispatch to experts", "combine": "combine from experts"}


class Communicator(NamedTuple):
    """collective: which, "" where the name does not say; algorithm, fused: as in collectives.toml; ranks: how many, by the name."""

    collective: str
    algorithm: str = ""
    fused: str = ""
    ranks: int | None = None

    @property
    def detail(self) -> str:
        """ "all-reduce", "all-reduce with norm" """
        words = _WORDS.get(self.collective, self.collective.replace("_", "-"))
        return f"{words} with {self.fused}" if self.fused else words


@lru_cache(maxsize=2)
def _table(table: str) -> list[tuple[re.Pattern[str], dict[str, Any]]]:
    return [(re.compile("|".join(row["patterns"])), row) for row in shipped("analysis/collectives.toml")[table]]


@lru_cache(maxsize=65536)
def communicating_kernel(name: str) -> Communicator | None:
    """What a GPU kernel of this name communicates; None where it does not."""
    return _communicator("kernel", name)


@lru_cache(maxsize=65536)
def communicating_op(name: str) -> Communicator | None:
    """What an operator of the host of this name communicates; None where it does not."""
    return _communicator("op", name)


def _communicator(table: str, name: str) -> Communicator | None:
    row = next((row for pattern, row in _table(table) if pattern.search(name)), None)
    if row is None:
        return None
    found = re.search(row["ranks"], name) if "ranks" in row else None
    ranks = next((int(number) for number in found.groups() if number), None) if found else None
    return Communicator(row["collective"], row.get("algorithm", ""), row.get("fused", ""), ranks)
