"""What a climb's page shows of its own traces: the right ones, drawn where they can be read, and never a file outside of the run."""

import gzip
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from climb_sample import climb, unfinished
from made_pages import HOSTILE, document, recorded_climb, without_own_scripts

from rung.cli.main import main
from rung.records.climb import ClimbRun
from rung.report.climb_traces import ClimbTraces, traces_of
from rung.report.html import render

RUN = Path(__file__).parents[1] / "data" / "run_directory"


def drawn(folder: Path, data: ClimbRun, page: Path | None = None) -> ClimbTraces:
    return traces_of(folder, data, page or folder / "report.html")


def test_before_is_the_baseline_and_after_the_attempt_that_made_the_answer(tmp_path: Path) -> None:
    data = climb()
    folder = recorded_climb(tmp_path, baseline={"slow": 4.0}, **{"02-bf16": {}, "10-cuda-graphs": {}, "99-other": {}})
    found = drawn(folder, data)
    assert found.before is not None
    assert found.after is not None
    assert (found.before[0], found.after[0]) == ("Before", "After (cuda-graphs)")
    assert found.before[1].lanes.span_ns > found.after[1].lanes.span_ns
    assert [file.what for file in found.files] == ["the untouched model", "bf16", "cuda-graphs", "99-other"]
    data.attempts[1].stack = list(reversed(data.result.kept))  # the answer goes back to bf16
    found = drawn(folder, data)
    assert found.after is not None
    assert found.after[0] == "After (bf16)"
    (folder / "traces" / "10-cuda-graphs.json.gz").unlink()
    found = drawn(folder, climb())  # the last that was kept was not recorded: the one before it
    assert found.after is not None
    assert found.after[0] == "After (bf16)"


def test_a_climb_that_kept_nothing_has_no_after(tmp_path: Path) -> None:
    folder = recorded_climb(tmp_path, baseline={}, **{"01-tf32": {}})
    found = drawn(folder, unfinished())
    assert found.before is not None
    assert found.after is None
    assert "before and after" not in render(unfinished(), found)
    assert drawn(tmp_path / "none", climb()).steps == []


def test_the_page_has_both_steps_the_roofline_and_the_files(tmp_path: Path) -> None:
    later = {"names": ("fused_kernel", "other_kernel")}
    folder = recorded_climb(tmp_path, baseline={"slow": 4.0}, **{"10-cuda-graphs": later})
    page = render(climb(), drawn(folder, climb()))
    assert "One step, before and after" in page
    assert page.count('<svg class="timeline"') == 1
    assert "Before, GPU 0 stream 0" in page
    assert "After (cuda-graphs), GPU 0 stream 0" in page
    record = json.loads(re.search(r'id="record">(.*?)</script>', page)[1])  # type: ignore[index]
    assert [group["title"] for group in record["groups"]] == ["Before", "After (cuda-graphs)"]
    kinds, names = record["kinds"], record["names"]
    seen = []
    for group in record["groups"]:  # each slice has the name that it has in its own trace
        [lane] = [lane for lane in group["lanes"] if lane["title"] == "GPU 0 stream 0"]
        seen.append({names[kinds["name"][kind]] for kind in lane["rows"][0]["kind"]})
    assert seen == [{"Cijk_MT64", "softmax_kernel", "copy_kernel"}, set(later["names"])]
    assert page.count("<circle cx=") >= 2
    assert 'class="p-hbm before"' in page
    assert 'class="p-hbm after"' in page
    assert '<a href="traces/10-cuda-graphs.json.gz">' in page
    assert "ui.perfetto.dev" in page
    assert f"rung diff {folder}/traces/baseline.json.gz {folder}/traces/10-cuda-graphs.json.gz --html diff.html" in page


def test_a_link_leads_from_where_the_page_lies(tmp_path: Path) -> None:
    folder = recorded_climb(tmp_path / "a run", baseline={})
    [file] = drawn(folder, unfinished(), tmp_path / "pages" / "x.html").files
    assert file.link == "../a%20run/run/traces/baseline.json.gz"
    assert (tmp_path / "pages" / "../a run/run/traces/baseline.json.gz").resolve().is_file()


def test_a_step_in_the_middle_is_shown_where_steps_are_marked(tmp_path: Path) -> None:
    folder = recorded_climb(tmp_path, baseline={})
    path = folder / "traces" / "baseline.json.gz"
    told = json.loads(gzip.decompress(path.read_bytes()))
    mark = {"ph": "X", "cat": "user_annotation", "pid": 7, "tid": 1, "dur": 400, "args": {}}
    told["traceEvents"] += [mark | {"name": f"ProfilerStep#{k}", "ts": 450 * k} for k in range(3)]
    path.write_bytes(gzip.compress(json.dumps(told).encode()))
    found = drawn(folder, unfinished())
    assert found.before is not None
    step = found.before[1]
    assert (step.number, step.steps) == (2, 3)
    assert 300_000 < step.lanes.span_ns < 500_000
    assert "step 2 of 3 recorded" in render(unfinished(), found)


def test_a_damaged_trace_is_a_sentence_on_the_page(tmp_path: Path) -> None:
    folder = recorded_climb(tmp_path, **{"10-cuda-graphs": {}})
    (folder / "traces" / "baseline.json.gz").write_bytes(b"\x1f\x8bnothing")
    found = drawn(folder, climb())
    assert found.before is None
    assert found.after is not None
    assert "The trace could not be drawn" in render(climb(), found)


def test_an_attempt_s_name_leads_to_no_file_outside(tmp_path: Path) -> None:
    folder = recorded_climb(tmp_path, baseline={})
    (tmp_path / "outside.json.gz").write_bytes(gzip.compress(json.dumps(document()).encode()))
    data = climb()
    data.attempts[0].rung = "/../../../outside"
    data.attempts = data.attempts[:1]
    assert drawn(folder, data).after is None


@pytest.mark.parametrize("name", HOSTILE)
def test_names_of_strangers_stay_text(tmp_path: Path, name: str) -> None:
    folder = recorded_climb(tmp_path, baseline={"names": HOSTILE}, **{"10-cuda-graphs": {"names": HOSTILE}})
    data = climb()
    for attempt in data.attempts:
        attempt.title = attempt.why = name
    page = render(data, drawn(folder, data))
    assert "<script" not in without_own_scripts(page)
    assert "<img" not in page
    for steering in "\x1b\u202e\u2066":
        assert steering not in without_own_scripts(page)


def test_the_commands_write_it(tmp_path: Path) -> None:
    folder = recorded_climb(tmp_path, baseline={})
    for path in RUN.rglob("*.*"):
        place = folder / path.relative_to(RUN)
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(path.read_bytes())
    assert main(["report", str(folder)]) == 0
    assert 'data-picture="timeline"' in (folder / "report.html").read_text()


@pytest.mark.parametrize(("columns", "width"), [("60", 60), ("30", 60), ("400", 100)])
def test_the_summary_fits_the_terminal(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(RUN, "run")
    assert main(["report", "run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    to_paste = [line for line in lines if "rung bench " in line or "rung.apply(" in line]  # these stay whole
    assert len(to_paste) == 2
    assert max(len(line) for line in lines if line not in to_paste) == width


def test_the_commands_of_the_page_name_the_program_as_it_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [".venv/bin/rung", "climb"])
    folder = recorded_climb(tmp_path, baseline={}, **{"10-cuda-graphs": {}})
    page = render(climb(), drawn(folder, climb()))
    for command in ("analyze", "diff", "bench", "climb"):
        assert re.search(rf"(?<=[>\n])\.venv/bin/rung {command} ", page)
    assert not re.search(r"(?<=[>\n])rung ", page)
