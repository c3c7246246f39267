"""What a file holds and the table does not: counted by reason, with its time where it has any."""

from __future__ import annotations

from collections import Counter


class Unread(Counter[str]):
    """Events that are not in the table, by reason. ns: the sum of their durations, where they have readable ones."""

    def __init__(self, known: Counter[str] | dict[str, int] | None = None) -> None:
        super().__init__(known or {})
        self.ns: Counter[str] = Counter(known.ns if isinstance(known, Unread) else {})

    def count(self, reason: str, number: int = 1, ns: int | None = None) -> None:
        """Adds events; nothing where the number is 0."""
        if number:
            self[reason] += int(number)
        if ns:
            self.ns[reason] += int(ns)

    def more(self, other: dict[str, int], ns: dict[str, int]) -> None:
        """Adds those of another reading."""
        self.update(other)
        self.ns.update(ns)
