"""How long the blocks of a restart take, on a machine whose clock is made."""

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rung.measure import Restart
from rung.timing import worker_group
from rung.timing.ab_run import ABRun
from rung.timing.worker_group import FEWEST_ROUNDS, Asked, WorkerGroup

MS = 1e6


def restart(monkeypatch: pytest.MonkeyPatch, estimated: float, step: float) -> tuple[int, list[int], float]:
    """Rounds, steps of each block and seconds of a restart of two sides on a CPU, whose steps were estimated to take so many ms, and
    take so many now."""
    found, counts, seconds = timed(monkeypatch, estimated, [step])
    return len(found.rounds), counts, seconds


def timed(
    monkeypatch: pytest.MonkeyPatch, estimated: float, steps: Sequence[float], cores: dict[str, float] | None = None
) -> tuple[Restart, list[int], float]:
    """The restart itself. steps: of the blocks, in turn; cores: what the threads of a block got of them."""
    of_blocks = itertools.cycle(steps)
    now, counts = [0.0], []
    monkeypatch.setattr(worker_group, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def answer(asked: Asked) -> Any:
        if asked.method == "estimate":
            return estimated * MS
        if asked.method == "memory":
            return {}
        count, step = asked.arguments["count"], next(of_blocks)
        counts.append(count)
        now[0] += count * step / 1e3
        return {"samples": [step * MS] * count, "outside": 0.0, "calls": count, "compiled": 0, "cores": cores}

    begun = object.__new__(WorkerGroup)
    side = SimpleNamespace(environment=SimpleNamespace(device=SimpleNamespace(kind="cpu")))
    warm = SimpleNamespace(steady=True, original=None, doubts=[], loops=0, memory={})
    begun.workers = dict.fromkeys(("best", "candidate"))
    begun.facts, begun.state = dict.fromkeys(begun.workers, side), dict.fromkeys(begun.workers, warm)
    timing = begun.timing(ABRun())
    asked = next(timing)
    while True:
        try:
            asked = timing.send(answer(asked))
        except StopIteration as end:
            return end.value, counts, now[0]


def test_a_usual_restart_has_as_many_rounds_as_its_seconds_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, counts, seconds = restart(monkeypatch, 10.0, 10.0)
    assert rounds == 7
    assert {*counts} == {15}
    assert seconds == pytest.approx(4 * 8 * 0.15)


def test_slow_steps_are_timed_in_the_fewest_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, counts, _ = restart(monkeypatch, 900.0, 900.0)
    assert (rounds, {*counts}) == (FEWEST_ROUNDS, {1})


def test_on_a_machine_that_has_become_much_slower_blocks_get_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A climb of 90 s took 224 s so: steps of 5 ms took 200 to 500 ms, in ten rounds of blocks of 30."""
    rounds, counts, seconds = restart(monkeypatch, 5.0, 400.0)
    assert counts[:2] == [30, 30]
    assert {*counts[4:]} == {1}
    assert rounds >= FEWEST_ROUNDS
    assert seconds < 40


def test_a_machine_that_is_a_little_slower_is_timed_as_it_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, counts, _ = restart(monkeypatch, 10.0, 20.0)
    assert (rounds, {*counts}) == (7, {15})


@pytest.mark.parametrize(("second", "asked"), [("graph", []), ("events", ["A"]), ("batch", ["A"])])
def test_functions_on_a_gpu_are_timed_in_one_way(second: str, asked: list[str]) -> None:
    begun = object.__new__(WorkerGroup)
    device = SimpleNamespace(kind="cuda")
    side = SimpleNamespace(environment=SimpleNamespace(device=device), mode="call")
    warm = SimpleNamespace(steady=True, original=None, doubts=[], loops=1, memory={})
    begun.workers = dict.fromkeys("AB")
    begun.facts, begun.state = dict.fromkeys(begun.workers, side), dict.fromkeys(begun.workers, warm)
    timing = begun.timing(ABRun())
    chosen: list[tuple[str, str]] = []
    question = next(timing)
    while question.method == "timer":
        wanted = question.arguments["wanted"]
        chosen.append((question.side, wanted))
        own = {"A": "graph", "B": second}[question.side] if wanted == "auto" else wanted
        question = timing.send({"name": own, "sample_ns": 5e4})
    assert chosen == [("A", "auto"), ("B", "auto"), *((side, second) for side in asked)]
    assert (question.method, question.arguments) == ("block", {"count": 50})


def test_on_busy_cores_a_restart_has_the_shortest_step_of_each_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a small network on two cores that two other processes used, the steps took 0.06 ms or 36 ms, many in a row."""
    busy, _, _ = timed(monkeypatch, 1.0, [36.0, 36.0, 36.0, 36.0, 0.06], {"ran": 30 * MS, "waited": 70 * MS})
    assert busy.shortest == (0.06 * MS, 0.06 * MS)
    calm, _, _ = timed(monkeypatch, 1.0, [36.0, 0.06], {"ran": 95 * MS, "waited": 5 * MS})
    assert calm.shortest == ()
    unknown, _, _ = timed(monkeypatch, 1.0, [36.0, 0.06])  # as on a GPU
    assert unknown.shortest == ()
