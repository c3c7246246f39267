"""What a climb gives on the shapes of well-known models, beside eager and beside plain torch.compile:

    PYTHONPATH=src python benchmarks/ladder/hf.py run llama-decode-1 --out hf --budget 300 --seconds 540
    PYTHONPATH=src python benchmarks/ladder/hf.py table --out hf

`run` climbs a case and compares the result with each rival, in fresh processes; what is done already is not done again,
so a run that was stopped, or whose --seconds are over, goes on where it was. `table` prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from rung.ladder.climb import Climb, Request, resume, start
from rung.ladder.duel import Limits, Setup, Side, SideFailed, fight
from rung.measure import CLIMB
from rung.runs import to_json, write_whole

MODELS = Path(__file__).with_name("models.py")
CASES: dict[str, tuple[str, dict[str, str]]] = {
    "llama-prefill": ("llama", {"kind": "prefill", "batch": "1", "tokens": "2048"}),
    "llama-decode-1": ("llama", {"kind": "decode", "batch": "1"}),
    "llama-decode-16": ("llama", {"kind": "decode", "batch": "16"}),
    "llama-train": ("llama", {"kind": "train", "batch": "4", "tokens": "1024"}),
    "bert": ("bert", {}),
    "vit": ("vit", {}),
    "gpt2-train": ("gpt2", {"train": "true", "batch": "8", "tokens": "1024"}),
    "mixtral": ("mixtral", {}),
}
RIVALS = ("eager", "default", "max-autotune-no-cudagraphs", "reduce-overhead")
TOGETHER = 2  # pairs of workers loaded at once, where memory allows it


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("run", "table", "cases"))
    parser.add_argument("case", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--out", type=Path, default=Path("hf"), help="where results are kept")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds of one climb")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing new after so many seconds")
    parser.add_argument("--numerics", default="bf16", choices=("exact", "tf32", "bf16", "fp8"))
    parser.add_argument("--rungs", type=lambda text: tuple(text.split(",")), help="try only these")
    parser.add_argument("--rivals", type=lambda text: tuple(text.split(",")), default=RIVALS)
    parser.add_argument("--device")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of the model, for a trial")
    given = parser.parse_args()
    unknown = [c for c in given.case if c not in CASES]
    if unknown:
        parser.error(f"there is no case {unknown[0]}; there are {', '.join(CASES)}")
    cases = given.case or list(CASES)
    if given.do == "cases":
        print("\n".join(CASES))
    elif given.do == "table":
        print(table(given.out, cases))
    else:
        end = time.monotonic() + given.seconds
        for case in cases:
            if not run(case, given, end):
                print(f"{case}: the time is over; run it again to go on", file=sys.stderr)
                return 1
    return 0


def run(case: str, given: argparse.Namespace, end: float) -> bool:
    """Climbs and compares; False where the time was over before all was done."""
    folder = given.out / case
    name, options = CASES[case]
    options = {**options, **dict(o.split("=", 1) for o in given.option)}
    target = f"{MODELS}:{name}"
    climb = _climb(folder / "climb", target, options, given, end)
    if climb is None:
        return False
    kept = tuple(climb["result"]["kept"])
    for rival in given.rivals:
        path = folder / f"{rival}.json"
        if path.exists():
            continue
        if end - time.monotonic() < 90:
            return False
        say(f"{case}: against {rival} ...")
        sides = {
            "rival": Side(target, {**options, "compiled": rival}),
            "rung": Side(target, options, kept),
        }
        memory = max(climb["baseline"]["memory"].values())
        total = climb["manifest"]["environment"]["device"]["memory"]
        together = TOGETHER if climb["manifest"]["facts"]["gpu"] and 6 * memory < total else 1
        setup = Setup(given.device, folder / "workers", Limits(prepare=min(900.0, end - time.monotonic())), together)
        try:
            duel = fight(setup, sides, log=rival, left=lambda: end - time.monotonic(), looks=CLIMB, at_least=1)
            found: dict[str, Any] = duel.as_dict()
        except SideFailed as failure:
            if failure.error.kind == "hung":  # it may be our own end that it met: another time it has longer
                say(f"{case}: {failure}")
                return False
            found = {"failed": failure.side, "why": str(failure)}
        write_whole(path, to_json(found))
        say(f"{case}: against {rival}: {_gain(found)}")
    return True


def _climb(out: Path, target: str, options: dict[str, str], given: argparse.Namespace, end: float) -> Any:
    from rung.cli.climb import progress

    left = end - time.monotonic()
    if (out / "result.json").exists():
        return json.loads(json.dumps(_open(out)))
    if left < 60:
        return None
    budget = min(given.budget, left - 150)
    climb: Climb
    if (out / "manifest.json").exists():
        climb = resume(out, progress, budget)
    else:
        request = Request(target, options, given.numerics, given.rungs, given.device, budget)
        climb = start(request, out.parent, out, progress)
    return climb.climb()


def _open(out: Path) -> dict[str, Any]:
    from rung.runs import Run

    return Run.open_(out).data()


def table(out: Path, cases: list[str]) -> str:
    """One row a case: the climb's time, its speedup over each rival with the interval, and what was kept."""
    head = ["case", "eager", "Rung", *(f"over {r}" for r in RIVALS), "over the best", "peak memory", "kept"]
    rows, ratios = [], []
    for case in cases:
        folder = out / case
        if not (folder / "climb" / "result.json").exists():
            continue
        climb = _open(folder / "climb")
        found = {r: json.loads((folder / f"{r}.json").read_text()) for r in RIVALS if (folder / f"{r}.json").exists()}
        won = {r: f["comparison"]["speedup"]["value"] for r, f in found.items() if f.get("comparison")}
        best = min(won, key=lambda r: won[r]) if won else ""
        if best:
            ratios.append(won[best])
        some = next((f for f in found.values() if f.get("times")), None)
        memory = _memory(found["eager"]) if found.get("eager", {}).get("memory") else "–"
        rows.append([
            climb["manifest"]["workload"]["name"],
            _ms(climb["baseline"]["time"]["value"]),
            _ms(some["times"]["rung"]["value"]) if some else "–",
            *(_gain(found.get(r)) for r in RIVALS),
            f"{won[best]:.2f}× ({best})" if best else "–",
            memory,
            ", ".join(climb["result"]["kept"]) or "nothing",
        ])  # fmt: skip
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines += ["", f"Over the best rival: geometric mean {mean:.2f}×, least {min(ratios):.2f}×, of {len(ratios)}."]
    return "\n".join(lines)


def _gain(found: dict[str, Any] | None) -> str:
    if not found:
        return "–"
    if found.get("failed"):
        return "rival fails" if found["failed"] == "rival" else "Rung fails"
    speedup = found["comparison"]["speedup"]
    if not all(isinstance(speedup[k], float) for k in ("low", "high")):
        return f"{speedup['value']:.2f}×"
    return f"{speedup['value']:.2f}× ({speedup['low']:.2f}–{speedup['high']:.2f})"


def _memory(found: dict[str, Any]) -> str:
    before, after = (max(found["memory"][side].values()) / 2**30 for side in ("rival", "rung"))
    return f"{before:.1f} → {after:.1f} GiB"


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3g} ms"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
