"""Rung's change points beside those of ruptures, on histories whose changes are known.

    pip install ruptures
    python benchmarks/measurement/change_points.py

ruptures takes no uncertainties and needs a penalty. It gets the usual one for a change in the mean, 2 * variance * log(n), with the
variance estimated from the differences of neighbours; its `min_size` is that of Rung.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import ruptures

from rung.measure.change_points import FEWEST, change_points

HISTORIES = 200
Found = Callable[[np.ndarray, np.ndarray], list[int]]


def rung(x: np.ndarray, errors: np.ndarray) -> list[int]:
    return [change.at for change in change_points(x, errors)]


def of_ruptures(search: type) -> Found:
    def found(x: np.ndarray, errors: np.ndarray) -> list[int]:
        variance = float((np.diff(x) ** 2).mean()) / 2
        penalty = 2 * variance * math.log(len(x))
        return search(model="l2", min_size=FEWEST, jump=1).fit(x).predict(pen=penalty)[:-1]

    return found


METHODS: dict[str, Found] = {
    "rung": rung,
    "ruptures Binseg": of_ruptures(ruptures.Binseg),
    "ruptures Pelt": of_ruptures(ruptures.Pelt),
}


def history(generator: np.random.Generator, n: int, levels: list[tuple[int, float]], uneven: bool) -> tuple:
    """n values with standard errors of 1, or from 0.3 to 3; levels: (first value, by how much the level is higher from there on)."""
    errors = generator.uniform(0.3, 3, n) if uneven else np.ones(n)
    x = generator.normal(size=n) * errors
    for at, shift in levels:
        x[at:] += shift
    return x, errors


def main() -> None:
    cases: list[tuple[str, int, list[tuple[int, float]], bool]] = [
        ("none, 12 values", 12, [], False),
        ("none, 60 values", 60, [], False),
        ("none, 60 values, uneven errors", 60, [], True),
        ("+3 at 8 of 12", 12, [(8, 3)], False),
        ("+3 at 40 of 60", 60, [(40, 3)], False),
        ("+2 at 40 of 60, uneven errors", 60, [(40, 2)], True),
        ("+3 at 20, -2 at 40 of 60", 60, [(20, 3), (40, -2)], False),
    ]
    print("| changes | " + " | ".join(f"{name}: all within 1" for name in METHODS) + " | " + " | ".join(f"{name}: others" for name in METHODS) + " |")  # fmt: skip
    print("|---" * (1 + 2 * len(METHODS)) + "|")
    for name, n, levels, uneven in cases:
        generator = np.random.default_rng(0)
        histories = [history(generator, n, levels, uneven) for _ in range(HISTORIES)]
        right, wrong = [], []
        for method in METHODS.values():
            found = [method(*one) for one in histories]
            near = [all(any(abs(at - k) <= 1 for k in one) for at, _ in levels) for one in found]
            other = [any(all(abs(at - k) > 1 for at, _ in levels) for k in one) for one in found]
            right.append(f"{sum(near) / HISTORIES:.0%}" if levels else "")
            wrong.append(f"{sum(other) / HISTORIES:.0%}")
        print(f"| {' | '.join([name, *right, *wrong])} |")


if __name__ == "__main__":
    main()
