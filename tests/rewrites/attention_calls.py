"""What the tests of rewritten attention look at: its SDPA calls, and that it trains as the original does."""

import torch
import torch.nn.functional as F

from rung.rewrites import RewriteBackend


class Recorder(RewriteBackend):
    """Keeps the SDPA calls of the graphs it has rewritten."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls = []

    def compiled(self, gm, inputs):
        for node in gm.graph.nodes:
            if node.target is F.scaled_dot_product_attention:
                self.calls.append(self.call(node))
        return super().compiled(gm, inputs)

    def call(self, node):
        return dict(node.kwargs)


def copies_of(inputs):
    return [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]


def same_results(got, want, tol):
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=tol, atol=tol)


def same_gradients(got, want, copies, inputs, tol):
    """Of two results, each computed from inputs of its own."""
    weights = torch.randn_like(want)
    (want * weights).sum().backward()
    (got * weights).sum().backward()
    for x, y in zip(inputs, copies, strict=True):
        if x.requires_grad:
            torch.testing.assert_close(y.grad, x.grad, rtol=tol, atol=tol)
