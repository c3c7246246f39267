"""What rungs add to a stack of rungs, in one process: each side is compiled, and then their steps take turns.

    PYTHONPATH=src python benchmarks/ladder/in_turns.py benchmarks/zoo/timm_models.py:make --name beit_base_patch16_224 --train true \\
        --rungs bf16,fused-optimizer,compile,capture --with gelu-epilogue --with biased-attention,gelu-epilogue
    ... --rungs bf16,fused-optimizer,compile,capture,bf16-stream,triton-rope --without bf16-stream --without triton-rope --jobs 3

`rung compare` starts fresh processes and says how sure it is. This says in a minute or two whether that is worth it: the median of a side's step,
and the median of the ratios of neighbouring blocks with their least and greatest. With --jobs N, so many processes at a time first compile a side
each, and the sides find that in torch's cache.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
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


def compile_first(target: list[str], stacks: Iterable[str], jobs: int) -> None:
    """A process a stack, which runs it and tells nothing."""
    commands = [[sys.executable, __file__, *target, "--rungs", stack, "--compile-only"] for stack in stacks]
    with ThreadPoolExecutor(jobs) as pool:
        failed = [
            ran for ran in pool.map(lambda c: subprocess.run(c, stdout=subprocess.DEVNULL), commands) if ran.returncode
        ]
    if failed:
        sys.exit(f"{len(failed)} of {len(commands)} stacks do not run; what they print is above")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="a workload, FILE.py:NAME; its own options follow, each with a value")
    parser.add_argument("--rungs", required=True, help="the stack of the first side")
    parser.add_argument("--with", dest="added", action="append", default=[], help="rungs that another side has as well")
    parser.add_argument("--without", action="append", default=[], help="rungs that another side lacks")
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="compile so many sides at a time first")
    parser.add_argument("--compile-only", action="store_true", help=argparse.SUPPRESS)
    given, words = parser.parse_known_args()
    options = {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    stacks = {"": given.rungs} | {f"+ {added}": f"{given.rungs},{added}" for added in given.added}
    for left_out in given.without:
        rest = [name for name in given.rungs.split(",") if name not in left_out.split(",")]
        stacks[f"- {left_out}"] = ",".join(rest)
    if given.jobs:
        compile_first([given.target, *words], stacks.values(), given.jobs)
    expect_changes()
    workload = load(given.target, options)
    sides = {name: Side(workload, stack) for name, stack in stacks.items()}
    for side in sides.values():
        side.run(WARM)
    if given.compile_only:
        return
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
