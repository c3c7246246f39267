"""The built-in transformer under whole stacks of rungs, beside the untouched one:

    PYTHONPATH=src python benchmarks/ladder/tiny.py rank --out tiny
    PYTHONPATH=src python benchmarks/ladder/tiny.py table --out tiny

All sides of all rows are loaded and compiled at once and timed in alternating blocks (ranked.py), so that one restart
serves the whole table; by their peaks and contexts all of them need some 65 GiB of GPU memory so. OUT/tiny.json is written after every restart.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ranked import FALSE_ALARMS, MARGIN, Ranked, allocated, restart_of, variables

from rung.measure import judge
from rung.side import Limits, Setup, Side

TARGET = "tiny-transformer"
REWRITES = "sdpa,hoisted-constants,fused-qkv,fused-gate-up"
STEP = "compile,fused-optimizer,capture"
BF16 = f"bf16,{STEP},{REWRITES},bf16-stream"
ROTATED = f"{BF16},float32-gradients,triton-rope"
JOINED = f"{ROTATED},foreach-weight-casts,fused-dgrad"
TF32 = f"tf32,{STEP},hoisted-constants,fused-qkv,fused-gate-up,triton-rope,fused-dgrad,k-major-wgrad"
ROWS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "medium, training": ({"size": "medium"}, {
        "bf16, gradients joined": JOINED,
        "bf16, gradients joined, recompute": f"{JOINED},recompute",
        "tf32": f"{TF32},tf32-attention",
        "tf32, FlexAttention": f"{TF32},flex-for-sdpa",
        "tf32, attention by hand": TF32,
    }),
    "small, training": ({"size": "small"}, {
        "bf16, gradients joined": JOINED,
        "bf16, gradients joined, early": f"{JOINED},pdl",
    }),
    "medium, inference": ({"size": "medium", "mode": "infer"}, {
        "bf16": f"bf16,compile,capture,{REWRITES},bf16-stream",
        "bf16, casts": f"bf16,compile,capture,{REWRITES},bf16-stream,foreach-weight-casts",
        "bf16, weights kept": f"bf16,compile,capture,{REWRITES},bf16-stream,bf16-weights",
    }),
    "small, inference": ({"size": "small", "mode": "infer"}, {
        "bf16": f"bf16,compile,capture,{REWRITES},bf16-stream",
        "bf16, casts": f"bf16,compile,capture,{REWRITES},bf16-stream,foreach-weight-casts",
        "bf16, weights kept": f"bf16,compile,capture,{REWRITES},bf16-stream,bf16-weights",
    }),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("rank", "table"))
    parser.add_argument("--out", type=Path, default=Path("tiny"), help="where results are kept")
    parser.add_argument("--only", default="", help="rows whose names begin so")
    parser.add_argument("--restarts", type=int, default=3, metavar="N", help="of every side (default: 3)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no restart after so many seconds")
    parser.add_argument("--deadline", type=float, default=300.0, help="seconds for a side to load, compile and warm up")
    parser.add_argument("--held", type=int, help="workers loaded at once (default: all)")
    parser.add_argument("--device")
    given = parser.parse_args()
    path = given.out / "tiny.json"
    if given.do == "table":
        print(table(json.loads(path.read_text())))
        return 0
    sides = {}
    for row, (options, stacks) in ROWS.items():
        if row.startswith(given.only):
            sides[f"{row}: untouched"] = Side(TARGET, options)
            sides |= {
                f"{row}: {name}": Side(TARGET, options, tuple(rungs.split(","))) for name, rungs in stacks.items()
            }
    end = time.monotonic() + given.seconds
    ranked = Ranked(path, sides, lambda text: print(text, file=sys.stderr, flush=True))
    env = variables(given.out / "cache", len(sides))
    ranked.sides = {name: replace(side, env=env) for name, side in sides.items()}
    setup = Setup(given.device, given.out / "logs", Limits(prepare=given.deadline))
    whole = ranked.run(setup, given.restarts, given.held or len(sides), lambda: time.monotonic() > end)
    print(table(ranked.record))
    return 0 if whole else 1


def table(record: dict[str, Any]) -> str:
    """One row a stack: medians, speedup over the untouched workload with its 95 % interval, peak memory, first run."""
    head = ["workload", "stack", "untouched", "after", "speedup (95 %)", "peak memory", "first run", "restarts"]
    rows, restarts = [], record["restarts"]
    for row, (_, stacks) in ROWS.items():
        base = f"{row}: untouched"
        for name in stacks:
            side = f"{row}: {name}"
            if side not in record["sides"]:
                continue
            if side in record["failed"] or base in record["failed"] or not restarts:
                rows.append(
                    [row, name, "fails: " + record["failed"].get(side, record["failed"].get(base, "no restart"))]
                )
                continue
            ratios = [restart_of(r, [base, side]).log_ratio(0, 1) for r in restarts]
            speedup = judge(ratios, looks=((len(ratios), FALSE_ALARMS),), margin=MARGIN).as_dict()["speedup"]  # type: ignore[union-attr]
            interval = f" ({speedup['low']:.2f}–{speedup['high']:.2f})" if len(ratios) > 1 else ""
            memory = [f"{allocated(restarts[0][s]['memory']) / 2**30:.2f}" for s in (base, side)]
            rows.append([
                row, name, milliseconds(restarts, base), milliseconds(restarts, side), f"{speedup['value']:.2f}×{interval}",
                f"{memory[0]} → {memory[1]} GiB", f"{restarts[0][side]['first_run_seconds']:.0f} s", str(len(restarts)),
            ])  # fmt: skip
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows])


def milliseconds(restarts: list[dict[str, Any]], side: str) -> str:
    steps = sorted(ns for r in restarts for visit in r[side]["visits"] for ns in visit)
    return f"{steps[len(steps) // 2] / 1e6:.3g} ms"


if __name__ == "__main__":
    sys.exit(main())
