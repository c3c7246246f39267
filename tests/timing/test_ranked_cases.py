"""The benchmark of well-known shapes: what is made of its restarts, and that it goes on where it was stopped."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from climbing import MICRO
from replayed import REPLAYED

from rung.side import Setup, Side
from rung.timing import workers

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "ladder"))
import ranked
from ranked import Ranked, answer, groups


def restart(**ns: float) -> dict[str, Any]:
    return {side: {"visits": [[x, x], [1.02 * x, 1.02 * x]]} for side, x in ns.items()}


def test_the_verdict_is_the_one_beside_the_best_rival() -> None:
    record = {
        "sides": dict.fromkeys(("eager", "default", "broken", "rung")),
        "failed": {"broken": "out of memory"},
        "restarts": [restart(eager=30.0 + k, default=12.0, rung=10.0 + 0.01 * k) for k in range(3)],
    }
    found = answer(record)
    assert (found["best"], found["verdict"]) == ("default", "faster")
    assert math.isclose(found["against"]["default"]["speedup"]["value"], 1.2, rel_tol=0.01)
    assert found["against"]["default"]["speedup"]["low"] > 1.15
    assert set(found["against"]) == {"eager", "default"}


def test_ours_that_failed_has_no_verdict() -> None:
    record = {"sides": {"eager": {}, "rung": {}}, "failed": {"rung": "no"}, "restarts": [restart(eager=1.0)]}
    assert answer(record)["verdict"] == "no comparison"
    assert answer(record)["times"].keys() == {"eager"}


@pytest.mark.parametrize(("held", "expected"), [
    (9, ["abcde"]), (5, ["abcde"]), (3, ["ab", "cde"]), (2, ["a", "bc", "de"]), (1, list("abcde")),
])  # fmt: skip
def test_the_last_side_is_held_with_those_before_it(held: int, expected: list[str]) -> None:
    assert groups("abcde", held) == [list(part) for part in expected]


def test_all_sides_compile_at_once_in_their_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, str]] = []

    class Noting:
        def __init__(self, *_: Any) -> None:
            pass

        def send(self, method: str) -> None:
            events.append(("send", method))

        def receive(self, method: str, deadline: float, waited: float = 0.0) -> float:
            events.append(("receive", method))
            return 1.0

    monkeypatch.setattr(ranked, "open_worker", Noting)
    case = Ranked(tmp_path / "micro.json", {name: Side(MICRO) for name in "abc"}, print)
    case.first(Setup("cpu", tmp_path), list("abc"))
    assert events[:3] == [("send", "first")] * 3
    assert case.record["first_runs"] == dict.fromkeys("abc", 1.0)


def test_first_runs_are_noted_as_they_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped:
        def __init__(self, stack: Any, setup: Setup, side: Side, log: str) -> None:
            self.log = log

        def send(self, method: str) -> None:
            pass

        def receive(self, method: str, deadline: float, waited: float = 0.0) -> float:
            if self.log.endswith("-c"):
                raise KeyboardInterrupt
            return 1.0

    monkeypatch.setattr(ranked, "open_worker", Stopped)
    case = Ranked(tmp_path / "micro.json", {name: Side(MICRO) for name in "abc"}, print)
    with pytest.raises(KeyboardInterrupt):
        case.first(Setup("cpu", tmp_path), list("abc"))
    assert json.loads(case.path.read_text())["first_runs"] == {"a": 1.0, "b": 1.0}


def test_a_side_that_fails_is_named_and_the_others_go_on_where_they_were(
    tmp_path: Path, recorded: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "WORKLOAD", REPLAYED)
    for name, value in recorded.items():
        monkeypatch.setenv(name, value)
    sides = {
        "eager": Side(MICRO),
        "broken": Side(MICRO, {"fused": "raise"}, ("fused-optimizer",)),
        "rung": Side(MICRO, {}, ("fused-optimizer",)),
    }
    path, setup, said = tmp_path / "micro.json", Setup("cpu", tmp_path / "logs"), []
    assert Ranked(path, sides, said.append).run(setup, 1, 3, over=lambda: False)
    first = json.loads(path.read_text())
    assert "no step today" in first["failed"]["broken"]
    assert first["verdict"] == "undecided"  # one restart says nothing of the next
    assert first["restarts"][0].keys() == {"eager", "rung"}
    assert first["restarts"][0]["rung"]["applied"]["optimizer_fused"]

    time_for = iter((False, True))  # one group of the second restart, one side each
    assert not Ranked(path, sides, said.append).run(setup, 2, 1, over=lambda: next(time_for))
    between = json.loads(path.read_text())
    assert between["restarts"] == first["restarts"]
    assert [row.keys() for row in between["unfinished"]] == [{"rung"}]
    assert Ranked(path, sides, said.append).run(setup, 2, 1, over=lambda: False)
    second = json.loads(path.read_text())
    assert second["restarts"][1]["rung"] == between["unfinished"][0]["rung"]
    assert second["restarts"][0] == first["restarts"][0]
    assert len(second["restarts"]) == 2
    assert second["against"]["eager"]["speedup"]["value"] == pytest.approx(20)
    with pytest.raises(SystemExit, match="other sides"):
        Ranked(path, {"eager": Side(MICRO)}, said.append)
