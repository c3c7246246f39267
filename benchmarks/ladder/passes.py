"""How long it takes to look for all rewrites in a captured graph, by the depth of a transformer. No GPU is needed.

    PYTHONPATH=src python benchmarks/ladder/passes.py 12 24 48

Nothing is compiled: of both times, Dynamo's tracing and one run are a part. Lines are of layers, seconds without rewrites, and with them.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

from rung.rewrites import PASSES, RewriteBackend
from rung.workload import load, seeded_model

SMALL = {"hidden-dim": "32", "num-heads": "2", "seq-len": "8", "batch-size": "2", "mode": "infer"}


def seconds(layers: int, backend: Any) -> float:
    """Of the first call under a backend."""
    workload = load("tiny-transformer", {**SMALL, "num-layers": str(layers)})
    model, batch = seeded_model(workload), workload.inputs(0)
    torch._dynamo.reset()
    run = torch.compile(lambda: workload.forward(model, batch), backend=backend, dynamic=False)
    began = time.perf_counter()
    with torch.no_grad():
        run()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layers", nargs="+", type=int)
    passes = [name for name in PASSES if name != "grouped-experts"]  # which the survey runs only where a graph breaks
    seconds(1, RewriteBackend(passes, "eager"))  # imports
    for layers in parser.parse_args().layers:
        print(
            f"{layers:4}  {seconds(layers, 'eager'):6.2f}  {seconds(layers, RewriteBackend(passes, 'eager')):6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
