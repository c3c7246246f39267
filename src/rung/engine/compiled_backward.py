"""Backward compiled as one graph with the exchange of its gradients, by torch's compiled autograd. The private names of that, and those of
DistributedDataParallel for it, are used here alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from rung.plan import Plan
from rung.rewrites import inductor_patches


@contextlib.contextmanager
def python_reducer() -> Iterator[None]:
    """DistributedDataParallel made inside of it exchanges gradients in Python, which can be compiled; Dynamo cuts no model at its buckets.
    Making it has Inductor join all-reduces, and Dynamo trace into modules of torch, for as long as the process lives."""
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        yield


def can_be_compiled(called: torch.nn.Module) -> bool:
    """Whether it was made inside of `python_reducer`."""
    return bool(getattr(called, "_use_python_reducer", False))


class CompiledBackward:
    """Forward and backward of a model whose exchange can be compiled take place inside of `around`. graphs: how many of backward it compiled."""

    def __init__(self, plan: Plan, called: torch.nn.Module) -> None:
        self.graphs, self._called = 0, called
        self._options, self._dynamic = dict(plan.inductor), plan.dynamic

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        from torch._dynamo import compiled_autograd

        with python_reducer(), compiled_autograd._enable(self._compiled, dynamic=self._dynamic):
            yield

    def share_buffers(self) -> None:
        """Before each forward: what a batch norm keeps, say. Such a model's own forward leaves out that rank 0 sends its buffers to the
        others, as it does where gradients are exchanged."""
        called: Any = self._called
        with torch.no_grad():
            if called.require_backward_grad_sync and called._check_sync_bufs_pre_fwd():
                called._sync_buffers()

    def _compiled(self, graph: torch.fx.GraphModule) -> Any:
        self.graphs += 1
        options = inductor_patches(self._options) or None
        return torch.compile(graph, fullgraph=True, dynamic=self._dynamic or None, options=options)
