"""Backward compiled as one graph with the exchange of its gradients, by torch's compiled autograd. Its private names are used here alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from rung.plan import Plan


@contextlib.contextmanager
def python_reducer() -> Iterator[None]:
    """DistributedDataParallel made inside of it exchanges gradients in Python, which can be compiled; Dynamo cuts no model at its buckets."""
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        yield


def can_be_compiled(called: torch.nn.Module) -> bool:
    """Whether it was made inside of `python_reducer`."""
    return bool(getattr(called, "_use_python_reducer", False))


class CompiledBackward:
    """Forward and backward of a model whose exchange can be compiled take place inside of `around`. graphs: how many of backward it compiled."""

    def __init__(self, plan: Plan) -> None:
        self.graphs = 0
        self._options, self._dynamic = dict(plan.inductor), plan.dynamic

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        from torch._dynamo import compiled_autograd

        with python_reducer(), compiled_autograd._enable(self._compiled, dynamic=self._dynamic):
            yield

    def _compiled(self, graph: torch.fx.GraphModule) -> Any:
        self.graphs += 1
        return torch.compile(graph, fullgraph=True, dynamic=self._dynamic or None, options=self._options or None)
