"""What `rung.watch` costs a training loop: the same loop with and without it, in alternating blocks of one process.

    python benchmarks/measurement/watch.py

The loop trains a small model under DistributedDataParallel, one rank of gloo. Two things are measured:

- what is added to each step, marks and hooks: short blocks with and without them alternate A B B A. On a CPU, times are CPU time of the loop's
  thread, which other processes do not lengthen; on a GPU, wall time from one synchronization to the next. Each quad gives one ratio and one
  difference. The intervals are of their medians (signed ranks, 95 %).
- what a line costs the thread that writes it, in a process that does nothing else. By default there is one in five seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rung
from rung.hardware import pick
from rung.measure.stats import Interval, signed_rank_interval
from rung.watching.pace import Pace
from rung.watching.sampler import EVERY

OFTEN = 0.05  # seconds between two lines, where what one costs is measured
WIDTHS = (64, 256, 768)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quads", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a block")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(f"{folder}/store", 1)
        dist.init_process_group("nccl" if gpu else "gloo", store=store, rank=0, world_size=1)
        found = [measured(width, given.quads, given.seconds) for width in WIDTHS]
        dist.destroy_process_group()
        line = line_cost(Path(folder) / "lines")
    print(table(found))
    print(f"a line: {1e3 * line:.2f} ms of CPU time, {line / EVERY:.3%} of a core with one in {EVERY:g} s")
    if given.out:
        given.out.write_text(
            json.dumps({"torch": torch.__version__, "gpu": gpu, "line": line, "cases": found}, indent=1)
        )
    return 0


def measured(width: int, quads: int, seconds: float) -> dict[str, Any]:
    """Microseconds a step of both sides, their ratio and their difference."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layers = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
    loop = Loop(DistributedDataParallel(nn.Sequential(*layers).to(device)), torch.randn(32, width, device=device))
    loop.block(20)
    steps = max(2, round(seconds / loop.block(50)))

    def block(watched: int) -> float:
        if not watched:
            return loop.block(steps)
        pace = Pace(pick(str(loop.x.device)), loop.model)
        try:
            for _ in range(3):  # after which it knows how short the steps are, and how many of them to time
                loop.block(2, pace)
            return loop.block(steps, pace)
        finally:
            pace.close()

    blocks = [[1e6 * block(watched) for watched in (0, 1, 1, 0)] for _ in range(quads)]
    logs = signed_rank_interval([math.log((b + c) / (a + d)) for a, b, c, d in blocks], 0.95)
    difference = signed_rank_interval([(b + c - a - d) / 2 for a, b, c, d in blocks], 0.95)
    return {
        "width": width,
        "plain": signed_rank_interval([(a + d) / 2 for a, _, _, d in blocks], 0.95).as_dict(),
        "ratio": Interval(*(math.exp(end) for end in (logs.value, logs.low, logs.high))).as_dict(),
        "difference": difference.as_dict(),
    }


def line_cost(folder: Path, seconds: float = 5.0) -> float:
    """Seconds of CPU time."""
    with rung.watch(folder=folder, every=OFTEN):
        time.sleep(1)
        begun = time.process_time()
        time.sleep(seconds)
        return (time.process_time() - begun) / (seconds / OFTEN)


class Loop:
    def __init__(self, model: DistributedDataParallel, x: torch.Tensor) -> None:
        self.model, self.x = model, x
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def block(self, steps: int, pace: Pace | None = None) -> float:
        """Seconds a step."""
        begun = self._now()
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(self.x).square().mean().backward()
            self.optimizer.step()
            if pace is not None:
                pace.step()
        return (self._now() - begun) / steps

    def _now(self) -> float:
        if not self.x.is_cuda:
            return time.thread_time()
        torch.cuda.synchronize()
        return time.perf_counter()


def table(found: list[dict[str, Any]]) -> str:
    lines = ["| width | a step without | with / without | more a step |", "|---|---|---|---|"]
    for case in found:
        ratio, more = case["ratio"], case["difference"]
        lines.append(
            f"| {case['width']} | {case['plain']['value'] / 1e3:.2f} ms | {ratio['value']:.4f} ({ratio['low']:.4f} to {ratio['high']:.4f}) "
            f"| {more['value']:+.1f} µs ({more['low']:+.1f} to {more['high']:+.1f}) |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
