"""A plain function under the clock, with a GPU that is a stand-in."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rung.errors import UsageError
from rung.hardware.device import Device
from rung.measure.clock import Block
from rung.timing.compare_here import _on_one_timer
from rung.timing.function import Function
from rung.timing.timed import loops_in_step

GPU = Device("cuda", 0, "cuda:0", "a GPU", "sm_90", 1 << 30, 1)


class Recorded:
    """A timer that took long to make."""

    def block(self, count: int) -> Block:
        return Block([1000.0] * count, 0.0, count)


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Every timer that is chosen, on a machine that has a GPU."""
    found: list[tuple[str, bool]] = []

    def choose(step: Any, device: Device, wanted: str, cold: bool, known: float) -> tuple[Recorded, dict[str, Any]]:
        found.append((wanted, cold))
        return Recorded(), {"name": "graph", "cold": None, "sample_ns": 5000}

    monkeypatch.setattr("rung.timing.timed.choose", choose)
    monkeypatch.setattr("rung.timing.function.pick", lambda wanted: GPU)
    for module in ("function", "timed"):
        monkeypatch.setattr(f"rung.timing.{module}.synchronize", lambda device: None)
    for name in ("function.environment", "timed.peak_memory", "timed.identity"):
        monkeypatch.setattr(f"rung.timing.{name}", lambda device: {})
    return found


def warmed() -> Function:
    timed = Function(lambda: None, "nothing", "cuda")
    timed.open()
    timed.warm(1.0)
    return timed


def test_a_measurement_makes_the_timer_that_was_asked_for_and_no_other(chosen: list[tuple[str, bool]]) -> None:
    timed = warmed()
    assert chosen == []  # what warms up does not know yet how it will be timed
    assert timed.timer("graph", True)["sample_ns"] == 5000
    assert timed.block(3)["samples"] == [1000.0] * 3
    assert chosen == [("graph", True)]


def test_a_comparison_makes_one_timer_for_all_blocks_of_a_side(chosen: list[tuple[str, bool]]) -> None:
    sides = [warmed(), warmed()]
    assert _on_one_timer(sides) == [5000, 5000]
    for timed in sides:
        timed.block(3)
    assert chosen == [("auto", False)] * 2


@pytest.mark.parametrize(
    ("own", "asked"),
    [
        (["graph", "graph"], []),
        (["graph", "events"], ["events"]),
        (["graph", "batch"], ["batch"]),
        (["batch", "events", "graph"], ["events", "events"]),
    ],
)
def test_functions_that_are_compared_are_timed_in_one_way(
    own: list[str], asked: list[str], chosen: list[tuple[str, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two functions as fast, one of 110 us and one of 90 us from idle to idle, the second was timed in a graph, without its launches."""
    left = list(own)

    def choose(step: Any, device: Device, wanted: str, cold: bool, known: float) -> tuple[Recorded, dict[str, Any]]:
        chosen.append((wanted, cold))
        name = left.pop(0) if wanted == "auto" else wanted
        return Recorded(), {"name": name, "cold": None, "sample_ns": 100_000 if name == "events" else 5000}

    monkeypatch.setattr("rung.timing.timed.choose", choose)
    found = _on_one_timer([warmed() for _ in own])
    assert len({*found}) == 1
    assert [wanted for wanted, _ in chosen] == ["auto"] * len(own) + asked


def generator() -> Iterator[int]:
    yield from range(1000)


async def coroutine() -> int:
    return 3


async def asynchronous() -> AsyncIterator[int]:
    yield 3


class Later:
    def __await__(self) -> Iterator[None]:
        return iter(())


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (generator, "generator"),
        (coroutine, "coroutine"),
        (partial(coroutine), "coroutine"),
        (asynchronous, "asynchronous generator"),
        (Later, "Later"),
        (lambda: map(abs, range(9)), "map"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_what_has_done_nothing_yet_when_it_returns_is_refused(call: Callable[[], object], kind: str) -> None:
    with pytest.raises(UsageError, match=f"mine returns an? {kind}, which has done nothing yet"):
        Function(call, "mine").open()


def test_an_iterator_over_what_was_made_is_a_result() -> None:
    assert Function(lambda: iter(sorted(range(9))), "mine").open()["mode"] == "call"


def test_a_function_that_returns_a_function_is_refused_and_not_timed() -> None:
    with pytest.raises(UsageError, match="mine returns a function, which can be called itself and was not"):
        Function(lambda: lambda: 3, "mine").open()


def test_a_target_may_make_its_inputs_once_and_return_what_is_timed(tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text(
        "made, called = [], []\n"
        "def doubling(n: int = 2):\n    made.append(n)\n    return lambda: called.append(n)\n"
        "def needs(n: int = 2):\n    return lambda x: x\n"
    )
    function = Function()
    function.open(f"{tmp_path / 'ops.py'}:doubling", {"n": "5"})
    made, called = (function._call.__globals__[name] for name in ("made", "called"))  # type: ignore[attr-defined]
    opening = len(called)  # more than one call where a GPU was used in this process before
    for _ in range(3):
        function.call()
    assert (made, called) == ([5], [5] * (opening + 3))
    with pytest.raises(UsageError, match="needs returns a function, which can be called itself"):
        Function().open(f"{tmp_path / 'ops.py'}:needs")


def test_a_function_whose_first_calls_are_slow_is_called_as_often_a_sample_as_one_that_is_always_fast() -> None:
    def loops(slow_calls: int) -> int:
        called = 0

        def call() -> None:
            nonlocal called
            called += 1
            if called <= slow_calls:
                time.sleep(0.001)

        timed = Function(call, "mine", "cpu")
        timed.open()
        said = timed.warm(1.0)["loops"]
        assert said == timed.loops
        return int(said)

    assert min(loops(slow_calls=0), loops(slow_calls=8)) > 10


def test_calls_are_counted_again_where_a_sample_is_too_short_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """As beside other work, which makes every call by itself look slow."""
    timed, slow = Function(lambda: None, "mine", "cpu"), iter([1_000_000] * 8)
    timed.open()
    monkeypatch.setattr(timed, "_clocked", lambda: next(slow, 3_000 if timed.loops == 1 else 150))
    assert timed.warm(0.1)["loops"] == round(20_000 / 150)


def test_samples_of_sides_of_about_one_speed_are_as_many_calls() -> None:
    assert loops_in_step([100, 150], [200, 130]) == 200
    assert loops_in_step([100, 300], [200, 70]) == 0
    assert loops_in_step([100, 150], [200, 0]) == 0  # another revision's worker does not say it
