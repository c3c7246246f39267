"""Run in a process of its own, where kernels are no interpreter's: traces attention forward and backward on fake tensors, as
torch.compile does for a GPU, has the gradients of its rotations joined, and prints what the graph holds, as JSON."""

import json
from collections import Counter

import torch
import triton
from torch import fx
from torch._functorch.aot_autograd import aot_export_module
from torch._subclasses import FakeTensorMode
from triton.backends.compiler import GPUTarget

from rung import kernels
from rung.kernels import functional
from rung.rewrites.inductor_passes.rotated_joins import place_rotated

BATCH, HEADS, GROUPS, TOKENS, DIM = 2, 4, 2, 6, 16


class Driver:
    """As much of a GPU as tracing asks for: what the tracer compiles to see which arguments a kernel writes to."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> None:
        """Triton 3.2 asks for it where it makes an autotuned kernel."""


class Attention(torch.nn.Module):
    def forward(self, x: torch.Tensor, w: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor]:
        parts = (x @ w).split([heads * DIM for heads in (HEADS, GROUPS, GROUPS)], -1)
        q, k, v = (part.view(BATCH, TOKENS, -1, DIM).transpose(1, 2) for part in parts)
        q, k = (kernels.rope(t, table, table, interleaved=True) for t in (q, k))
        return (torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).sum(),)


def seen(graph: fx.Graph) -> Counter[str]:
    names = [str(node.target) for node in graph.nodes]
    return Counter(name for name in names if "triton" in name or "rung" in name or "cat" in name)


functional.check = lambda *_, **__: None  # the fakes are on a CPU
triton.runtime.driver.set_active(Driver())
with FakeTensorMode():
    inputs = (
        torch.empty(BATCH, TOKENS, 32, requires_grad=True),
        torch.empty(32, (HEADS + 2 * GROUPS) * DIM, requires_grad=True),
        torch.empty(TOKENS, DIM // 2),
    )
    made, _ = aot_export_module(Attention(), inputs, trace_joint=True, output_loss_index=0)
before = seen(made.graph)
place_rotated(made.graph)
made.graph.lint()
[join] = made.graph.find_nodes(op="call_function", target=torch.ops.rung.rotate_into_join.default)
print(
    json.dumps(
        {
            "before": before,
            "after": seen(made.graph),
            "rotated": join.args[1],
            "interleaved, backward": join.args[4:],
        }
    )
)
