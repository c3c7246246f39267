"""Every input as a pipe, a device, a folder, a link to itself or a socket: an answer or a sentence, and never a wait."""

import contextlib
import gzip
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rung.analysis import classifier
from rung.cli.main import main
from rung.errors import InputError, RungError
from rung.runs import Run
from rung.trace import read, spool
from rung.trace.source import MAX_EVENTS, MAX_VALUE, Source
from rung.workload import load
from rung.workload.live import OBJECTS, SOURCE

EVENT = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 0, "ts": 0, "dur": 5, "args": {"device": 0}}
TRACE = json.dumps({"traceEvents": [EVENT, EVENT | {"ts": 10}]}).encode()
KINDS = ("fifo", "device", "folder", "loop", "socket", "missing", "unreadable", "empty", "fifo in a folder")
COMMANDS = (
    "analyze INPUT", "analyze TRACE --samples INPUT --write out.json", "analyze TRACE --categories INPUT",
    "diff TRACE INPUT", "replay INPUT --op mm --list", "report INPUT", "runs --in INPUT",
    "apply INPUT", "bench tiny-transformer --recipe INPUT", "compare tiny-transformer --recipe INPUT",
    "compare INPUT INPUT", "kernels inspect INPUT", "profile --madengine-config INPUT --dry-run -- true",
    "watch INPUT --once",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(spool, "WAIT", 0.3)
    monkeypatch.chdir(tmp_path)
    yield
    classifier.use(None)


@contextlib.contextmanager
def made(kind: str) -> Iterator[str]:
    path = Path("input.json")  # by this name it is a file of measurements for `rung compare`
    server = None
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "socket":
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(path))
    elif kind == "unreadable":
        path.write_bytes(TRACE)
        path.chmod(0)
    elif kind == "empty":
        path.touch()
    elif kind == "fifo in a folder":
        path.mkdir()
        for name in ("trace.json", "manifest.json", "x_kernel_trace.csv", "plan.json", "pmc_perf.csv", "a.json"):
            os.mkfifo(path / name)
    try:
        yield str(path)
    finally:
        if server:
            server.close()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("command", "kind"), list(itertools.product(COMMANDS, KINDS)))
def test_every_kind_of_input_is_answered_at_once(command: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("trace.json").write_bytes(TRACE)
    with made(kind) as path:
        code = main([{"INPUT": path, "TRACE": "trace.json"}.get(word, word) for word in command.split()])
    err = capsys.readouterr().err
    assert code in (0, 2, 3), err
    assert "Traceback" not in err


@pytest.mark.timeout(60)
def test_a_run_whose_files_are_pipes(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.create(Path(), "a", Path("a"))
    os.mkfifo(run.directory / "manifest.json")
    assert main(["report", "a"]) == 3
    assert main(["runs", "--in", "."]) == 0
    assert "pipe" in capsys.readouterr().out


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_written_of_a_live_object_is_a_file_or_it_is_said_what_it_is(kind: str) -> None:
    """A target that reads a pickle: of anything else in its place, one sentence."""
    Path("workload").mkdir()
    Path("workload/workload.py").write_text(SOURCE.format(name="workload", objects=OBJECTS, folders="[]", copies=False))
    with made(kind) as path:
        if kind != "missing":
            os.rename(path, f"workload/{OBJECTS}")
        with pytest.raises(
            RungError, match=OBJECTS if kind not in ("empty", "unreadable") else "could not be imported"
        ):
            load("workload/workload.py:workload")


@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_comes_through_a_pipe(packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    data = gzip.compress(TRACE) if packed else TRACE
    writer = threading.Thread(target=lambda: path.write_bytes(data))
    writer.start()
    trace = read(path)
    writer.join()
    assert trace.events.height == 2
    assert trace.source == str(path)


def test_what_comes_through_a_pipe_is_limited_and_named_as_the_pipe(tmp_path: Path) -> None:
    for data, most, said in ((TRACE, 20, "more than 20 bytes"), (b"no trace", 1000, f"{tmp_path / 'pipe'} is not")):
        path = tmp_path / "pipe"
        os.mkfifo(path)
        writer = threading.Thread(target=lambda data=data, path=path: path.write_bytes(data))  # type: ignore[misc]
        writer.start()
        with pytest.raises(InputError, match=said):
            read(path, max_bytes=most)
        writer.join()
        path.unlink()


def test_a_query_reads_what_a_shell_substitutes(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(TRACE)
    rung = f"PYTHONPATH={Path(main.__code__.co_filename).parents[2]} {sys.executable} -m rung.cli.main query"
    for text in (f'{rung} <(cat t.json) "select count(*) as n from events" --csv -', f"cat t.json | {rung} /dev/stdin 'select count(*) as n from events' --csv -"):  # fmt: skip
        done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)
        assert done.stdout == "n\n2\n", done.stderr


BOMBS = {
    "a name": (b'{"traceEvents":[{"ph":"X","name":"', b"a", b""),
    "spaces": (b'{"traceEvents":[', b" ", b""),
    "spaces before all": (b"{", b" ", b""),
    "a value before the events": (b'{"schemaVersion":1,"x":"', b"a", b""),
    "a value after the events": (b'{"traceEvents":[],"x":"', b"a", b""),
    "a packet": (b"\x0a\xff\xff\xff\xff\x0f\x40\x01\x5a\xf0\xff\xff\xff\x0f", b"\x00", b""),
}


@pytest.mark.parametrize("name", BOMBS)
def test_one_value_that_does_not_end_is_refused_early(name: str, tmp_path: Path) -> None:
    start, unit, end = BOMBS[name]
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(start)
        for _ in range(3 * MAX_VALUE >> 20):
            file.write(unit * (1 << 20))
        file.write(end)
    with pytest.raises(InputError, match="raise --max-bytes"):
        read(path)


@pytest.mark.parametrize("partial", [False, True])
def test_a_trace_nested_more_deeply_than_can_be_read_is_refused_early(partial: bool, tmp_path: Path) -> None:
    path = tmp_path / "deep.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(TRACE[:-2] + b",")
        for _ in range(MAX_VALUE >> 19):
            file.write(b"[" * (1 << 20))
    begun = time.process_time()
    with pytest.raises(InputError, match="raise --max-bytes"):
        read(path, partial=partial)
    assert time.process_time() - begun < 5  # to look for its end took ten times as long


def test_the_option_raises_every_limit(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.touch()
    assert (Source(path).max_value, Source(path).max_events) == (MAX_VALUE, MAX_EVENTS)
    assert Source(path, max_bytes=10).max_value == MAX_VALUE
    assert Source(path, max_bytes=8 << 30).max_value == 2 * MAX_VALUE


def test_too_many_events_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rung.trace.source.MAX_EVENTS", 10_000)
    path = tmp_path / "t.json"
    path.write_bytes(b'{"traceEvents":[' + b",".join([b'{"ph":"X","ts":1,"dur":1}'] * 60_000) + b"]}")
    with pytest.raises(InputError, match=r"more than 10,000 events: raise --max-bytes"):
        read(path)


@pytest.mark.parametrize("text", ["0", "-1", "x", "1X", "", "1e9", "nan", "९"])
def test_a_size_that_is_none_is_a_sentence(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.json").write_bytes(TRACE)
    assert main(["analyze", "t.json", f"--max-bytes={text}"]) == 2
    assert "is not a size" in capsys.readouterr().err


def test_sizes_have_units(capsys: pytest.CaptureFixture[str]) -> None:
    Path("t.json").write_bytes(TRACE + b" " * 4000)
    assert main(["analyze", "t.json", "--max-bytes", "1K"]) == 3
    assert "more than 1,024 bytes" in capsys.readouterr().err
    assert main(["analyze", "t.json", "--max-bytes", "1.5 MiB"]) == 0


def test_no_memory_is_a_sentence_of_every_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("rung.cli.analyze.opened", full)
    assert main(["analyze", "t.json", "--json"]) == 3
    said = capsys.readouterr()
    assert "not enough memory" in said.err
    assert json.loads(said.out)["exit_code"] == 3
