"""`rung analyze` of many ranks: by partials where there are many, or where they are asked for."""

import json
from pathlib import Path
from typing import Any

import pytest

from rung.cli import many_ranks
from rung.cli.main import main

RANKS = 6


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "traces"
    path.mkdir()
    for rank in range(RANKS):
        said = {
            "Collective name": "allreduce",
            "Process Group Name": "0",
            "Group size": RANKS,
            "dtype": "Float",
            "In msg nelems": 1000,
        }
        events = [
            {"ph": "X", "cat": "kernel", "name": "Cijk_gemm", "pid": 0, "tid": 7, "ts": 10, "dur": 20, "args": {"device": 0, "stream": 7}},
            {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 9, "ts": 40 + rank, "dur": 60 - rank,
             "args": {"device": 0, "stream": 9, "Seq": 1, **said}},
        ]  # fmt: skip
        document = {"distributedInfo": {"rank": rank, "world_size": RANKS}, "traceEvents": events}
        (path / f"rank{rank}.json").write_text(json.dumps(document))
    return path


def asked(capsys: Any, *words: object) -> Any:
    assert main(["analyze", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_folder_of_many_traces_is_reduced_and_has_the_same_tables(
    folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    show = ("--show", "collectives,skew,communication")
    whole = asked(capsys, folder, *show)
    assert not (tmp_path / "cache" / "partials").exists()
    monkeypatch.setattr(many_ranks, "MANY", RANKS - 1)
    assert "merged" not in asked(capsys, folder)  # small ones are read sooner
    monkeypatch.setattr(many_ranks, "LARGE", 1000)
    assert asked(capsys, folder, *show) == whole
    assert len(list((tmp_path / "cache" / "partials").iterdir())) == RANKS
    assert asked(capsys, folder)["merged"]
    assert "kernels" in asked(capsys, folder, "--show", "kernels")["tables"]  # of the whole traces


def test_traces_that_do_not_fit_into_memory_are_reduced(
    folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "merged" not in asked(capsys, folder)
    monkeypatch.setattr("rung.hardware.limits.free_memory", lambda: 1000)
    assert asked(capsys, folder)["merged"]


def test_partials_answer_without_their_traces(folder: Path, capsys: Any, tmp_path: Path) -> None:
    partials = tmp_path / "partials"
    assert main(["analyze", str(folder), "--partials", str(partials)]) == 0
    first = capsys.readouterr()
    assert f"partials: {partials}" in first.err
    for file in folder.iterdir():
        file.unlink()
    assert main(["analyze", str(partials)]) == 0
    second = capsys.readouterr().out
    assert second.replace(str(partials), str(folder)) == first.out
    assert "6 ranks" in second
    assert main(["analyze", str(partials), "--show", "skew", "--csv", "-"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + RANKS


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--show", "kernels"], "cannot answer --show kernels"),
        (["--html", "page.html"], "cannot answer --html"),
        (["--step", "1"], "cannot answer --step"),
    ],
)
def test_what_partials_cannot_answer_is_refused(
    more: list[str], said: str, folder: Path, capsys: Any, tmp_path: Path
) -> None:
    assert main(["analyze", str(folder), "--partials", str(tmp_path / "out"), *more]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_partials_are_of_a_folder(folder: Path, capsys: Any) -> None:
    assert main(["analyze", str(folder / "rank0.json"), "--partials", "out"]) == 2
    assert "--partials is about a folder of traces" in capsys.readouterr().err


def test_a_file_that_is_no_partial_is_named(folder: Path, capsys: Any, tmp_path: Path) -> None:
    partials = tmp_path / "partials"
    assert main(["analyze", str(folder), "--partials", str(partials)]) == 0
    damaged = sorted(partials.iterdir())[2]
    damaged.write_bytes(damaged.read_bytes()[:200])
    capsys.readouterr()
    found = asked(capsys, partials)
    assert found["ranks"] == RANKS - 1
    assert f"{damaged} is damaged or not a partial" in " ".join(found["notes"])
