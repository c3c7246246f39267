"""Rungs on the shapes of well-known models, beside eager and beside plain torch.compile:

    PYTHONPATH=src python benchmarks/ladder/hf.py rank llama-decode-1 bert --out hf
    PYTHONPATH=src python benchmarks/ladder/hf.py rank llama-decode-1 --rungs compile,capture --out hf2
    PYTHONPATH=src python benchmarks/ladder/hf.py table --out hf

`rank` loads and compiles all sides of a case at once, and times them in alternating blocks (ranked.py). OUT/CASE.json is
written after every restart, or part of one; the same command goes on where it was stopped. `table` prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ranked import Ranked, allocated, variables

from rung.launch import WorkerFailed
from rung.rungs import rungs_named
from rung.side import Limits, Setup, Side
from rung.timing.compare import verified

MODELS = Path(__file__).with_name("models.py")
RIVALS = ("eager", "default", "reduce-overhead", "max-autotune")
OURS = "rung"
MEMORY = 74.0  # GiB of an 80 GB GPU that workers may fill


@dataclass(frozen=True)
class Case:
    """rungs: what ours runs with, where nothing else is asked for; after a slash, another stack that is tried; gib: the
    most that a worker of any side is thought to hold on the GPU, its context included, from the sizes of weights,
    optimizer and activations."""

    model: str
    rungs: str
    gib: float
    options: dict[str, str] = field(default_factory=dict)


WRITTEN = "compile,capture,in-place-cache"
JOINED = "fused-qkv,fused-gate-up,hoisted-constants"
DECODE = f"{WRITTEN},triton-decode-attention,{JOINED},pdl"
ENCODE = "compile,capture,fused-qkv/compile,capture,fused-qkv,pdl"
TRAIN = "compile,fused-optimizer,capture,bf16-stream,float32-gradients,foreach-weight-casts"
ROTATED = f"{TRAIN},hoisted-constants,triton-rope"
CASES = {
    "llama-prefill": Case(
        "llama", "compile,capture,hoisted-constants/compile,capture,hoisted-constants,max-autotune", 7,
        {"kind": "prefill", "batch": "1", "tokens": "2048"},
    ),
    "llama-decode-1": Case(
        "llama", f"{DECODE},coordinate-descent/{DECODE},coordinate-descent,combo-kernels/{DECODE},triton-gemv", 6, {"kind": "decode", "batch": "1"}
    ),
    "llama-decode-16": Case("llama", f"{DECODE}/{DECODE},combo-kernels", 7, {"kind": "decode", "batch": "16"}),
    "llama-train": Case(
        "llama", f"{ROTATED},triton-cross-entropy/{ROTATED},triton-cross-entropy,fused-qkv,fused-gate-up,fused-dgrad", 45,
        {"kind": "train", "batch": "4", "tokens": "1024"},
    ),
    "bert": Case("bert", ENCODE, 5),
    "vit": Case("vit", ENCODE, 5),
    "gpt2-train": Case(
        "gpt2", f"{TRAIN},triton-cross-entropy", 18,
        {"train": "true", "batch": "8", "tokens": "1024"},
    ),
    # Its experts break the graph, and choose their rows on the host: without grouped-experts nothing can be captured.
    "mixtral": Case(
        "mixtral", "compile,capture,grouped-experts,fused-qkv,hoisted-constants", 8
    ),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("rank", "table", "cases"))
    parser.add_argument("case", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--out", type=Path, default=Path("hf"), help="where results are kept")
    parser.add_argument("--rungs", metavar="A,B/C", help="ours; several stacks between slashes (default: see `cases`)")
    parser.add_argument("--rivals", type=names, default=RIVALS, help=f"of {', '.join(RIVALS)} (default: all)")
    parser.add_argument("--restarts", type=int, default=3, metavar="N", help="of every side (default: 3)")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing new after so many seconds")
    parser.add_argument("--deadline", type=float, default=300.0, help="seconds for a side to load, compile and warm up")
    parser.add_argument("--held", type=int, help="workers loaded at once (default: what fits into 74 GiB)")
    parser.add_argument("--cache", type=Path, help="where compiled code is kept (default: OUT/cache)")
    parser.add_argument("--verify", action="store_true", help="first show that ours computes what eager computes")
    parser.add_argument("--device")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the model, for a trial")
    given = parser.parse_args()
    for said, known in ((given.case, CASES), (given.rivals, RIVALS)):
        odd = next((name for name in said if name not in known), None)
        if odd:
            parser.error(f"there is no {odd}; there are {', '.join(known)}")
    for stack in (given.rungs or "").split("/"):
        rungs_named(names(stack))
    cases = given.case or list(CASES)
    if given.do == "cases":
        print("\n".join(f"{name}: {CASES[name].rungs}" for name in cases))
    elif given.do == "table":
        print(table(given.out, cases))
    else:
        end = time.monotonic() + given.seconds
        for case in cases:
            if not rank(case, given, end):
                say(f"{case}: the time is over; run it again to go on")
                return 1
    return 0


def rank(name: str, given: argparse.Namespace, end: float) -> bool:
    """False where the time was over before all restarts were done."""
    case, began = CASES[name], time.monotonic()
    options = {**case.options, **dict(o.split("=", 1) for o in given.option)}
    stacks = (given.rungs or case.rungs).split("/")
    target = f"{MODELS}:{case.model}"
    sides = {r: Side(target, {**options, "compiled": r}) for r in given.rivals}
    ours = {OURS + (f"-{k + 1}" if k else ""): Side(target, options, names(stack)) for k, stack in enumerate(stacks)}
    sides |= ours
    ranked = Ranked(given.out / f"{name}.json", sides, lambda text: say(f"{name}: {text}"))
    env = variables((given.cache or given.out / "cache") / name, len(sides) - ("eager" in sides))
    ranked.sides = {side: replace(s, env=env) for side, s in sides.items()}
    setup = Setup(given.device, given.out / "logs", Limits(prepare=given.deadline))
    for side in ours if given.verify and "verification" not in ranked.record else ():
        say(f"{name}: verifying {', '.join(sides[side].rungs)} ...")
        try:
            found = verified(setup, replace(ranked.sides[side], rungs=()), ranked.sides[side])
        except WorkerFailed as error:
            found = {"passed": False, "why": f"it could not be verified: {error}"}
        ranked.record.setdefault("verification", {})[side] = found
        ranked.keep()
        say(f"{name}: {side} {'computes what eager computes' if found['passed'] else unlike(found)}")
    held = given.held or max(1, int(MEMORY // case.gib))
    whole = ranked.run(setup, given.restarts, held, lambda: time.monotonic() > end)
    if ranked.record["restarts"]:
        say(f"{name}: {sentence(kept(ranked.path))} ({time.monotonic() - began:.0f} s)")
    return whole


def sentence(found: dict[str, Any]) -> str:
    if not found["best"]:
        return f"no comparison: {'; '.join(f'{n} fails' for n in found['failed']) or 'no rival'}"
    return f"{ratio(found['against'][found['best']])} over {found['best']}, the best rival: {found['verdict']}"


def table(out: Path, cases: list[str]) -> str:
    """One row a case: every side's median, ours over the best rival, memory, the first run, and how it was timed."""
    head = ["case", *RIVALS, "Rung", "over the best (95 %)", "verdict", "peak memory: best, Rung", "first run: best, Rung", "restarts", "rungs"]  # fmt: skip
    rows, ratios, notes = [], [], []
    for case in cases:
        if not (out / f"{case}.json").exists():
            continue
        found = kept(out / f"{case}.json")
        best, ours, first = found["best"], found["ours"], (found["restarts"] or [{}])[0]
        pair = [first[side] for side in (best, ours) if side in first]
        if best:
            ratios.append(found["against"][best]["speedup"]["value"])
        notes += [f"- {case}: {side} fails: {why}" for side, why in found["failed"].items()]
        wrong = {side: v for side, v in found.get("verification", {}).items() if not v["passed"]}
        notes += [f"- {case}: {side} {unlike(v)}" for side, v in wrong.items()]
        alongside = "" if len(found["groups"]) < 2 else f", {len(found['groups'])} groups"
        rows.append([
            case,
            *(milliseconds(found, side) for side in (*RIVALS, ours)),
            f"{ratio(found['against'][best])} {best}" if best else "–",
            found["verdict"],
            ", ".join(f"{allocated(side['memory']) / 2**30:.1f} GiB" for side in pair) or "–",
            ", ".join(f"{found['first_runs'][side]:.0f} s" for side in (best, ours) if side in found["first_runs"]) or "–",
            f"{len(found['restarts'])}{alongside}",
            ", ".join(found["sides"][ours]["rungs"]),
        ])  # fmt: skip
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines += ["", f"Over the best rival: geometric mean {mean:.2f}×, least {min(ratios):.2f}×, of {len(ratios)}."]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def unlike(found: dict[str, Any]) -> str:
    return str(found.get("why") or f"does not compute what eager computes: {found['failures'][:1]}")


def kept(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def ratio(compared: dict[str, Any]) -> str:
    speedup = compared["speedup"]
    if not all(isinstance(speedup[k], float) for k in ("low", "high")) or compared["restarts"] < 2:
        return f"{speedup['value']:.2f}×"
    return f"{speedup['value']:.2f}× ({speedup['low']:.2f}–{speedup['high']:.2f})"


def milliseconds(found: dict[str, Any], side: str) -> str:
    if side in found["failed"]:
        return "fails"
    return f"{found['times'][side]['value'] / 1e6:.3g} ms" if side in found["times"] else "–"


def names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
