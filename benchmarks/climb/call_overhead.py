"""What a call of an applied recipe costs beside plain torch.compile: both in one process, in alternating blocks.

    python benchmarks/climb/call_overhead.py --out overhead.json

The model is small, so that the call path is a large share of a call: a few linear layers, some 50 µs on a CPU. Both sides have the same
weights. The plain side is what a user would write: `torch.compile(model)`, with autocast around the call where the recipe has `bf16`. Times
are CPU time of the calling thread, which other processes do not lengthen; on a GPU that is the time to launch. Blocks alternate A B B A.
Each quad gives one ratio and one difference, and the intervals are of their medians (signed ranks, 95 %).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import rung
from rung.measure.stats import Interval, signed_rank_interval

ALLOWED = 2.0  # microseconds
CASES = {
    "inference": (("compile",), False),
    "inference, bf16": (("compile", "bf16"), False),
    "with gradients": (("compile",), True),
    "with gradients, bf16": (("compile", "bf16"), True),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--quads", type=int, default=200)
    parser.add_argument("--calls", type=int, default=200, help="of a block")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = [measured(name, given.quads, given.calls) for name in given.cases or CASES]
    print(table(found))
    if given.out:
        given.out.write_text(json.dumps({"torch": torch.__version__, "cases": found}, indent=1))
    return 0


def measured(name: str, quads: int, calls: int) -> dict[str, Any]:
    """Microseconds a call of both sides, their ratio and their difference."""
    rungs, grad = CASES[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.ReLU()))).eval().to(device)
    x = torch.randn(8, 64, device=device)
    plain = torch.compile(copy.deepcopy(model))

    def under_autocast(x: torch.Tensor) -> Any:
        with torch.autocast(device, dtype=torch.bfloat16):
            return plain(x)

    sides: list[Callable[[torch.Tensor], Any]] = [
        under_autocast if "bf16" in rungs else plain,
        rung.apply(model, rungs),
    ]
    with contextlib.nullcontext() if grad else torch.no_grad():
        for side in sides:
            for _ in range(20):
                side(x)
        blocks = [[block(sides[which], x, calls) for which in (0, 1, 1, 0)] for _ in range(quads)]
    ratios = [math.log((b + c) / (a + d)) for a, b, c, d in blocks]
    differences = [(b + c - a - d) / 2 for a, b, c, d in blocks]
    logs, difference = signed_rank_interval(ratios, 0.95), signed_rank_interval(differences, 0.95)
    return {
        "case": name,
        "rungs": rungs,
        "plain": signed_rank_interval([(a + d) / 2 for a, _, _, d in blocks], 0.95).as_dict(),
        "applied": signed_rank_interval([(b + c) / 2 for _, b, c, _ in blocks], 0.95).as_dict(),
        "ratio": Interval(*(math.exp(end) for end in (logs.value, logs.low, logs.high))).as_dict(),
        "difference": difference.as_dict(),
        "allowed": difference.high <= ALLOWED,
    }


def block(side: Callable[[torch.Tensor], Any], x: torch.Tensor, calls: int) -> float:
    """Microseconds of CPU time a call."""
    if x.is_cuda:
        torch.cuda.synchronize()
    begun = time.thread_time_ns()
    for _ in range(calls):
        side(x)
    return (time.thread_time_ns() - begun) / calls / 1e3


def table(found: list[dict[str, Any]]) -> str:
    lines = [
        "| case | torch.compile, µs | rung.apply, µs | ratio | difference, µs | at most 2 µs |",
        "|---|---|---|---|---|---|",
    ]
    for case in found:
        ratio, more = case["ratio"], case["difference"]
        lines.append(
            f"| {case['case']} | {case['plain']['value']:.1f} | {case['applied']['value']:.1f} "
            f"| {ratio['value']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f}) "
            f"| {more['value']:+.1f} ({more['low']:+.1f} to {more['high']:+.1f}) | {'yes' if case['allowed'] else 'no'} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
