"""`rung watch`: what it prints of a folder, once, as JSON, and until the job has ended."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rung.cli.main import main
from rung.records.record import plain
from rung.records.watch import Sample, Watched
from rung.watching.files import RankFile

EVIL = "node\x1b]0;owned\x07-1"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of two ranks, the second of them slow."""
    monkeypatch.chdir(tmp_path)
    for rank in range(2):
        for ago in (10, 5, 0):
            wrote(rank, ago)
    return Path(".rung/watch/train-12")


def wrote(rank: int, ago: float = 0.0, **values: Any) -> None:
    now = time.time()
    given = {"own_ns": (90 + 30 * rank) * 1e6, "idle": 0.1, "step": 7, "steps": 3, "host": EVIL, "local": rank}
    line = Sample(
        at=now - ago, began=1.0, every=5.0, rank=rank, world=2, step_ns=2e8, exchange_ns=1e7, **(given | values)
    )
    RankFile(Path(".rung/watch/train-12"), rank).append(line)


def test_once_it_says_what_is_wrong_and_has_a_row_a_rank(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--once"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("train-12: 2 ranks on 1 host, running; step 7, 200 ms; exposed exchange 10.0 ms (5%)")
    assert "takes 33% longer by itself than the median rank" in " ".join(out.split())
    assert [line.split()[0] for line in out.splitlines()[-2:]] == ["0", "1"]
    assert "\x1b" not in out
    assert "\x07" not in out


def test_json_is_the_record(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "12", "--json"]) == 0
    text = capsys.readouterr().out
    found = msgspec.json.decode(text, type=Watched)
    assert json.loads(text) == plain(found)
    assert (found.world, [finding.kind for finding in found.findings]) == (2, ["straggler"])


def test_until_the_end_each_new_sentence_is_a_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def goes_on() -> None:
        time.sleep(0.3)
        for _ in range(4):
            wrote(0, throttled=("power cap",), core=1100.0)
        time.sleep(0.3)
        for rank in range(2):
            wrote(rank, ended=True)

    job = threading.Thread(target=goes_on)
    job.start()
    assert main(["watch", "train-12", "--interval", "0.05"]) == 0
    job.join()
    out = capsys.readouterr().out
    assert out.count("2 ranks on 1 host, running") == 1
    assert out.count("2 ranks on 1 host, ended") == 1
    told = [line for line in out.splitlines() if " step 7: " in line]
    assert len(told) == 1
    assert "is throttled (power cap): its clock is 1.10 GHz" in told[0]


def test_where_there_is_no_such_job_a_sentence_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "13", "--once"]) == 3
    assert "no rank of a job '13' has written anything (.rung/watch has train-12)" in capsys.readouterr().err
    (folder / "rank-00000.jsonl").write_text("nothing\n")
    (folder / "rank-00001.jsonl").write_text("")
    assert main(["watch", "12", "--once"]) == 3
    assert "has no line that can be read" in capsys.readouterr().err
    assert main(["watch", "12", "--interval", "0"]) == 2
