"""`rung report RUN --log-to`: what is logged, read back from each tracker's own files. Each test needs its library, and no network."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
import struct
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from climb_sample import climb
from msgspec.structs import replace

from rung.cli.main import main
from rung.errors import InputError
from rung.integrations.trackers import Tracked, log, tracked
from rung.runs import Run

RUN = Path(__file__).parents[1] / "data" / "run_directory"
FILES = {"report.html", "recipe.toml", "traces/baseline.json.gz"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the directory of a climb, `run`. No setting of the user's own is in effect."""
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "WANDB_"))]:
        monkeypatch.delenv(name)
    shutil.copytree(RUN, tmp_path / "run")
    (tmp_path / "run" / "traces").mkdir()
    (tmp_path / "run" / "traces" / "baseline.json.gz").write_bytes(b"a trace")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def reported(capsys: pytest.CaptureFixture[str], tracker: str) -> tuple[dict[str, Any], str]:
    """(the document, the last line of stderr)"""
    code = main(["report", "run", "--log-to", tracker, "--json"])
    out, err = capsys.readouterr()
    assert code == 0, err
    return json.loads(out), err.splitlines()[-1]


def test_a_climb_has_figures_series_a_table_and_files(here: Path) -> None:
    run = climb()
    found = tracked(here / "run", run, here / "run" / "report.html")
    assert run.result
    assert run.result.speedup
    assert found.name == "run"
    assert found.metrics["speedup"] == run.result.speedup.value
    assert found.metrics["speedup_low"] < found.metrics["speedup"] < found.metrics["speedup_high"]
    assert found.metrics["step_after_ms"] < found.metrics["step_before_ms"]
    assert found.parameters["kept"] == ", ".join(run.result.kept)
    assert [row[1] for row in found.table] == [attempt.rung for attempt in run.attempts]
    assert next(csv.reader(io.StringIO(found.csv()))) == list(found.heads)
    answers, attempts = found.series
    assert [step for step, _ in answers.points] == sorted(step for step, _ in answers.points)
    assert {step for step, _ in attempts.points} <= {attempt.number for attempt in run.attempts}
    assert all(math.isfinite(value) for value in found.metrics.values())
    assert {name for _, name in found.files} == FILES


def test_a_climb_that_has_only_begun_is_logged_as_far_as_it_is_known(here: Path) -> None:
    run = replace(climb(), baseline=None, attempts=[], result=None)
    found = tracked(here / "run", run, here / "run" / "report.html")
    assert "speedup" not in found.metrics
    assert found.table == []


def test_no_link_of_a_run_directory_is_sent_to_a_tracker(here: Path) -> None:
    (here / "secret").write_text("secret")
    for name in ("recipe.toml", "traces/link.json.gz"):
        (here / "run" / name).unlink(missing_ok=True)
        (here / "run" / name).symlink_to(here / "secret")
    found = tracked(here / "run", climb(), here / "run" / "report.html")
    assert {name for _, name in found.files} == {"report.html", "traces/baseline.json.gz"}
    shutil.move(here / "run" / "traces", here / "elsewhere")
    (here / "run" / "traces").symlink_to(here / "elsewhere")
    found = tracked(here / "run", climb(), here / "run" / "report.html")
    assert {name for _, name in found.files} == {"report.html"}


def test_tensorboard_reads_what_was_logged(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accumulators = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    document, said = reported(capsys, "tensorboard")
    assert said == "tensorboard: runs/run; `tensorboard --logdir runs` shows it"
    events = accumulators.EventAccumulator("runs/run")
    events.Reload()
    speedup = document["result"]["speedup"]["value"]
    assert [event.value for event in events.Scalars("speedup")] == [pytest.approx(speedup)]
    assert [(event.step, event.value) for event in events.Scalars("attempt_speedup")] == [(1, pytest.approx(speedup))]
    [table] = events.Tensors("attempts")
    assert b"| 1 | plain | inconclusive | 5.882 |" in table.tensor_proto.string_val[0]
    assert {str(path.relative_to("runs/run")) for path in Path("runs/run").rglob("*")} >= FILES


def test_mlflow_reads_what_was_logged(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{here}/store")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    document, said = reported(capsys, "mlflow")
    assert said.startswith("mlflow: run ")
    client = mlflow.MlflowClient(f"file://{here}/store")
    [run] = client.search_runs([client.get_experiment_by_name("rung").experiment_id])
    assert run.info.run_name == "run"
    assert run.info.status == "FINISHED"
    assert run.data.metrics["speedup"] == document["result"]["speedup"]["value"]
    assert run.data.params["kept"] == "compile"
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "attempt_speedup")] == [1]
    names = {file.path for folder in ("", "traces") for file in client.list_artifacts(run.info.run_id, folder) if not file.is_dir}  # fmt: skip
    assert names == FILES | {"attempts.csv"}


def test_wandb_keeps_what_was_logged_on_this_machine(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DATA_DIR", str(here / "staging"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(here / "cache"))
    document, said = reported(capsys, "wandb")
    [folder] = (here / "wandb").glob("offline-run-*")
    assert said == f"wandb: `wandb sync {folder}` sends it"
    [file] = folder.glob("*.wandb")
    records = [wandb_internal_pb2.Record.FromString(data) for data in logged(file)]
    [run] = [record.run for record in records if record.HasField("run")]
    assert (run.project, run.display_name) == ("rung", "run")
    summary = {item.key: item.value_json for record in records if record.HasField("summary") for item in record.summary.update}  # fmt: skip
    assert json.loads(summary["speedup"]) == pytest.approx(document["result"]["speedup"]["value"])
    artifacts = [record.request.log_artifact.artifact for record in records if record.request.HasField("log_artifact")]
    artifacts += [record.artifact for record in records if record.HasField("artifact")]
    [contents] = [artifact.manifest.contents for artifact in artifacts if artifact.type == "climb"]
    assert {content.path for content in contents} == FILES


def logged(file: Path) -> Iterator[bytes]:
    """The records of a log in LevelDB's format: pieces with a head each (checksum, length, place in the record), in blocks of 32 KiB."""
    data, at, record = file.read_bytes(), 7, b""  # after the format's name and version
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # no head fits into the rest of the block
            at += 32768 - at % 32768
            continue
        length, place = struct.unpack_from("<HB", data, at + 4)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if place in (1, 4):  # all of it, the last piece
            yield record
            record = b""


def stub(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    """A tracker's module in the place of one: it prints, and fails."""

    def take(climb: Tracked) -> str:
        print("the library says hello")
        if error:
            raise error
        return "there"

    module = types.ModuleType("rung.integrations.trackers.mlflow")
    module.log = take  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_what_a_library_prints_is_no_part_of_the_document(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stub(monkeypatch, None)
    document, said = reported(capsys, "mlflow")
    assert document["kind"] == "run"
    assert said == "mlflow: there"


def test_a_tracker_that_fails_is_one_sentence_and_the_report_is_there(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stub(monkeypatch, OSError("no route to host\nand more"))
    assert main(["report", "run", "--log-to", "mlflow", "--json"]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out)["kind"] == "run"
    assert err.splitlines()[-1] == "rung: mlflow did not take run: OSError: no route to host"
    assert (here / "run" / "report.html").is_file()
    with pytest.raises(InputError, match="did not take run"):
        log("mlflow", tracked(here / "run", Run.open_(here / "run").record(), here / "run" / "report.html"))


@pytest.mark.parametrize(("tracker", "package"), [("mlflow", "mlflow"), ("tensorboard", "tensorboard"), ("wandb", "wandb")])  # fmt: skip
def test_a_library_that_is_missing_is_said_with_what_to_install(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tracker: str, package: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"rung.integrations.trackers.{tracker}", raising=False)
    assert main(["report", "run", "--log-to", tracker]) == 2
    assert f"pip install {package}." in capsys.readouterr().err.splitlines()[-1]


def test_several_runs_are_logged_one_at_a_time(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "run", "run", "--log-to", "mlflow"]) == 2
    assert "one run at a time" in capsys.readouterr().err
