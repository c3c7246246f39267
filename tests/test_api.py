"""`rung.bench` and `rung.compare` from Python: on callables, on functions in fresh processes, and used wrongly."""

import itertools
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import timed_functions
import torch

import rung
from rung.errors import UsageError, WorkloadError

HERE = Path(timed_functions.__file__)
AT_HAND: Any = rung.Workload("mine", model=lambda: None, inputs=lambda seed: seed)


NET = torch.nn.Linear(8, 8)


def test_a_callable_is_measured_and_prints_as_the_command_does() -> None:
    found = rung.bench(lambda: time.sleep(0.002), name="a nap", seconds=1)
    assert 2e6 <= found.median < 100e6
    assert found.interval.low <= found.median <= found.interval.high
    assert len(found.samples) >= 10
    assert str(found).startswith("a nap, one call, on ")
    assert "median step" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["workload"] == "a nap"
    assert found["measured"]
    assert pl.DataFrame(found.rows()).columns == ["workload", "step", "ns"]
    assert "a nap" in repr(found)


def test_a_call_shorter_than_the_clock_can_see_is_timed_in_batches() -> None:
    calls = 0

    def short() -> None:
        nonlocal calls
        calls += 1

    begin = time.perf_counter_ns()
    found = rung.bench(short, seconds=0.5)
    elapsed = time.perf_counter_ns() - begin
    assert calls > 2 * len(found.samples)  # several to a sample
    # A sample is the time of one call: all that were made together cannot have lasted longer than all of it did.
    batch = (calls - found["warm_up_runs"]) // len(found.samples)
    assert 0 < batch * sum(found.samples) < elapsed


def test_a_very_slow_call_is_made_a_few_times_and_not_said_to_drift() -> None:
    calls = 0

    def slow() -> None:
        nonlocal calls
        calls += 1
        time.sleep(0.6)

    found = rung.bench(slow, seconds=0.1)
    assert calls <= 6
    assert "only 1 sample: too few to tell whether it was warm; raise --time." in found.notes
    assert "never" not in str(found)


def test_what_a_callable_raises_is_raised_as_it_is() -> None:
    def broken() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        rung.bench(broken)


def test_two_callables_are_compared_and_the_limits_of_one_process_are_said() -> None:
    found = rung.compare(timed_functions.long, timed_functions.longer, seconds=100)
    assert found.verdict == "slower"
    assert found.speedup is not None
    assert found.speedup.high < 1
    assert found["unit"] == "round"
    assert found["units"]["times"] == "ns"
    assert any("one process" in note for note in found.notes)
    text = str(found)
    assert "A  long" in text
    assert "B is slower than A" in text
    assert "rounds in one process" in text
    frame = pl.DataFrame(found.rows())
    assert set(frame["side"]) == {"A", "B"}
    json.dumps(found.to_dict())


def test_sides_of_unlike_speed_are_sampled_alike() -> None:
    """The fastest of a block is looked at: of more calls it would be faster by chance alone."""

    def spin(ns: int) -> Callable[[], None]:
        def call() -> None:
            until = time.perf_counter_ns() + ns
            while time.perf_counter_ns() < until:
                pass

        return call

    found = rung.compare(spin(60_000), spin(100_000), seconds=0.5)
    assert len({len(samples) for samples in found["restarts"][0].values()}) == 1


@pytest.fixture
def nap(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sleeps by a clock of its own, which is all that this process sees for as long: the same on every machine."""
    now, chance = [0.0], random.Random(1)

    def sleep(seconds: float) -> None:
        now[0] += seconds * math.exp(chance.gauss(0, 0.01))

    def seconds() -> float:
        now[0] += 1e-7
        return now[0]

    monkeypatch.setattr("rung.timing.function.refuse_tampered", lambda name: None)
    for name in ("perf_counter", "monotonic"):
        monkeypatch.setattr(time, name, seconds)
        monkeypatch.setattr(time, f"{name}_ns", lambda: round(seconds() * 1e9))
    return sleep


def test_more_than_two_are_ranked(nap: Callable[[float], None]) -> None:
    found = rung.compare(lambda: nap(0.001), lambda: nap(0.004), lambda: nap(0.0021), seconds=5)
    assert found.verdict == "ranked"
    assert found.ranks == {"A": 1, "B": 3, "C": 2}
    assert found.speedup is None
    assert "A is the fastest: all 3 pairs judged together (Holm)" in str(found)


def test_a_verdict_on_callables_says_that_results_were_not_compared(nap: Callable[[float], None]) -> None:
    found = rung.compare(lambda: nap(0.004), lambda: nap(0.001), seconds=3)
    assert found.verdict == "faster"
    assert found.results_compared is found["results_compared"] is False
    assert str(found).splitlines()[0].startswith("results not compared")
    assert "results not compared" in repr(found)


def test_calls_that_are_slow_now_and_then_are_not_lost(nap: Callable[[float], None]) -> None:
    turn = itertools.count()
    found = rung.compare(lambda: nap(0.001), lambda: nap(0.004 if next(turn) % 3 else 0.001), seconds=3)
    assert found.verdict == "slower"
    assert found.speedup is not None
    assert found.speedup.value < 0.5
    assert any("slow calls" in note for note in found.notes)


@pytest.mark.parametrize("sides", [2, 3])
def test_what_is_faster_call_by_call_and_slower_in_all_is_not_called_faster(
    sides: int, nap: Callable[[float], None]
) -> None:
    turn = itertools.count()

    def lumps() -> None:
        nap(0.0001 if next(turn) % 3 else 0.0035)

    found = rung.compare(lambda: nap(0.001), lumps, *[lambda: nap(0.005)] * (sides - 2), seconds=3)
    assert found.verdict == "inconclusive"
    assert any("its work comes in lumps" in note for note in found.notes)
    if sides == 3:
        answers = {(p["a"], p["b"]): p["answer"] for p in found["ranking"]["pairs"]}
        assert answers == {("A", "B"): "undecided", ("A", "C"): "slower", ("B", "C"): "slower"}


def test_one_interrupted_call_takes_no_verdict_back(nap: Callable[[float], None]) -> None:
    turn = itertools.count()
    found = rung.compare(lambda: nap(0.001), lambda: nap(2.0 if next(turn) == 100 else 0.0005), seconds=5)
    assert found.verdict == "faster"


def test_time_that_is_up_leaves_it_open() -> None:
    found = rung.compare(timed_functions.short, timed_functions.short, seconds=1e-9, margin=1e-6)
    assert found.verdict == "inconclusive"  # one round says nothing of the next
    assert found["comparison"]["cut"]


def test_fresh_processes_import_the_functions_by_name(tmp_path: Path) -> None:
    found = rung.compare(timed_functions.long, timed_functions.longer, fresh=True, seconds=1)
    assert found["unit"] == "restart"
    assert found["a"]["target"] == "timed_functions:long"
    assert not any("one process" in note for note in found.notes)
    assert found["times"]["a"]["value"] < found["times"]["b"]["value"]


def test_a_target_can_be_a_plain_function_with_options() -> None:
    found = rung.bench(f"{HERE}:long", {"seconds": 0.003}, call=True, seconds=0.5)
    assert 3e6 <= found.median < 100e6
    assert found["options"] == {"seconds": "0.003"}
    with pytest.raises(WorkloadError, match="needs --x"):
        rung.bench(f"{HERE}:needs", call=True)
    with pytest.raises(WorkloadError, match="add --call"):
        rung.bench(f"{HERE}:short")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: rung.compare(timed_functions.long), "2 to 26 callables; 1 were given"),
        (lambda: rung.compare(timed_functions.long, "a.py:b"), "give one kind"),
        (lambda: rung.compare(lambda: 1, lambda: 2, fresh=True), "cannot be imported by a fresh process"),
        (lambda: rung.compare(timed_functions.long, timed_functions.longer, verify=True), "give inputs="),
        (lambda: rung.bench(timed_functions.long, rungs=["compile"]), "takes no options"),
        (lambda: rung.bench(timed_functions.long, preset="best"), "there is no preset 'best'"),
        (lambda: rung.bench(timed_functions.long, seconds=math.nan), "seconds=nan is not a time"),
        (lambda: rung.bench(timed_functions.long, seconds=0), "seconds=0 is not a time"),
        (lambda: rung.bench(timed_functions.long, precision=-1), "precision=-1 is not a share"),
        (lambda: rung.compare(timed_functions.long, timed_functions.longer, margin=-1), "margin=-1 is not a share"),
        (lambda: rung.compare(timed_functions.long, timed_functions.longer, seconds=-1), "seconds=-1 is not a time"),
        (lambda: rung.bench("x.py:y", rungs=["compile"], recipe="r.toml"), "not both"),
        (lambda: rung.bench(AT_HAND), "a Workload cannot be handed to a fresh process"),
        (lambda: rung.compare(AT_HAND, AT_HAND), "a Workload cannot be handed to a fresh process"),
        (lambda: rung.climb(timed_functions.long), "got a function: give a torch.nn.Module, a rung.Workload, or"),
        (lambda: rung.climb("x.py:y", inputs=lambda seed: seed), "inputs= belongs to a torch.nn.Module; a str says that itself"),
        (lambda: rung.climb(len, inputs=lambda seed: seed), "rung.climb got a builtin_function_or_method: give a torch.nn.Module"),
        (lambda: rung.climb(NET), "needs inputs= for a module"),
        (lambda: rung.climb(NET, inputs=torch.zeros(4, 8)), "inputs= cannot be varied"),
        (lambda: rung.climb(AT_HAND, options={"size": 1}), "options= belong to a target"),
        (lambda: rung.climb(), "got nothing: give a torch"),
        (lambda: rung.climb(resume="run", rungs=["compile"]), "continues with the options that the climb was started with: leave rungs out"),
    ],
    ids=["one", "mixed", "lambda", "verify", "rungs", "preset", "no end", "no time", "precision", "margin", "less than no time", "recipe", "bench it", "compare it", "function", "inputs of a target",
         "inputs of a function", "no inputs", "constant inputs", "options", "nothing", "resume"],
)  # fmt: skip
def test_wrong_use_is_one_sentence(call, says: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=says):
        call()


def test_a_file_that_measures_when_it_is_imported_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "careless.py"
    script.write_text("import rung\ndef f(): pass\ndef g(): pass\nrung.compare(f, g, fresh=True)\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert 'put the call under `if __name__ == "__main__":`' in done.stderr


def test_measuring_plain_python_loads_neither_torch_nor_polars() -> None:
    code = (
        "import sys, rung\n"
        "assert not {'numpy', 'torch', 'polars'} & set(sys.modules)\n"
        "str(rung.compare(lambda: 1, lambda: 2, seconds=0.1)); str(rung.bench(lambda: 1, seconds=0.1))\n"
        "assert not {'torch', 'polars'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
