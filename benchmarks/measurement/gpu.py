"""What each way of timing says of short kernels on a GPU, whose truth is known; flushes; 2 % in a chain of products.

    python benchmarks/measurement/gpu.py [--trials 20] [--only kernels,flush,chain]

Truth is the slope between graphs of 1,000 and of 2,000 launches, taken here and not by Rung's timer. Prints Markdown.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
import rung
from rung.hardware import pick
from rung.hardware.sensors import identity, sensor_for
from rung.measure.timers import last_level_cache
from rung.measure.without_launch import Graph

Call = Callable[[], object]


def pair() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def spans(calls: list[Call]) -> list[float]:
    """Microseconds of each of these, between events in one queue."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]
    marks[0].record()
    for call, mark in zip(calls, marks[1:], strict=True):
        call()
        mark.record()
    torch.cuda.synchronize()
    return [1e3 * a.elapsed_time(b) for a, b in pairwise(marks)]


def recorded(call: Call, times: int) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    return graph


def truth(call: Call) -> float:
    small, large = recorded(call, 1000), recorded(call, 2000)
    spans([small.replay, large.replay] * 5)
    found = spans([small.replay, large.replay] * 40)
    return (statistics.median(found[1::2]) - statistics.median(found[0::2])) / 1000


def event_pairs(call: Call, before: Call = lambda: None) -> float:
    pairs = [pair() for _ in range(200)]
    for begin, end in pairs:
        before()
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(1e3 * a.elapsed_time(b) for a, b in pairs)


def batch(call: Call, blocked: bool = False) -> float:
    found = []
    for _ in range(20):
        begin, end = pair()
        if blocked:
            torch.cuda._sleep(3_000_000)
        begin.record()
        for _ in range(100):
            call()
        end.record()
        torch.cuda.synchronize()
        found.append(10 * begin.elapsed_time(end))
    return statistics.median(found)


def triton_do_bench(call: Call, graph: bool) -> float:
    try:
        from triton import testing
    except ImportError:
        return float("nan")
    if graph:
        with torch.cuda.stream(torch.cuda.Stream()):
            return 1e3 * testing.do_bench_cudagraph(call)
    return 1e3 * testing.do_bench(call)


def torch_timer(call: Call) -> float:
    from torch.utils.benchmark import Timer

    return 1e6 * Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=0.2).median


def kernels() -> None:
    one, big = torch.zeros(1, device="cuda"), torch.empty(256 << 18, device="cuda")
    subjects: dict[str, Call] = {"add_ of one value": lambda: one.add_(1), "spin of 10,000": lambda: torch.cuda._sleep(10_000)}  # fmt: skip
    ways: dict[str, Callable[[Call], float]] = {
        "event pair around each call, median": event_pairs,
        "the same behind a 256 MiB flush": lambda call: event_pairs(call, big.zero_),
        "100 calls in one event pair": batch,
        "the same behind a spinning kernel": lambda call: batch(call, blocked=True),
        "torch.utils.benchmark.Timer, blocked": torch_timer,
        "triton.testing.do_bench": lambda call: triton_do_bench(call, graph=False),
        "triton.testing.do_bench_cudagraph": lambda call: triton_do_bench(call, graph=True),
    }
    print("\nIn brackets: how far off the truth, as it was taken right before.")
    print(f"\n| how it is timed | {' | '.join(f'{name} (µs) | truth' for name in subjects)} |\n|---|---|---|---|---|")

    def row(title: str, way: Callable[[Call], float]) -> None:
        cells = []
        for call in subjects.values():
            true = truth(call)
            said = way(call)
            cells.append(f"{said:.3f} ({said / true - 1:+.1%}) | {true:.3f}")
        print(f"| {title} | {' | '.join(cells)} |")

    for title, way in ways.items():
        row(title, way)
    for k in range(5):
        row(f"rung.bench, run {k + 1}", lambda call: rung.bench(call, seconds=5).median / 1e3)
    print("\n" + str(rung.bench(subjects["add_ of one value"], name="add_ of one value", seconds=5)))


def flushes() -> None:
    """Cold time of a copy by the size of what is written before it."""
    device = pick()
    cache = last_level_cache(device)
    sizes = (4, 64, 400)
    print(f"\nlast cache before the memory: {cache >> 20} MiB\n\n| written before each call | " + " | ".join(f"copy of {s} MiB (µs)" for s in sizes) + " |\n|---|---|---|---|")  # fmt: skip
    copies = {}
    for size in sizes:
        source = torch.randn(size << 18, device="cuda")
        target = torch.empty_like(source)
        copies[size] = lambda source=source, target=target: target.copy_(source)
    for times in (0, 0.5, 1, 2, 4, 10):
        buffer = torch.empty(max(1, int(times * cache) // 4), device="cuda")
        cells = []
        for call in copies.values():
            timer = Graph(call, device, buffer.zero_ if times else None)
            cells.append(f"{statistics.median(timer.block(30).samples) / 1e3:.2f}")
        print(f"| {f'{times} x the cache' if times else 'nothing (hot)'} | {' | '.join(cells)} |")


def chain(trials: int) -> None:
    """A chain of products against itself, and against one that is 2 % longer."""
    a, b = (torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) / 32 for _ in range(2))
    work, out = [a, a.clone()], torch.empty_like(a)

    def products(count: int) -> Call:
        def run() -> None:
            for k in range(count):
                torch.mm(work[k % 2], b, out=out)

        return run

    print("\n| chain of bf16 products of 1024 | verdicts in " + f"{trials} runs | ratio, median (lowest – highest) | seconds a run |\n|---|---|---|---|")  # fmt: skip
    for title, longer in (("100 against 100", 100), ("100 against 102", 102)):
        said, ratios, begin = [], [], time.perf_counter()
        for _ in range(trials):
            found = rung.compare(products(100), products(longer), seconds=6)
            said.append(found.verdict)
            ratios.append(found["comparison"]["speedup"]["value"])
        took = (time.perf_counter() - begin) / trials
        verdicts = ", ".join(f"{said.count(v)} {v}" for v in dict.fromkeys(said))
        print(f"| {title} | {verdicts} | {statistics.median(ratios):.4f} ({min(ratios):.4f} – {max(ratios):.4f}) | {took:.1f} |", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--only", default="kernels,flush,chain")
    options = parser.parse_args()
    device = pick()
    sensor = sensor_for(identity(device))
    reading = sensor.read() if sensor else None
    print(f"{device.name}, torch {torch.__version__}; at the start: {reading}")
    wanted = options.only.split(",")
    if "kernels" in wanted:
        kernels()
    if "flush" in wanted:
        flushes()
    if "chain" in wanted:
        chain(options.trials)
    print(f"\nat the end: {sensor.read() if sensor else None}")


if __name__ == "__main__":
    main()
