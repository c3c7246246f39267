"""What rungs add to a stack of rungs, in one process: each side is compiled, and then their steps take turns.

    PYTHONPATH=src python benchmarks/ladder/in_turns.py benchmarks/zoo/timm_models.py:make --name beit_base_patch16_224 --train true \\
        --rungs bf16,fused-optimizer,compile,capture --with gelu-epilogue --with biased-attention,gelu-epilogue

`rung compare` starts fresh processes and says how sure it is. This says in a minute whether that is worth it: the median of a side's step, and the
median of the ratios of neighbouring blocks with their least and greatest.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from rung.engine.dynamo import expect_changes
from rung.engine.parts import on_tensors
from rung.engine.step import Step, matmul_precision
from rung.hardware import pick
from rung.kernels import cublaslt
from rung.rungs import plan_of
from rung.workload import load, seeded_model

DEVICE = pick()
PLACE = "cuda" if DEVICE.is_gpu else "cpu"
WARM, ROUNDS, STEPS = 10, 7, 12


class Side:
    def __init__(self, workload: Any, rungs: str) -> None:
        self.plan, trains = plan_of(rungs.split(",")), workload.mode == "train"
        model = seeded_model(workload).to(PLACE).train(trains)
        self._batches = [on_tensors(lambda tensor: tensor.to(PLACE), workload.inputs(seed)) for seed in range(2)]
        self._step = Step(workload, model, self.plan, DEVICE)

        def run(steps: int) -> None:
            with torch.set_grad_enabled(trains), matmul_precision(self.plan):
                for k in range(steps):
                    self._step(self._batches[k % 2])
            if DEVICE.is_gpu:
                torch.cuda.synchronize()

        self.run: Callable[[int], None] = run

    def again(self) -> None:
        """Records anew, and chooses algorithms anew, now that nothing else compiles."""
        self._step.fresh()
        self.run(WARM)

    def milliseconds(self) -> float:
        self.run(2)
        began = time.perf_counter()
        self.run(STEPS)
        return (time.perf_counter() - began) / STEPS * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="a workload, FILE.py:NAME; its own options follow, each with a value")
    parser.add_argument("--rungs", required=True, help="the stack of the first side")
    parser.add_argument("--with", dest="added", action="append", default=[], help="rungs that another side has as well")
    given, words = parser.parse_known_args()
    options = {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    expect_changes()
    workload = load(given.target, options)
    sides = {"": Side(workload, given.rungs)}
    sides |= {added: Side(workload, f"{given.rungs},{added}") for added in given.added}
    for side in sides.values():
        side.run(WARM)
    cublaslt._product.cache_clear()
    for side in sides.values():
        side.again()
    took: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, side in sides.items():
            took[name].append(side.milliseconds())
    print(f"{workload.name} on {DEVICE.name}, torch {torch.__version__}, {given.rungs}")
    for name, samples in took.items():
        ratios = [first / other for first, other in zip(took[""], samples, strict=True)]
        shown = f"{statistics.median(ratios):.3f} ({min(ratios):.3f}-{max(ratios):.3f})" if name else ""
        print(f"  {name or 'these':40} {statistics.median(samples):8.3f} ms  {shown}")


if __name__ == "__main__":
    main()
