"""Rungs made up for a test, and climbs that have come so far."""

from pathlib import Path
from typing import Any

from rung.ladder.climb.state import Request, State
from rung.ladder.rungs import Rung
from rung.ladder.rungs.proofs import told
from rung.ladder.rungs.rung import Inapplicable
from rung.runs import Run

STEP = 10e6


def rung(
    name: str, left: float, *, core: bool = False, prepares: float = 0.0, no: str = "", alone: bool = False
) -> Rung:
    """A rung that leaves this share of the matrix products' time; alone: it cannot be one of several."""
    return Rung(
        name, 2, name, "exact", name, lambda c: Inapplicable(no) if no else None, lambda c: {"gemm": (left, left)},
        lambda p: p, "it shows", told(name, True, "x"), core=core, prepares=prepares,
        first=(("A", "1"),) if alone else (),
    )  # fmt: skip


def state(
    tmp_path: Path,
    *,
    budget: float | None = None,
    named: bool = False,
    floor: float | None = None,
    loading: float = 18.0,
) -> State:
    run = Run.create(tmp_path, "x", tmp_path / "run")
    made = State(run, Request("x", rungs=("a",) if named else None, budget=budget), lambda event, data: None)
    made.facts = {"gpu": False, "mode": "infer", "rates": {}}
    made.breakdown = {"parts": {"gemm": 0.5 * STEP, "pointwise": 0.5 * STEP}}
    made.baseline = {
        "time": {"value": STEP}, "first_run_seconds": 1.0, "loading_seconds": loading, "memory": {"allocated": 1 << 30},
        "floor": floor and {"seconds": floor},
    }  # fmt: skip
    return made


def tried(made: State, name: str, verdict: str, against: str = "baseline", **more: Any) -> None:
    number = len(made.attempts) + 1
    made.add({"number": number, "rung": name, "verdict": verdict, "against": against, "log": "x", **more})
