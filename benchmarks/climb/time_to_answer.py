"""How soon a climb has an answer, and how it stands to one line of torch.compile: side by side, in fresh processes, caches cold.

    python benchmarks/climb/time_to_answer.py run --out answers.jsonl decoder handwritten --budgets 60,120,300
    python benchmarks/climb/time_to_answer.py table answers.jsonl

`run` adds one JSON line a case, and leaves out cases that the file has. A plain case is one process that does what a user would write:
autocast to bfloat16, a fused AdamW where the model trains, `torch.compile(forward and loss, mode=MODE)`; it is ready when three
steps were run. A climb is `rung climb --numerics bf16 --budget B`. Both are timed from the start of their process, imports and
making the model included.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

FILE = Path(__file__).with_name("workloads.py")
MODES = ("eager", "default", "reduce-overhead")
STEPS = 30
# Runs `rung`, and prints what each of the climb's workers took for its calls: a line each, with the text WORKER before it.
RUNG = """
import logging, sys
from rung.cli.main import main
handler = logging.StreamHandler()
handler.setFormatter(logging.Formatter("WORKER %(message)s"))
log = logging.getLogger("rung.ladder.timing.tasks")
log.setLevel(logging.DEBUG)
log.propagate = False
log.addHandler(handler)
sys.exit(main())
"""


@contextmanager
def cold() -> Iterator[dict[str, str]]:
    """The environment of a process that finds nothing that was compiled before."""
    with tempfile.TemporaryDirectory(prefix="cold-") as folder:
        caches = {
            name: f"{folder}/{name}"
            for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "RUNG_CACHE", "XDG_CACHE_HOME")
        }
        yield {**os.environ, **caches}


def plain(name: str, mode: str) -> dict[str, Any]:
    """In this process: seconds until it is ready, counted from the start of the process, and milliseconds a step."""
    began = psutil.Process().create_time()
    import torch

    sys.path.insert(0, str(FILE.parent))
    from rung.workload import load, seeded_model

    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    w = load(f"{FILE}:{name}")
    model = seeded_model(w).to(device)
    batches = [torch.utils._pytree.tree_map(lambda t: t.to(device), w.inputs(k)) for k in range(1, 5)]
    training = w.mode == "train"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=gpu) if training else None

    def forward(batch: Any) -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=gpu):
            output = w.forward(model, batch)
            return w.loss(output, batch) if training else output

    run = forward if mode == "eager" else torch.compile(forward, mode=mode)

    def step(k: int) -> None:
        if not training:
            with torch.no_grad():
                run(batches[k % 4])
            return
        optimizer.zero_grad()
        run(batches[k % 4]).backward()
        optimizer.step()

    def synchronize() -> None:
        if gpu:
            torch.cuda.synchronize()

    for k in range(3):
        step(k)
    synchronize()
    ready = time.time() - began
    for k in range(5):
        step(k)
    samples = []
    for k in range(STEPS):
        synchronize()
        start = time.perf_counter()
        step(k)
        synchronize()
        samples.append(1e3 * (time.perf_counter() - start))
    return {
        "ready_s": ready,
        "step_ms": statistics.median(samples),
        "device": torch.cuda.get_device_name() if gpu else "CPU",
        "torch": torch.__version__,
    }


def climb(name: str, budget: float) -> dict[str, Any]:
    """One climb in a process of its own."""
    with cold() as env, tempfile.TemporaryDirectory(prefix="climb-") as folder:
        out = Path(folder) / "run"
        arguments = [
            sys.executable,
            "-c",
            RUNG,
            "climb",
            f"{FILE}:{name}",
            "--budget",
            str(budget),
            "--out",
            str(out),
            "--numerics",
            "bf16",
        ]
        began = time.time()
        done = subprocess.Popen(arguments, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        lines: list[str] = []

        def read() -> None:
            assert done.stderr is not None
            for line in done.stderr:
                lines.append(f"{time.time() - began:6.1f} {line.rstrip()}")

        reader = threading.Thread(target=read)
        reader.start()
        while done.poll() is None:
            time.sleep(0.2)
        reader.join()
        wall = time.time() - began
        result = json.loads((out / "result.json").read_text()) if (out / "result.json").exists() else {}
        attempts = (
            [json.loads(p.read_text()) for p in sorted((out / "attempts").glob("*.json"))] if out.exists() else []
        )
        workers = len(list((out / "workers").glob("*.log"))) if (out / "workers").exists() else 0
    history = result.get("history") or []
    first = {s: next((h for h in history if h["status"] == s), None) for s in ("provisional", "verified", "confirmed")}
    return {
        "budget_s": budget, "wall_s": wall, "exit": done.returncode, "status": result.get("status"), "kept": result.get("kept"),
        "speedup": result.get("speedup"), "over_plain": result.get("over_plain"), "times": result.get("times"),
        "first": {s: h and {"seconds": h["seconds"], "speedup": h["speedup"]} for s, h in first.items()},
        "plain": {m["name"]: {k: m.get(k) for k in ("ready_seconds", "step_ns", "speedup", "error")} for m in (result.get("plain") or {}).get("modes", [])},
        "taken_back": result.get("taken_back"), "workers": workers, "stopped": result.get("stopped"), "history": history,
        "attempts": [{k: a.get(k) for k in ("rung", "verdict", "why", "seconds", "prepared_seconds", "verified_seconds", "stack")} | {"log": bool(a.get("log"))} for a in attempts if a.get("log")],
        "log": [line for line in lines if " WORKER " not in line],
        "workers_log": [line.replace("WORKER ", "") for line in lines if " WORKER " in line],
    }  # fmt: skip


def run(names: list[str], budgets: list[float], out: Path, modes: tuple[str, ...]) -> None:
    have = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    for name in names:
        for case in (*modes, *budgets):
            if any(h["workload"] == name and h["case"] == case for h in have):
                continue
            if isinstance(case, str):
                with cold() as env:
                    done = subprocess.run(
                        [sys.executable, __file__, "plain", name, case], env=env, capture_output=True, text=True
                    )
                said = done.stdout.strip().splitlines()
                found = (
                    json.loads(said[-1])
                    if done.returncode == 0 and said
                    else {"error": done.stderr.strip().splitlines()[-1:]}
                )
            else:
                found = climb(name, case)
            row = {"workload": name, "case": case, **found}
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(
                json.dumps({k: v for k, v in row.items() if k not in ("log", "workers_log", "history", "attempts")}),
                flush=True,
            )


def table(path: Path) -> str:
    """Markdown: one row a climb, with the plain modes of its workload beside it."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [
        "| workload | budget | wall | provisional | verified | confirmed | status at the end | step | over eager bf16 | over the best plain mode (in the climb) | reduce-overhead: ready, step |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    ratios: dict[float, list[float]] = {}
    for row in (r for r in rows if not isinstance(r["case"], str)):
        side = {r["case"]: r for r in rows if r["workload"] == row["workload"] and isinstance(r["case"], str)}
        best = (row.get("times") or {}).get("best") or {}
        step = best["value"] / 1e6 if best else None
        at = {s: f"{f['seconds']:.0f} s" if (f := row["first"][s]) else "–" for s in row["first"]}
        over = row.get("over_plain") or {}
        if over.get("value"):
            ratios.setdefault(row["budget_s"], []).append(over["value"])
        plain_mode = side.get("reduce-overhead", {})
        eager = side.get("eager", {}).get("step_ms")
        cells = [
            row["workload"], f"{row['budget_s']:.0f} s", f"{row['wall_s']:.0f} s", *at.values(), str(row["status"]),
            f"{step:.2f} ms" if step else "–",
            f"{eager / step:.2f}×" if eager and step else "–",
            ratio(over),
            f"{plain_mode['ready_s']:.0f} s, {plain_mode['step_ms']:.2f} ms" if "step_ms" in plain_mode else "–",
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
    child = commands.add_parser("plain")
    child.add_argument("name")
    child.add_argument("mode")
    whole = commands.add_parser("run")
    whole.add_argument("names", nargs="+")
    whole.add_argument("--out", type=Path, required=True)
    whole.add_argument("--budgets", default="60,120,300")
    whole.add_argument("--modes", default=",".join(MODES))
    shown = commands.add_parser("table")
    shown.add_argument("file", type=Path)
    parsed = parser.parse_args()
    if parsed.command == "plain":
        print(json.dumps(plain(parsed.name, parsed.mode)))
    elif parsed.command == "run":
        budgets = [float(b) for b in parsed.budgets.split(",") if b]
        run(parsed.names, budgets, parsed.out, tuple(m for m in parsed.modes.split(",") if m))
    else:
        print(table(parsed.file))


if __name__ == "__main__":
    main()
