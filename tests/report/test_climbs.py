"""Several climbs beside each other: each figure under its climb, and nothing that a stranger wrote obeyed."""

import json
from pathlib import Path
from typing import Any

import climb_sample
import pytest
from climb_sample import climb, nothing_kept, planned, unfinished
from made_pages import HOSTILE, without_own_scripts
from msgspec.structs import replace

from rung.cli.main import main
from rung.records.climb import ClimbRun, Moment
from rung.records.measured import Figure, Ratio
from rung.report.climbs import OUTCOMES, climb_of, climbs_lines, page, tried

RUN = Path(__file__).parents[1] / "data" / "run_directory"


def confirmed() -> ClimbRun:
    data = climb()
    moments = (("provisional", 34.0), ("verified", 70.0), ("confirmed", 700.0))
    history = [Moment(status=status, kept=["tf32"], speedup=2.0, seconds=s) for status, s in moments]
    over_plain = Figure(value=1.4, low=1.3, high=1.5)
    data.result = replace(data.result, status="confirmed", over_plain=over_plain, history=history)
    return data


def test_a_climb_has_its_figures() -> None:
    found = climb_of(confirmed())
    assert (found.model, found.mode, found.numerics, found.status) == ("tiny-transformer", "train", "bf16", "confirmed")
    assert found.speedup == Ratio(value=9.4, low=9.2, high=9.6)
    assert found.over_plain == Ratio(value=1.4, low=1.3, high=1.5)
    assert (found.step_before, found.step_after) == (26.6e6, 2.83e6)
    assert (found.memory_before, found.memory_after) == (int(3.1 * 2**30), int(1.2 * 2**30))
    assert (found.first_answer, found.verified, found.took) == (34.0, 70.0, 725.0)
    assert found.rungs["fused-projections"].verdict == "reverted"
    assert found.rungs["custom-norm"].verdict == "refused"  # it ran, and computed something else
    assert found.rungs["compile"].speedup is not None


def test_a_climb_that_kept_nothing_claims_nothing() -> None:
    for data, status in ((nothing_kept(), "nothing kept"), (unfinished(), "interrupted"), (planned(), "planned")):
        found = climb_of(data)
        assert found.status == status
        assert (found.speedup, found.over_plain, found.step_after, found.memory_after, found.verified) == (None,) * 5


def test_the_last_try_of_a_rung_counts() -> None:
    data = climb()
    data.attempts = [
        climb_sample.attempt(1, "sdpa", "inconclusive", "", 2e6, 2e6),
        climb_sample.attempt(2, "sdpa", "kept", "", 2e6, 1e6),
    ]
    assert climb_of(data).rungs["sdpa"].verdict == "kept"


def test_rungs_that_no_climb_tried_are_counted_and_the_most_kept_stand_first() -> None:
    names, left = tried([climb_of(climb()), climb_of(nothing_kept())])
    assert left == 2  # channels-last and flash-setting
    assert set(names[-3:]) == {"max-autotune", "fused-projections", "custom-norm"}
    assert not {"channels-last", "flash-setting"} & set(names)


def test_on_the_terminal_each_mark_stands_under_its_climb() -> None:
    lines = climbs_lines([climb_of(confirmed()), climb_of(nothing_kept()), climb_of(unfinished())], 100)
    text = "\n".join(lines)
    assert "9.20–9.60" in text
    assert "12 min" not in text  # what the climb took is no time to an answer
    head = next(line for line in lines if line.startswith("rung"))
    row = next(line for line in lines if line.startswith("fused-projections"))
    assert [row[head.index(number)] for number in "12"] == ["↩", "↩"]
    tf32 = next(line for line in lines if line.startswith("tf32"))
    assert tf32[head.index("1")] == "✓"
    assert len(tf32) < head.index("2")
    assert all(len(line) <= 100 for line in lines)
    assert "2 more rungs were tried in none of them" in " ".join(lines)


def test_many_climbs_are_broken_into_blocks() -> None:
    lines = climbs_lines([climb_of(climb())] * 40, 100)
    assert sum(line.startswith("rung ") for line in lines) == 2
    assert all(len(line) <= 100 for line in lines)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_strangers_stay_text(name: str) -> None:
    data = confirmed()
    data.manifest.workload.name = data.directory = data.attempts[0].rung = name
    data.attempts[0].why = name
    data.result.kept = [name]
    text = page([climb_of(data), climb_of(climb())])
    assert "<script" not in without_own_scripts(text)
    assert "<img" not in text
    assert "onload=alert(1)>" not in text
    for steering in "\x1b\u202e\u2066":
        assert steering not in without_own_scripts(text)
        assert steering not in "\n".join(climbs_lines([climb_of(data)]))


def test_the_command_says_it_all_three_ways(tmp_path: Path, capsys: Any) -> None:
    assert main(["report", str(RUN), str(RUN), "--html", str(tmp_path / "page.html")]) == 0
    shown = capsys.readouterr()
    assert "5.88×" in shown.out
    assert "page.html" in shown.err
    assert "2 climbs" in (tmp_path / "page.html").read_text()
    assert main(["report", str(RUN), str(RUN), "--json"]) == 0
    [first, _] = json.loads(capsys.readouterr().out)["climbs"]
    assert first["speedup"]["value"] == pytest.approx(5.8815, abs=1e-4)
    assert first["first_answer"] == pytest.approx(33.51, abs=0.01)
    assert first["verified"] is None
    assert {outcome["verdict"] for outcome in first["rungs"].values()} <= set(OUTCOMES)


def test_a_directory_that_is_no_run_is_named(tmp_path: Path, capsys: Any) -> None:
    assert main(["report", str(RUN), str(tmp_path)]) == 3
    assert f"{tmp_path} is not a run directory" in capsys.readouterr().err


def test_the_page_of_one_run_goes_where_it_is_asked_to(tmp_path: Path) -> None:
    assert main(["report", str(RUN), "--html", str(tmp_path / "one.html")]) == 0
    assert "climb of pointwise.py:make" in (tmp_path / "one.html").read_text()
    assert not (RUN / "report.html").exists()
