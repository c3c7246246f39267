"""How long it takes to see that a model is as it was when a graph of it was recorded, which is read before each replay. No GPU is needed.

    PYTHONPATH=src python benchmarks/ladder/guards.py benchmarks/zoo/huggingface.py:make --name segformer-b2

The model runs once first, on the first rows of a batch: libraries hang their hooks on it then.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

import rung
from rung.engine.guards import ModelGuards
from rung.engine.parts import on_tensors
from rung.workload import load, seeded_model

ROWS = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="a workload, FILE.py:NAME")
    given, words = parser.parse_known_args()
    options = {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}
    workload = load(given.target, options)
    model = seeded_model(workload)
    batch: Any = on_tensors(lambda tensor: tensor[:ROWS], workload.inputs(0))
    with torch.no_grad():
        workload.forward(model, batch)
    guards = ModelGuards(model)
    took = rung.bench(guards.check, device="cpu", seconds=2.0).interval
    modules = sum(1 for _ in model.modules())
    print(f"{workload.name}, {modules} modules: {took.value / 1e6:.3f} ms ({took.low / 1e6:.3f}-{took.high / 1e6:.3f})")


if __name__ == "__main__":
    main()
