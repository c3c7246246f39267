"""What a CI job is told of a comparison."""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rung.records.compare import ComparedSide, Comparison
from rung.records.measured import Compared, Device, Environment, Interval, Ratio
from rung.report.ci import comment, junit
from rung.timing.compare import UNITS, failure

CI = Path(__file__).parents[2] / "examples" / "ci"


def result(verdict: str = "slower", **changed: Any) -> Comparison:
    """Of B, which takes 10 % longer than A."""
    low, high = (0.7, 1.2) if verdict == "inconclusive" else (0.9, 0.92)
    compared = Compared(
        answer="undecided" if verdict == "inconclusive" else verdict, speedup=Ratio(value=1 / 1.1, low=low, high=high), restarts=5,
        confidence=0.995, margin=0.01, visible=0.02, final=True, cut=False,
    )  # fmt: skip
    made = Comparison(
        units=UNITS, margin=0.01, results_compared=True, verdict=verdict, seconds=12.5, a=side(), b=side("compile"), comparison=compared,
        times={"a": Interval(value=1e6, low=9.9e5, high=1.01e6), "b": Interval(value=1.1e6, low=1.0e6, high=1.2e6)},
        memory={"a": {"allocated": 1 << 30}, "b": {"allocated": 2 << 30}},
        environment=Environment(device=Device(name="AMD Instinct MI300X", memory=192 << 30), torch="2.9.0"),
    )  # fmt: skip
    return replace(made, **changed)


def side(*rungs: str, target: str = "work.py:make") -> ComparedSide:
    return ComparedSide(target=target, options={}, rungs=list(rungs), env={})


def test_a_comment_begins_with_the_verdict_and_shows_the_sides() -> None:
    lines = comment(result(), "B is 10.0% slower than A, and 2.0% is the limit.").splitlines()
    assert lines[0].startswith("**B is slower than A: 0.91")
    assert "❌ The job fails: B is 10.0% slower" in lines[2]
    assert "| B | work.py:make with compile | 1.10 ms (1.00 ms – 1.20 ms) | 2.0 GiB |" in lines
    assert lines[-1] == "<sub>AMD Instinct MI300X · torch 2.9.0</sub>"


def test_a_comment_says_that_results_were_not_compared() -> None:
    assert "⚠️ results not compared" in comment(result(results_compared=False))
    assert "⚠️" not in comment(result())


@pytest.mark.parametrize("name", ["<img src=x>", "a | b", "@everyone", "[x](javascript:1)", "`x`", "# head\n# more"])
def test_a_strangers_name_is_text(name: str) -> None:
    row = next(line for line in comment(result(a=side(target=name))).splitlines() if line.startswith("| A |"))
    unescaped = row.replace("\\\\", "")
    assert not any(unescaped.count(mark) != unescaped.count(f"\\{mark}") for mark in "<@[`#")
    assert unescaped.count("|") - unescaped.count("\\|") == 5


@pytest.mark.parametrize(
    ("verdict", "why", "child"),
    [("slower", "B is slower", "failure"), ("slower", "", ""), ("inconclusive", "", "skipped"), ("inconclusive", "x", "failure"), ("faster", "", "")],
)  # fmt: skip
def test_a_report_has_one_case_that_passed_failed_or_says_that_nothing_is_known(
    verdict: str, why: str, child: str
) -> None:
    root = ET.fromstring(junit(result(verdict), why))
    (suite,) = root
    (case,) = suite
    assert [found.tag for found in case if found.tag != "system-out"] == ([child] if child else [])
    assert (suite.get("failures"), suite.get("skipped")) == (str(int(child == "failure")), str(int(child == "skipped")))
    assert case.get("name") == "work.py:make with compile against work.py:make"
    base = replace(result(verdict), a=replace(side(), revision="main"))
    assert 'name="work.py:make with compile against work.py:make at main"' in junit(base, why)
    assert float(str(suite.get("time"))) == 12.5


@pytest.mark.parametrize(
    ("verdict", "limit", "unclear", "fails"),
    [
        ("slower", 0.02, False, True), ("slower", 0.2, False, False), ("slower", None, False, False), ("inconclusive", 0.02, False, False),
        ("inconclusive", 0.02, True, True), ("faster", 0.02, True, False), ("not equal", None, False, True),
    ],
)  # fmt: skip
def test_what_fails_a_job(verdict: str, limit: float | None, unclear: bool, fails: bool) -> None:
    said = failure(result(verdict), limit, unclear)
    assert bool(said) == fails
    assert said == "" or said.endswith(".")


def test_the_examples_name_options_that_there_are() -> None:
    from rung.cli.main import _parser

    known = {
        flag for action in _parser("compare")._actions[-1].choices["compare"]._actions for flag in action.option_strings
    }  # type: ignore[index, union-attr, call-overload]
    for path in CI.glob("*.yml"):
        text = path.read_text()
        words = {
            word for line in text.splitlines() if "gh pr" not in line for word in line.split() if word.startswith("--")
        }
        assert words
        assert words <= known, path
