"""How soon a climb has an answer, and how it stands to one line of torch.compile: side by side, in fresh processes, caches cold.

    python benchmarks/climb/time_to_answer.py run --out answers.jsonl decoder handwritten --budgets 60,120,300
    python benchmarks/climb/time_to_answer.py table answers.jsonl

`run` adds one JSON line a case, and leaves out cases that the file has. What a plain case and a climb are is in fresh.py; a climb is
`rung climb --numerics bf16 --budget B`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

import msgspec
from fresh import EAGER, Target, climbed, cold, timed

FILE = Path(__file__).with_name("workloads.py")
MODES = (EAGER, "default", "reduce-overhead")
LONG = ("log", "workers_log", "attempts")  # of a climb, and not printed


def run(names: list[str], budgets: list[float], out: Path, modes: tuple[str, ...]) -> None:
    have = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    for name in names:
        target = Target(f"{FILE}:{name}", {}, "bf16")
        cases: list[str | float] = [*modes, *budgets]
        for case in cases:
            if any(h["workload"] == name and h["case"] == case for h in have):
                continue
            with cold() as env:
                if isinstance(case, str):
                    row = msgspec.to_builtins(timed(target, case, env))
                else:
                    found = climbed(target, case, env)
                    row = {**msgspec.to_builtins(found), "first": found.first}
            row = {"workload": name, "case": case, **row}
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps({k: v for k, v in row.items() if k not in LONG}), flush=True)


def table(path: Path) -> str:
    """Markdown: one row a climb, with the plain modes of its workload beside it."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [
        "| workload | budget | wall | provisional | verified | confirmed | status at the end | step | over eager bf16 | best plain mode in the climb: ready, step | over it | reduce-overhead alone: ready, step |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    ratios: dict[float, list[float]] = {}
    for row in (r for r in rows if not isinstance(r["case"], str)):
        side = {r["case"]: r for r in rows if r["workload"] == row["workload"] and isinstance(r["case"], str)}
        result = row["result"]
        best = (result.get("times") or {}).get("best") or {}
        step = best["value"] / 1e6 if best else None
        at = {s: f"{f['seconds']:.0f} s" if (f := row["first"][s]) else "–" for s in row["first"]}
        over = result.get("over_plain") or {}
        if over.get("value"):
            ratios.setdefault(row["budget_s"], []).append(over["value"])
        plain_mode = side.get("reduce-overhead", {})
        eager = side.get(EAGER, {}).get("step_ms")
        cells = [
            row["workload"], f"{row['budget_s']:.0f} s", f"{row['wall_s']:.0f} s", *at.values(), str(result.get("status")),
            f"{step:.2f} ms" if step else "–",
            f"{eager / step:.2f}×" if eager and step else "–",
            f"{plain['ready_seconds']:.0f} s, {plain['step_ns'] / 1e6:.3g} ms" if (plain := result.get("plain")) else "–",
            ratio(over),
            f"{plain_mode['ready_s']:.0f} s, {plain_mode['step_ms']:.2f} ms" if plain_mode.get("step_ms") else "–",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    for budget, found in sorted(ratios.items()):
        lines.append(
            f"\nAt {budget:.0f} s: {math.exp(statistics.mean(map(math.log, found))):.2f}× over the best plain mode in the geometric mean of {len(found)}."
        )
    return "\n".join(lines)


def ratio(over: dict[str, Any]) -> str:
    if not over.get("value"):
        return "–"
    return f"{over['value']:.2f}×" + (f" ({over['low']:.2f}–{over['high']:.2f})" if over.get("low") is not None else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    whole = commands.add_parser("run")
    whole.add_argument("names", nargs="+")
    whole.add_argument("--out", type=Path, required=True)
    whole.add_argument("--budgets", default="60,120,300")
    whole.add_argument("--modes", default=",".join(MODES))
    shown = commands.add_parser("table")
    shown.add_argument("file", type=Path)
    parsed = parser.parse_args()
    if parsed.command == "run":
        budgets = [float(b) for b in parsed.budgets.split(",") if b]
        run(parsed.names, budgets, parsed.out, tuple(m for m in parsed.modes.split(",") if m))
    else:
        print(table(parsed.file))


if __name__ == "__main__":
    main()
