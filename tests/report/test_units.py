import ast
import math
import re
from pathlib import Path

import pytest

from rung.records.measured import Ratio
from rung.report import units


@pytest.mark.parametrize(
    ("value", "significant", "text"),
    [(20_000_000, 3, "20 ms"), (100_000_000, 1, "100 ms"), (150_000_000, 2, "150 ms"), (1_250_000, 2, "1.2 ms")],
)
def test_a_round_duration_has_no_power_of_ten(value: float, significant: int, text: str) -> None:
    assert units.round_duration(value, significant) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2_750_000, "2.75 ms"),
        (26_600_000, "26.6 ms"),
        (950, "950 ns"),
        (12_345, "12.3 µs"),
        (999_600, "1.00 ms"),
        (999_400, "999 µs"),
        (9_999, "10.0 µs"),
        (123e9, "123 s"),
        (5000e9, "5000 s"),
        (0, "0 ns"),
        (-2_750_000, "-2.75 ms"),
        (0.25, "0.250 ns"),
    ],
)
def test_a_duration_has_three_significant_digits(value: float, text: str) -> None:
    assert units.duration(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1.2 * 2**30, "1.2 GiB"),
        (2**30 - 1, "1.0 GiB"),
        (80 * 2**30, "80.0 GiB"),
    ],
)
def test_a_size_is_in_binary_units(value: float, text: str) -> None:
    assert units.data_size(value) == text


def test_two_sizes_say_a_shared_unit_once() -> None:
    assert units.data_sizes(3.1 * 2**30, 1.2 * 2**30) == "3.1 → 1.2 GiB"
    assert units.data_sizes(3.1 * 2**30, 512 * 2**20) == "3.1 GiB → 512 MiB"
    assert units.data_sizes(None, 1) == ""


def test_a_ratio_carries_its_interval() -> None:
    assert units.interval(Ratio(value=1.4234, low=1.381, high=1.469)) == "1.42× (1.38–1.47)"
    assert units.interval(Ratio(value=12.34, low=None, high=13.0)) == "12.3×"
    assert units.interval(None) == units.NONE


@pytest.mark.parametrize(("value", "text"), [(0.42, "42%"), (0.985, "98.5%"), (0.004, "0.4%"), (1, "100%")])
def test_a_share_is_shown_in_percent(value: float, text: str) -> None:
    assert units.percent(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (31_500_000, "31.5 M"),
        (8, "8"),
        (2048.0, "2048"),
        (420.5, "420"),
        (3.9e11, "390 G"),
        (2 / 3, "0.667"),
        (0.04, "0.0400"),
        (0.1 * 3 * 10, "3"),
    ],
)
def test_a_count_is_short(value: float, text: str) -> None:
    assert units.count(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.85, "850 ms"), (34.2, "34 s"), (725, "12 min 5 s"), (7380, "2 h 3 min")]
)
def test_a_wait_is_told_as_people_tell_it(value: float, text: str) -> None:
    assert units.seconds(value) == text


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, "12", True])
def test_what_is_no_finite_number_is_a_dash(value: object) -> None:
    shown = {
        f(value) for f in (units.duration, units.data_size, units.ratio, units.percent, units.count, units.seconds)
    }
    assert shown == {units.NONE}


def test_control_characters_do_not_reach_the_reader() -> None:
    assert units.clean("a\x1b[31mb\x00\n") == "a\ufffd[31mb\ufffd\n"


def test_a_number_is_not_parted_from_its_unit():
    assert units.wrapped("it waits 12 % of 3.4 ms a step", 13) == ["it waits 12 %", "of 3.4 ms a", "step"]
    assert units.wrapped("it takes 3.4 ms", 12, "- ", "  ") == ["- it takes", "  3.4 ms"]
    assert units.wrapped("of 2 steps", 6) == ["of 2", "steps"]  # no unit
    assert units.wrapped("it took 2 min 59 s", 14) == ["it took", "2 min 59 s"]
    assert units.wrapped("it took 2 h 3 min", 14) == ["it took", "2 h 3 min"]
    assert units.wrapped("", 10) == []


ROOMS = ("analysis", "cli", "engine", "hardware", "ladder", "launch", "measure", "profilers", "recipes", "report", "rungs", "timing", "verify", "watching")  # fmt: skip


@pytest.mark.parametrize("room", ROOMS)
def test_no_space_stands_before_a_percent_sign(room: str) -> None:
    """In a string that may be printed; a docstring is none, and `%` between spaces is an operator of a template."""
    for path in sorted((Path(units.__file__).parents[1] / room).rglob("*.py")):
        tree = ast.parse(path.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                text = node.value
            else:
                continue
            assert not re.search(r"\d %", text), f"{path}:{node.lineno}: {text}"
