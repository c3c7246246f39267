"""Whole stacks of rungs on Hugging Face architectures at toy size, verified on this machine's device; nothing is timed.

    PYTHONPATH=src python benchmarks/ladder/verified.py --jobs 12
    PYTHONPATH=src python benchmarks/ladder/verified.py --jobs 2 "BERT, training" "Mistral, inference"

For each architecture, inference and a training step with AdamW in bfloat16, `rung compare --verify` asks whether the stack computes
what the untouched model does: outputs, loss, every gradient and the weights after optimizer steps, in full precision and in
bfloat16, on two shapes. Those with grouped heads have heads of 64 elements and 160 tokens, so that kernels apply. Compiling
takes a minute or two each. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import torch
import toys

TOYS = Path(__file__).with_name("toys.py")
WIDE = ("--width", "256", "--tokens", "160")
REWRITES = "sdpa,flex-attention,hoisted-constants,fused-qkv,fused-gate-up,triton-rope,bf16-stream"
INFERENCE = f"bf16,compile,{REWRITES},strided-sdpa-inputs"
TRAINING = f"bf16,compile,fused-optimizer,{REWRITES},float32-gradients,triton-cross-entropy,foreach-weight-casts,fused-dgrad,recompute"


def main() -> int:
    cases = {f"{name}, {mode}": (name, mode) for name in toys.every() for mode in ("inference", "training")}
    usual = [case for case, (name, _) in cases.items() if name in toys.ARCHITECTURES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "case", nargs="*", metavar="CASE", help=f"of {', '.join(repr(c) for c in cases)} (default: those of toys.py)"
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="at once (default: 2)")
    parser.add_argument("--deadline", type=float, default=600.0, help="seconds for one (default: 600)")
    given = parser.parse_args()
    if odd := [case for case in given.case if case not in cases]:
        parser.error(f"there is no {odd[0]!r}; --help lists them")
    print("| case | verified | found nothing | seconds |\n|---|---|---|---|", flush=True)
    passed = True
    with ThreadPoolExecutor(given.jobs) as pool:
        asked = {pool.submit(verified, *cases[case], given.deadline): case for case in given.case or usual}
        for done in as_completed(asked):
            equal, row = done.result()
            passed &= equal
            print(f"| {asked[done]} | {row} |", flush=True)
    return 0 if passed else 1


def verified(name: str, mode: str, deadline: float) -> tuple[bool, str]:
    training = mode == "training"
    stack = (TRAINING if training else INFERENCE) + (",capture" if torch.cuda.is_available() else "")
    options = ["--name", name, "--mode", "train" if training else "infer", "--adamw", str(training).lower()]
    options += WIDE if "num_key_value_heads" in toys.every()[name][2] else ()
    command = [sys.executable, "-m", "rung", "compare", f"{TOYS}:make", *options, "--rungs", stack, "--verify", "--budget", "1", "--json"]  # fmt: skip
    began = time.monotonic()
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=deadline, env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, f"not within {deadline:.0f} s | | "
    equal, answer, nothing = told(ran.stdout, ran.stderr)
    return equal, f"{answer} | {', '.join(nothing)} | {time.monotonic() - began:.0f}"


def told(stdout: str, stderr: str) -> tuple[bool, str, list[str]]:
    """Whether both sides are equal, in words, and the passes that found nothing to do."""
    try:
        said = json.loads(stdout)
    except ValueError:
        said = {"error": (stderr.strip().splitlines() or ["it ended without a word"])[-1]}
    if "verification" not in said:
        return False, f"no: {said.get('error', 'nothing was verified')[:200]}", []
    found = said["verification"]
    answer = f"yes, {found['checks']} comparisons" if found["passed"] else f"no: {found['failures'][0][:200]}"
    return found["passed"], answer, re.findall(r"B: (\S+) rewrote nothing", "\n".join(said.get("warnings", [])))


if __name__ == "__main__":
    sys.exit(main())
