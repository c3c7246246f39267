"""The `rung_bench` fixture, in sessions of its own."""

import json
import subprocess
import sys

import pytest

import rung.timing.saved  # noqa: F401  a session in this process forgets what it imported, which numpy does not bear

pytest_plugins = ["pytester"]

TESTS = """
import time
def test_nap(rung_bench):
    found = rung_bench(lambda: time.sleep(SECONDS))
    assert found is None or found.median > 1e6
def test_named(rung_bench):
    for ms in (1, 2):
        rung_bench(lambda: time.sleep(ms / 1000), name=f"{ms} ms")
def test_nothing():
    pass
"""


@pytest.fixture
def session(pytester: pytest.Pytester):  # type: ignore[no-untyped-def]
    """Runs the tests above in a session of their own, the nap as long as it is told; in a process of their own, too,
    unless nothing is measured (`here`)."""

    def run(seconds: float, *arguments: str, here: bool = False) -> pytest.RunResult:
        pytester.makepyfile(test_naps=TESTS.replace("SECONDS", str(seconds)))
        plugin = () if _installed() else ("-p", "rung.pytest_plugin")
        start = pytester.runpytest_inprocess if here else pytester.runpytest_subprocess
        return start(*plugin, "-p", "no:cacheprovider", "--rung-time", "0.3", *arguments)

    return run


def _installed() -> bool:
    from importlib.metadata import entry_points

    return any(e.value == "rung.pytest_plugin" for e in entry_points(group="pytest11"))


def test_benchmarks_are_tabled_saved_and_compared(session, pytester: pytest.Pytester) -> None:  # type: ignore[no-untyped-def]
    first = session(0.002, "--rung-save", "base.json")
    first.assert_outcomes(passed=3)
    first.stdout.fnmatch_lines(
        ["*benchmarks*", "benchmark *median*", "test_naps.py::test_nap *ms*", "*1 ms]*", "saved: base.json"]
    )
    rows = json.loads((pytester.path / "base.json").read_text())["benchmarks"]
    assert [r["test"] for r in rows] == [
        "test_naps.py::test_nap", "test_naps.py::test_named [1 ms]", "test_naps.py::test_named [2 ms]",
    ]  # fmt: skip
    assert all(r["samples"] and r["environment"]["device"] for r in rows)

    # So slow a call has few samples in 0.3 s, beside other tests too few.
    slow = session(
        0.05,
        "--rung-time",
        "1.5",
        "--rung-compare",
        "base.json",
        "--rung-fail-if-slower",
        "90%",
        "test_naps.py::test_nap",
    )
    slow.assert_outcomes(failed=1)
    slow.stdout.fnmatch_lines(["*slower than in the saved run; the limit is 90.0%*", "not run this time: *test_named*"])


TWICE = """
import time
def test_two(rung_bench):
    rung_bench(lambda: time.sleep(FIRST))
    rung_bench(lambda: time.sleep(0.001))
"""


def test_two_benchmarks_of_one_test_are_told_apart_and_what_differs_around_them_is_said(  # type: ignore[no-untyped-def]
    session, pytester: pytest.Pytester
) -> None:
    pytester.makepyfile(test_twice=TWICE.replace("FIRST", "0.001"))
    session(0.001, "--rung-save", "base.json", "test_twice.py").assert_outcomes(passed=1)
    saved = json.loads((pytester.path / "base.json").read_text())
    assert [r["test"] for r in saved["benchmarks"]] == ["test_twice.py::test_two", "test_twice.py::test_two #2"]
    for row in saved["benchmarks"]:
        row["environment"]["python"] = "2.7"
    (pytester.path / "base.json").write_text(json.dumps(saved))
    pytester.makepyfile(test_twice=TWICE.replace("FIRST", "0.02"))
    slow = session(0.001, "--rung-compare", "base.json", "--rung-fail-if-slower", "90%", "test_twice.py")
    slow.assert_outcomes(failed=1)
    slow.stdout.fnmatch_lines(["differs in python: 2.7 and *", "not run this time: *test_two #2"])


def test_skipped_benchmarks_are_called_once_and_wrong_use_is_told(session, pytester: pytest.Pytester) -> None:  # type: ignore[no-untyped-def]
    done = session(0.002, "--rung-skip")
    done.assert_outcomes(passed=3)
    done.stdout.no_fnmatch_line("*= benchmarks =*")
    assert session(0.002, "--rung-fail-if-slower", "5%", here=True).ret == 4
    for none in (("--rung-skip",), ("-n", "2", "-p", "xdist")):
        nothing = session(0.002, "--rung-save", "base.json", *none, here=True)
        assert nothing.ret == 4
        nothing.stderr.fnmatch_lines(["*--rung-save needs measurements*"])
    missing = session(0.002, "--rung-compare", "none.json", here=True)
    assert missing.ret == 4
    missing.stderr.fnmatch_lines(["*none.json could not be read*"])


def test_unused_the_plugin_imports_nothing_of_weight() -> None:
    code = (
        "import sys, pytest, rung.pytest_plugin\n"
        "assert not {'numpy', 'scipy', 'torch', 'polars', 'rung.api'} & set(sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
