"""Rungs made up for a test, and climbs that have come so far."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attempt_records import attempt

from rung.ladder.climb.state import Request, State
from rung.records.analyze import Breakdown
from rung.records.climb import Baseline, Floor
from rung.records.measured import Figure
from rung.records.record import plain, record_of
from rung.records.workload import Facts
from rung.rungs import Rung
from rung.rungs.proofs import reported
from rung.rungs.requirements import unless
from rung.runs import Run
from rung.side import Side
from rung.timing.tasks import Task

STEP = 10e6
GIB = 1 << 30
# A climb's manifest, as far as the tests go.
MANIFEST: dict[str, Any] = {
    "schema": 1, "status": "running", "why": "", "target": "x", "numerics": "exact", "request": {},
    "environment": {"device": {"name": "a chip", "arch": "sm90", "memory": 80 * GIB}, "torch": "2.11.0"},
    "workload": {"name": "x", "mode": "infer", "model": "Linear with 72 parameters in 2 tensors"},
    "facts": {
        "gpu": True, "mode": "infer", "rates": {}, "matches": {}, "skipped": [], "graph_breaks": [], "without_gradient": [],
    },
}  # fmt: skip
PASSED: dict[str, Any] = {
    "passed": True, "cases": 1, "checks": 1, "precisions": ["exact"], "reference": "float64", "failures": [], "worst": None,
}  # fmt: skip


def rung(
    name: str, left: float, *, core: bool = False, prepares: float = 0.0, no: str = "", alone: bool = False
) -> Rung:
    """A rung that leaves this share of the matrix products' time; alone: it cannot be one of several."""
    refused = (unless("what is missing", lambda c: False, no),) if no else ()
    return Rung(
        name=name, level=2, title=name, contract="exact", changes=name, requires=refused, remaining=lambda c: {"gemm": (left, left)},
        change=lambda p: replace(p, switches=(*p.switches, (name, "1"))), effect="it shows", proof=reported(name, True, "x"), always_tried=core, prepare_seconds=prepares,
        tuning_env=(("A", "1"),) if alone else (),
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
    made = State(run, Request("x", rungs=("a",) if named else None, budget=budget), lambda event: None)
    know(made, gpu=False, mode="infer", rates={})
    made.breakdown = Breakdown(parts={"gemm": 0.5 * STEP, "pointwise": 0.5 * STEP})
    made.measured = Baseline(
        time=Figure(value=STEP), first_run_seconds=1.0, loading_seconds=loading, memory={"allocated": 1 << 30}, breakdown=None,
        floor=Floor(seconds=floor, precision="fp32") if floor else None,
    )  # fmt: skip
    return made


def leave(made: State, seconds: float) -> State:
    """So many seconds of the climb's budget are left, however long the test takes."""
    made.request = replace(made.request, budget=seconds)
    made.left = lambda: seconds - made.reserved  # type: ignore[method-assign]
    return made


def on_a_gpu(made: State, memory: dict[str, int] | None = None) -> State:
    """The same climb on a GPU of 80 GiB. memory: the peak of the untouched workload."""
    made.run.write("manifest.json", MANIFEST)
    know(made, gpu=True)
    made.baseline.memory = memory or {"allocated": GIB}
    return made


def tried(made: State, name: str, verdict: str, against: str = "baseline", **more: Any) -> None:
    """more: fields of the attempt, as plain values."""
    made.add(attempt(rung=name, verdict=verdict, against=against, number=len(made.attempts) + 1, log="x", **more))


def know(made: State, **fields: Any) -> None:
    """These facts of the workload are known, too, as plain values."""
    made.known = record_of(Facts, {**(plain(made.known) if made.known else {}), **fields})


def warm(memory: dict[str, int] | None = None, **more: Any) -> dict[str, Any]:
    """What a worker answers once it is warm."""
    return {"first_run_seconds": 1.0, "runs": 3, "steady": True, "memory": memory or {}, **more}


def answered(name: str, side: Side, **answers: Any) -> Task:
    """A task whose worker has answered all that it was asked."""
    task = Task(name, side, [])
    task.worker = SimpleNamespace(kill=lambda: None, hosts=[], alive=lambda: True)  # type: ignore[assignment]
    task.answers, task.took = answers, {"open": 0.5, **dict.fromkeys(answers, 1.0)}
    return task


class Added:
    """A pool with room that starts nothing, and only writes down what was added."""

    memory = float("inf")

    elsewhere: tuple[object, ...] = ()

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def add(self, task: Task, *, first: bool = False) -> Task:
        self.tasks.insert(0 if first else len(self.tasks), task)
        return task

    def held(self, place: int = 0, waiting: Sequence[Task] = ()) -> float:
        return sum(task.memory for task in waiting)

    def idle(self) -> int:
        return 4

    def waiting(self, *, low_priority: bool = True) -> list[str]:
        return []

    @property
    def names(self) -> list[str]:
        return [task.name for task in self.tasks if not task.ended]
