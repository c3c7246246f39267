"""Linear layers of one row (GEMV), as decoding has them, on the GPU at hand: cuBLAS or hipBLAS, Inductor and Rung's kernel.

    python benchmarks/kernels/gemv.py [--sweep 40] [--inductor 10]

Time and bandwidth count the weight, read once. Calls cycle through copies of it that together are larger than any cache, and are
recorded in one graph, so that neither a cache nor the host has a part in the time. Errors are the largest against float64, relative to the
root mean square of the result. Inductor compiles with coordinate descent, which for one row writes a kernel of its own; it is left out once it
took the seconds of --inductor. --sweep: for so many seconds, blocks and warps that `rung.kernels.configs.gemv` could choose, and the
quickest five of a shape. bfloat16; prints Markdown.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
from gpu import or_failed

from rung import kernels
from rung.hardware import pick
from rung.kernels import configs
from rung.measure.clock import repeat
from rung.measure.without_launch import recorded

Linear = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
DEVICE = pick()
CACHED = 320e6  # bytes that no cache holds
RECORDED = 4e9  # bytes that the calls of a graph read
# outputs, inputs: qkv, o, gate and up, down and head of Llama-3.2-1B; the layers of Llama-3-8B
SHAPES = (
    (3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192), (128256, 2048),
    (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336),
)  # fmt: skip


class Layer:
    """A weight, of which there are as many copies as no cache holds."""

    def __init__(self, n: int, k: int) -> None:
        self.n, self.k = n, k
        self.x = torch.randn(1, k, device="cuda", dtype=torch.bfloat16)
        first = torch.randn(n, k, device="cuda", dtype=torch.bfloat16) / k**0.5
        copies = 1 + int(CACHED // first.nbytes)
        self._weights = [first, *(first.clone() for _ in range(copies))]
        self._truth = F.linear(self.x.double(), first.double())

    def __str__(self) -> str:
        return f"{self.n} x {self.k}"

    def microseconds(self, linear: Linear, samples: int = 15) -> float:
        """Of a call: the median of replays of one graph, whose calls read as much as takes a millisecond."""
        weights, calls = itertools.cycle(self._weights), max(4, int(RECORDED / self._weights[0].nbytes))

        def step() -> torch.Tensor:
            return linear(self.x, next(weights))

        graph = recorded(step, lambda: repeat(calls, step), DEVICE)
        graph.replay()  # the first one uploads it
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(samples + 1)]
        for mark in marks[:-1]:
            mark.record()
            graph.replay()
        marks[-1].record()
        torch.cuda.synchronize()
        return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(marks)) * 1e3 / calls

    def error(self, linear: Linear) -> float:
        off = linear(self.x, self._weights[0]).double() - self._truth
        return float(off.abs().max() / self._truth.square().mean().sqrt())

    def cells(self, linear: Linear) -> list[str]:
        spent = self.microseconds(linear)
        return [f"{spent:.2f}", f"{self._weights[0].nbytes / spent / 1e3:.0f}", f"{self.error(linear):.1e}"]


def compiled() -> Linear:
    torch.compiler.reset()
    return torch.compile(
        lambda x, weight: F.linear(x, weight), dynamic=False, options={"coordinate_descent_tuning": True}
    )


def compare(layer: Layer, inductor: float) -> float:
    """A line of the table; the seconds that are left of Inductor's."""
    lines = [or_failed(lambda linear=linear: layer.cells(linear), str(layer)) for linear in (F.linear, kernels.gemv)]
    begin = time.perf_counter()
    lines.insert(1, or_failed(lambda: layer.cells(compiled()), f"{layer}, Inductor") if inductor > 0 else ["", "", ""])
    cells = [cell for line in lines for cell in line or ["failed", "", ""]]
    print(f"| {layer} | {' | '.join(cells)} |", flush=True)
    return inductor - (time.perf_counter() - begin)


def choices(k: int) -> Iterator[dict[str, Any]]:
    """Sensible ones: 4 or 8 loads of 16 bytes a thread."""
    for block, rows, warps in itertools.product((2048, 4096, 1024), (1, 2, 4), (4, 2, 8)):
        if block <= configs.power_of_2(k) and rows * block / (8 * 32 * warps) in (4, 8):
            yield {"BLOCK_N": rows, "BLOCK_K": block, "num_warps": warps, "num_stages": 1}


def sweep(layer: Layer, seconds: float) -> None:
    """The quickest five, of those that fit the time."""
    begin, found = time.perf_counter(), []
    todo = list(choices(layer.k))
    for choice in todo:
        if time.perf_counter() - begin > seconds:
            break
        with mock.patch.object(configs, "gemv", lambda *_, choice=choice: dict(choice)):
            spent = or_failed(lambda: layer.microseconds(kernels.gemv, 5), f"{layer}, {choice}")
        if spent is not None:
            found.append((spent, choice))
    for spent, choice in sorted(found, key=lambda one: one[0])[:5]:
        sizes = " | ".join(str(choice[name]) for name in ("BLOCK_N", "BLOCK_K", "num_warps"))
        print(f"| {layer} | {sizes} | {spent:.2f} | {len(found)} of {len(todo)} |", flush=True)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweep", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--inductor", type=float, default=10.0, metavar="SECONDS")
    given = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| outputs x inputs | library, us | GB/s | error | Inductor, us | GB/s | error | Rung, us | GB/s | error |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    left = given.inductor
    for shape in SHAPES:
        left = compare(Layer(*shape), left)
    if given.sweep:
        print("\n| outputs x inputs | BLOCK_N | BLOCK_K | warps | us | tried |\n|---|---|---|---|---|---|")
        end = time.perf_counter() + given.sweep
        for at, shape in enumerate(SHAPES):
            sweep(Layer(*shape), (end - time.perf_counter()) / (len(SHAPES) - at))


if __name__ == "__main__":
    main()
