"""Real operations on this CPU, however noisy it is: a chain of matrix products against itself, and against one with 2 %
more of them. Each trial is a `rung.compare` of two callables with at most five seconds of timing.

python benchmarks/measurement/real_ops.py [--trials 40] [--seconds 5]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

import torch

import rung
from rung.hardware.device import cpu
from rung.hardware.state import state

PRODUCTS = 50


DATA = torch.randn(64, 64), torch.randn(64, 64), torch.empty(64, 64)


def chain(products: int) -> Callable[[], None]:
    """So many products of 64 x 64, all on the same data: where other data would lie in memory is a difference, too."""
    a, b, out = DATA

    def run() -> None:
        for _ in range(products):
            torch.mm(a, b, out=out)

    return run


def blocked(a: Callable[[], None], b: Callable[[], None]) -> str:
    """torch.utils.benchmark on one and then on the other, and the 1 % that its Compare believes."""
    from torch.utils.benchmark import Timer

    times = [Timer("f()", globals={"f": f}).blocked_autorange(min_run_time=0.2).median for f in (a, b)]
    return "slower" if times[1] > 1.01 * times[0] else "faster" if times[1] < 0.99 * times[0] else "same"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = cpu()
    print(
        f"{device.name}, {os.cpu_count()} cores, torch {torch.__version__}, load before {state(device)[1].get('load')}\n"
    )
    print("| | B is | called slower | called faster | same | seconds timed, median |\n|---|---|---|---|---|---|")
    for extra in (0, 1):
        theirs, ours, seconds = [], [], []
        for _ in range(options.trials):
            a, b = chain(PRODUCTS), chain(PRODUCTS + extra)
            theirs.append(blocked(a, b))
            began = time.perf_counter()
            ours.append(rung.compare(a, b, seconds=options.seconds, device="cpu").verdict)
            seconds.append(time.perf_counter() - began)
        what = f"{extra / PRODUCTS:.0%} slower" if extra else "A again"
        for name, said, took in (
            ("torch blocked_autorange, 1 %", theirs, "0.4"),
            ("**rung.compare**", ours, f"{statistics.median(seconds):.1f}"),
        ):
            cells = [f"{statistics.fmean(v == verdict for v in said):.0%}" for verdict in ("slower", "faster", "same")]
            print(f"| {name} | {what} | {' | '.join(cells)} | {took} |", flush=True)
    print(f"\nload after {state(device)[1].get('load')}")


if __name__ == "__main__":
    main()
