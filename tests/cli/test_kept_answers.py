"""Answers about large traces are kept: asked again they are the same, and nothing is opened; what may change them has them worked out anew."""

import gzip
import json
import os

import pytest

from rung.analysis import kept
from rung.cli import analyze
from rung.cli.main import main
from rung.trace import entries


@pytest.fixture
def asked(tmp_path, monkeypatch, capsys):
    """Asks about a trace that counts as large; the answer, and whether the trace was opened for it."""
    monkeypatch.setattr(entries, "THRESHOLD", 1)
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "traces" / "t.json.gz"
    file.parent.mkdir()
    write(file)
    opened = []
    real = analyze.opened
    monkeypatch.setattr(analyze, "opened", lambda *args, **how: opened.append(1) or real(*args, **how))

    def ask(*options):
        opened.clear()
        assert main(["analyze", str(file), *options]) == 0
        said = capsys.readouterr()
        return (said.out, said.err), bool(opened)

    ask.file = file
    return ask


def write(file, dur=30):
    call = {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "hipLaunchKernel",
        "pid": 7,
        "tid": 1,
        "ts": 0,
        "dur": 2,
        "args": {"correlation": 1},
    }
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "pid": 0,
        "tid": 0,
        "ts": 5,
        "dur": dur,
        "args": {"device": 0, "stream": 0, "correlation": 1},
    }
    steps = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{i}",
            "pid": 7,
            "tid": 1,
            "ts": 100 * i,
            "dur": 50,
            "args": {},
        }
        for i in (0, 1)
    ]
    file.write_bytes(gzip.compress(json.dumps({"traceEvents": [call, kernel, *steps]}).encode(), mtime=0))


QUESTIONS = [
    (),
    ("--json",),
    ("--show", "kernels,findings"),
    ("--show", "kernels", "--json"),
    ("--step", "all"),
    ("--steps", "2"),
]


@pytest.mark.parametrize("options", QUESTIONS)
def test_the_same_question_has_the_same_answer_without_opening(asked, options):
    first, opened = asked(*options)
    assert opened
    again, opened = asked(*options)
    assert again == first
    assert not opened


def test_each_question_has_an_answer_of_its_own(asked):
    questions = [
        (),
        ("--steps", "3"),
        ("--json",),
        ("--show", "kernels"),
        ("--show", "kernels", "--top", "0"),
        ("--show", "idle"),
    ]
    answers = {options: asked(*options) for options in questions}
    assert all(opened for _, opened in answers.values())
    assert {options: (asked(*options)[0], True) for options in questions} == answers


def test_what_the_answer_depends_on_has_it_worked_out_anew(asked, tmp_path, monkeypatch):
    def again():
        assert asked()[1]
        assert not asked()[1]

    again()
    write(asked.file, 40)
    os.utime(asked.file, ns=(0, 10**18))
    again()
    (asked.file.parent / "capture_1.json").write_text("{}")
    again()
    (tmp_path / "peaks.toml").write_text("")
    monkeypatch.setenv("RUNG_PEAKS", str(tmp_path / "peaks.toml"))
    again()
    own = tmp_path / "families.toml"
    own.write_text('[[kernel]]\ncategory = "own"\ndetail = ""\npatterns = ["k"]\n')
    monkeypatch.setenv("RUNG_CATEGORIES", str(own))
    again()
    monkeypatch.setattr(kept, "program", lambda: "another version")
    again()
    monkeypatch.setenv("COLUMNS", "150")
    again()


@pytest.mark.parametrize(
    "options", [("--no-cache",), ("--partial",), ("--max-bytes", "1G"), ("--show", "kernels", "--csv", "-")]
)
def test_what_is_more_than_an_answer_is_never_kept(asked, options):
    asked(*options)
    assert asked(*options)[1]


def test_files_that_are_asked_for_are_written_each_time(asked, tmp_path):
    for name in ("a.html", "b.html"):
        assert asked("--html", str(tmp_path / name))[1]
        assert (tmp_path / name).exists()


@pytest.mark.parametrize("junk", ["", "{", "[" * 100_000, "null"])
def test_a_damaged_answer_is_worked_out_again(asked, tmp_path, junk):
    first, _ = asked()
    (answer,) = (tmp_path / "cache").glob("*/answers/*.json")
    answer.write_text(junk)
    again, opened = asked()
    assert opened
    assert again == first
    assert not asked()[1]


def test_what_was_wrong_with_the_cache_is_said_once(asked, tmp_path):
    asked()
    (tables,) = (tmp_path / "cache").glob("*/events.parquet")
    tables.write_text("junk")
    said, _ = asked("--steps", "2")
    assert "read again" in " ".join("".join(said).split())
    said, opened = asked("--steps", "2")
    assert opened
    assert "read again" not in " ".join("".join(said).split())


def test_old_answers_go(asked, tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "MOST", 2)
    for number in "1234":
        asked("--steps", number)
    assert len(list((tmp_path / "cache").glob("*/answers/*.json"))) == 2


def test_small_files_and_folders_have_none(asked, monkeypatch):
    assert kept.place(asked.file.parent, {}) is None
    monkeypatch.setattr(entries, "THRESHOLD", 10**9)
    assert kept.place(asked.file, {}) is None
