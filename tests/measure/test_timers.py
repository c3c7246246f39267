"""Timers: what they say of calls of known length, and what they refuse."""

from __future__ import annotations

import statistics
import time
from typing import Any

import pytest
import torch

from rung.errors import UsageError
from rung.hardware import pick
from rung.hardware.device import Device
from rung.measure.as_launched import Clock
from rung.measure.clock import leaves_idle
from rung.measure.timers import LEAST, TIMES, Flush, choose, flush_for, last_level_cache, timer_for

CPU = Device("cpu", 0, "cpu", "a CPU", "x86_64", 1 << 30, 1)
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("wanted", ["graph", "batch", "events"])
def test_a_cpu_has_one_timer(wanted: str) -> None:
    with pytest.raises(UsageError, match="on a CPU there is one timer"):
        timer_for(lambda: None, CPU, wanted)


def test_an_unknown_timer_is_named() -> None:
    with pytest.raises(UsageError, match="no timer 'stopwatch'; there are auto, events, graph, batch"):
        timer_for(lambda: None, CPU, "stopwatch")


def test_a_cold_call_is_timed_without_its_flush() -> None:
    order: list[str] = []

    def flush() -> None:
        time.sleep(0.01)
        order.append("flush")

    block = Clock(lambda: order.append("call"), CPU, flush).block(8)
    assert order == ["flush", "call"] * 8
    assert block.calls == 8
    assert min(block.samples) < 5e6  # the flush alone takes twice as long, every time


def test_what_is_written_between_calls_is_twice_the_last_cache() -> None:
    flush = flush_for(CPU)
    assert isinstance(flush, Flush)
    assert flush.size == max(LEAST, TIMES * last_level_cache(CPU))
    flush()


def test_the_record_says_how_it_was_timed() -> None:
    timer, facts = choose(lambda: time.sleep(0.002), CPU, "auto", False)
    assert timer.name == facts["name"] == "clock"
    assert facts["cold"] is None
    assert facts["sample_ns"] > 1.9e6
    assert choose(lambda: None, CPU, "auto", True)[1]["cold"] >= LEAST


def test_a_call_that_is_known_to_be_slow_is_not_made_to_plan_with() -> None:
    called: list[None] = []
    timer, facts = choose(lambda: called.append(None), CPU, "auto", False, known=2e9)
    assert (timer.name, facts["sample_ns"], called) == ("clock", 2e9, [])


def slope(call: Any) -> float:
    """Nanoseconds a call: graphs of 1,000 and 2,000 launches, the textbook way."""
    graphs = []
    for count in (1000, 2000):
        with torch.cuda.stream(torch.cuda.Stream()):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                call()
        graphs.append(graph)
    found: list[list[float]] = [[], []]
    for _ in range(30):
        for graph, spans in zip(graphs, found, strict=True):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            spans.append(1e6 * begin.elapsed_time(end))
    small, large = (statistics.median(spans) for spans in found)
    return (large - small) / 1000


@gpu
@pytest.mark.parametrize("what", ["add", "spin"])
def test_a_short_kernel_is_timed_without_its_launch(what: str) -> None:
    x = torch.zeros(1, device="cuda")
    call = {"add": lambda: x.add_(1), "spin": lambda: torch.cuda._sleep(10_000)}[what]
    device = pick()
    true = [slope(call)]
    timer = timer_for(call, device)
    said = statistics.median(timer.block(30).samples)
    true.append(slope(call))
    assert timer.name == "graph"
    assert 0.97 * min(true) < said < 1.03 * max(true)
    assert 0.5 * said < statistics.median(timer_for(call, device, "batch").block(5).samples) < 20 * said


@gpu
@pytest.mark.parametrize(
    ("what", "idle"),
    [("nothing", True), ("sleep", True), ("in place", False), ("other stream", False), ("waits", False)],
)
def test_whether_calls_leave_the_gpu_idle_is_told(what: str, idle: bool) -> None:
    x, other = torch.zeros(1000, device="cuda"), torch.cuda.Stream()

    def elsewhere() -> torch.Tensor:
        with torch.cuda.stream(other):
            return x + 1

    call = {
        "nothing": lambda: None,
        "sleep": lambda: time.sleep(0.002),
        "in place": lambda: x.add_(1),
        "other stream": elsewhere,
        "waits": lambda: x.sum().item(),
    }[what]
    call()
    assert all(leaves_idle(call, pick("cuda:0")) == idle for _ in range(5))


@gpu
def test_a_call_that_launches_nothing_takes_a_time_that_can_be_divided_by() -> None:
    samples = timer_for(lambda: None, pick("cuda"), "graph").block(20).samples
    assert all(0 < sample < 100 for sample in samples)


@gpu
def test_what_cannot_be_captured_is_timed_as_it_comes() -> None:
    x = torch.zeros(1, device="cuda")
    with pytest.raises(UsageError, match="cannot be recorded as a graph"):
        timer_for(lambda: x.item(), pick(), "graph")
    assert timer_for(lambda: x.item(), pick()).name == "batch"


@gpu
def test_random_numbers_go_on_after_a_recording_that_failed() -> None:
    x = torch.zeros(8, device="cuda")
    torch.manual_seed(5)
    expected = [torch.rand_like(x) for _ in range(2)][1]
    torch.manual_seed(5)
    torch.rand_like(x)
    with pytest.raises(UsageError, match="cannot be recorded as a graph"):
        timer_for(lambda: x.item(), pick(), "graph")
    assert torch.equal(torch.rand_like(x), expected)
    again = timer_for(lambda: torch.rand_like(x), pick(), "graph")
    assert again.block(2).samples


@gpu
def test_a_cold_copy_takes_longer_than_a_hot_one() -> None:
    source = torch.randn(1 << 20, device="cuda")
    target = torch.empty_like(source)
    hot, cold = (
        statistics.median(choose(lambda: target.copy_(source), pick(), "graph", c)[0].block(20).samples)
        for c in (False, True)
    )
    assert cold > 1.2 * hot
