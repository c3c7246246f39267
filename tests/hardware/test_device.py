"""Devices and settings by name."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from rung.errors import UsageError
from rung.hardware import environment, pick
from rung.hardware.device import matmul_precision_name, peak_resident, recording


@pytest.mark.parametrize("wanted", ["cudax", "cuda:", "cuda:x", "cuda:-1", "cuda1", "mps", ""])
def test_a_device_that_is_none_is_unknown(wanted: str) -> None:
    with pytest.raises(UsageError, match="unknown device"):
        pick(wanted)


@pytest.fixture
def precision_put_back() -> Iterator[None]:
    yield
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")


@pytest.mark.usefixtures("precision_put_back")
@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="this torch has one API only")
def test_the_precision_has_a_name_whichever_api_set_it() -> None:
    for older in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(older)
        assert matmul_precision_name() == older
    torch.set_float32_matmul_precision("highest")
    for newer, name in (("tf32", "high"), ("ieee", "highest")):
        torch.backends.cuda.matmul.fp32_precision = newer
        assert matmul_precision_name() == name
        assert environment(pick("cpu"))["float32_matmul_precision"] == name


def test_a_capture_that_is_broken_off_leaves_stream_and_random_numbers_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a stand-in for torch.cuda, whose graph raises at its end, as torch's does, with its own stream still the current one."""
    state = SimpleNamespace(stream="before", generators=[SimpleNamespace(clone_state=lambda: "own")])

    class Broken:
        def __init__(self, graph: object, stream: str, **_: str) -> None:
            state.stream = stream

        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            raise RuntimeError("the capture was invalidated")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: state.stream)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: setattr(state, "stream", stream))
    monkeypatch.setattr(torch.cuda, "graph", Broken)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    kept: list[str] = []
    state.generators[0].graphsafe_set_state = kept.append
    monkeypatch.setattr(torch.cuda, "default_generators", state.generators)
    gpu = SimpleNamespace(index=0, is_gpu=True, torch_name="cuda:0")
    with pytest.raises(RuntimeError, match="invalidated"), recording("graph", "side", gpu):  # type: ignore[arg-type]
        assert state.stream == "side"
    assert (state.stream, kept) == ("before", ["own"])


def test_what_other_threads_do_does_not_end_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader's thread that pins memory: in torch's default mode its call would fail, and the capture with it."""
    told: list[dict[str, object]] = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: None)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **named: told.append(named) or contextlib.nullcontext())
    gpu = SimpleNamespace(index=0, is_gpu=True)
    with recording("graph", "side", gpu):  # type: ignore[arg-type]
        pass
    assert told == [{"stream": "side", "capture_error_mode": "thread_local"}]


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="Linux alone tells the peak of this program only")
def test_a_small_process_that_a_large_one_starts_has_a_small_peak() -> None:
    child = "import resource, sys\nsys.path = sys.argv[1:]\nfrom rung.hardware.device import peak_resident\nprint(peak_resident())"
    large = f"import subprocess, sys\nx = b'1' * 2**30\nsubprocess.run([sys.executable, '-c', {child!r}, *sys.path], check=True)"
    done = subprocess.run([sys.executable, "-c", large], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2**30
    assert peak_resident() > 2**20
