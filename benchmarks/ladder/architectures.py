"""What the graph rewrites find in Hugging Face models, and that they leave the numbers alone: on the CPU, in fp32.

    python benchmarks/ladder/architectures.py [--attention eager|sdpa] [--further] [NAME ...]

For each architecture, in inference and in training: captured graphs, matrix products and attention calls before and
after, and the worst error of an output, the loss or a gradient against float64, as a multiple of what the untouched
model is off (`rung.verify.verify.judge` allows 30). Weights are sharp (`rung.verify.perturb`). Prints Markdown.
"""

from __future__ import annotations

import argparse
import copy
import time
from dataclasses import dataclass

import torch
import toys

from rung.engine.step import Step
from rung.hardware import pick
from rung.plan import Plan
from rung.rewrites import PASSES
from rung.verify.observe import missing_results, observe, rows
from rung.verify.perturb import perturbed
from rung.verify.reference import Reference, jittered
from rung.verify.verify import judge
from rung.workload import seeded_model

SHARP_SEED = 12
ANYWHERE = tuple(name for name in PASSES if not name.startswith(("flex-", "tf32-")))  # which train on GPUs alone


@dataclass(frozen=True)
class Row:
    """before, after: operations of the captured graphs by kind; ratio: the worst error over the untouched model's."""

    name: str
    mode: str
    graphs: int
    before: dict[str, int]
    after: dict[str, int]
    matches: dict[str, int]
    skipped: list[str]
    ratio: float
    equal: bool
    same_keys: bool
    seconds: float

    @property
    def passed(self) -> bool:
        return self.equal and self.same_keys and self.graphs == 1


def examine(name: str, mode: str, attention: str = "eager") -> Row:
    """Captures one architecture, rewrites it with every pass that runs on a CPU, and compares it with the untouched model."""
    began = time.perf_counter()
    torch._dynamo.reset()
    workload, cpu = toys.make(name, mode, attention), pick("cpu")
    model = seeded_model(workload)
    keys = list(model.state_dict())
    weights = perturbed(model, SHARP_SEED)
    batch = workload.inputs(SHARP_SEED)
    reference = Reference(workload, model, cpu)
    truth = reference.run(weights, batch)
    # Mixtral's grouped products know no float64: rounding is then shown by weights moved by an ulp.
    own = weights if reference.name == "float64" else jittered(weights, SHARP_SEED)
    mine = observe(Step(workload, copy.deepcopy(model), Plan(), cpu), own, batch)
    candidate = Step(workload, model, Plan(passes=ANYWHERE), cpu)
    theirs = observe(candidate, weights, batch)
    checks = judge(rows(truth, mine, theirs, ""), "exact")
    backend = candidate.backend
    assert backend is not None
    return Row(
        name,
        mode,
        backend.graphs,
        backend.before,
        backend.after,
        backend.matches,
        backend.skipped,
        max(c.error / max(c.noise, 1e-7) for c in checks),
        all(c.passed for c in checks) and not missing_results(truth, mine, theirs, ""),
        list(model.state_dict()) == keys,
        time.perf_counter() - began,
    )


def _found(row: Row) -> tuple[str, str]:
    counts = [f"{row.before[k]} → {row.after[k]}" for k in ("gemm", "sdpa", "masked_sdpa")]
    rewrites = ", ".join(f"{name} {n}" for name, n in row.matches.items() if n)
    reasons = dict.fromkeys(r.rpartition("): ")[2].replace("|", "/") for r in row.skipped)
    return " | ".join([*counts, rewrites]), "; ".join(reasons)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="architectures (all of them)")
    parser.add_argument("--attention", choices=("eager", "sdpa"), default="eager", help="transformers' own switch")
    parser.add_argument("--further", action="store_true", help="those of further.py in their place")
    options = parser.parse_args()
    every = [name for name in toys.every() if (name in toys.ARCHITECTURES) != options.further]
    began, failed, otherwise = time.perf_counter(), [], []
    print(
        "| architecture | GEMMs | SDPA calls | with a mask | rewrites | error / noise: inference | training | left alone |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in options.names or every:
        rows = [examine(name, mode, options.attention) for mode in ("infer", "train")]
        failed += [f"{name} ({row.mode})" for row in rows if not row.passed]
        if _found(rows[0]) != _found(rows[1]):
            otherwise.append(f"{name} ({'; '.join(_found(rows[1]))})")
        counts, reasons = _found(rows[0])
        print(f"| {name} | {counts} | {rows[0].ratio:.1f} | {rows[1].ratio:.1f} | {reasons} |", flush=True)
    print(f"\n{options.attention} attention, torch {torch.__version__}, {time.perf_counter() - began:.0f} s")
    print(f"not equal: {', '.join(failed)}" if failed else "all equal, state dicts untouched, one graph each")
    if otherwise:
        print(f"training is rewritten otherwise: {', '.join(otherwise)}")
    return 1 if failed or (otherwise and not options.further) else 0


if __name__ == "__main__":
    raise SystemExit(main())
