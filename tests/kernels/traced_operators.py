"""Run in a process of its own, where kernels are no interpreter's: traces every function, forward and (where it has one) backward, on fake
tensors as torch.compile does for a GPU, and prints what the graphs hold, as JSON by the function's name."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch._functorch.aot_autograd import aot_export_module
from torch._subclasses import FakeTensorMode
from triton.backends.compiler import GPUTarget

from rung import kernels
from rung.kernels import functional
from rung.kernels.families import float32_attention
from rung.kernels.families.k_major import k_major


class Driver:
    """As much of a GPU as tracing asks for: what the tracer compiles to see which arguments a kernel writes to."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


class Loss(torch.nn.Module):
    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.fn(*inputs).float().sum(),)


def t(*shape: int, grad: bool = True, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, requires_grad=grad)


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "rope": (kernels.rope, lambda: (t(2, 8, 4, 64).transpose(1, 2), t(8, 64, grad=False), t(8, 64, grad=False))),
    "cross_entropy": (kernels.cross_entropy, lambda: (t(8, 500), torch.empty(8, dtype=torch.int64))),
    "biased_attention": (
        kernels.biased_attention,
        lambda: (*(t(8, 49, 4, 32).transpose(1, 2) for _ in range(3)), t(1, 4, 49, 49, dtype=torch.float32)),
    ),
    "biased_attention_dropout": (
        lambda *given: kernels.biased_attention(*given, dropout_p=0.1),
        lambda: (*(t(8, 49, 4, 32).transpose(1, 2) for _ in range(3)), t(1, 4, 49, 49, dtype=torch.float32)),
    ),
    "biased_attention_blocks": (
        kernels.biased_attention,
        lambda: (*(t(8, 300, 4, 64).transpose(1, 2) for _ in range(3)), t(1, 4, 300, 300)),
    ),
    "float32_attention": (
        lambda q, k, v: q * float32_attention.apply(2 * q, k, v, True, 0.1, True)[0],
        lambda: tuple(t(2, heads, 200, 64, dtype=torch.float32) for heads in (4, 2, 2)),
    ),
}

FORWARD = {
    "k_major": (lambda x: k_major(x, 0), lambda: (t(8, 64, grad=False),)),
    "gemv": (kernels.gemv, lambda: (t(1, 1, 64, grad=False), t(90, 64, grad=False), t(90, grad=False))),
    "decode_attention": (
        kernels.decode_attention,
        lambda: (*(t(2, h, n, 64, grad=False) for h, n in ((8, 1), (2, 90), (2, 90))), torch.ones(1, 90) > 0),
    ),
}


def held(fn: Callable[..., Any], inputs: Callable[[], tuple[torch.Tensor, ...]], **told: Any) -> list[str]:
    """What the graph calls."""
    with FakeTensorMode():
        graph, _ = aot_export_module(Loss(fn), inputs(), **told)
    return [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]


functional.check = lambda *_, **__: None  # the fakes are on a CPU
triton.runtime.driver.set_active(Driver())
found = {}
for name, (fn, inputs) in {**CASES, **FORWARD}.items():
    told = {"trace_joint": True, "output_loss_index": 0} if name in CASES else {"trace_joint": False}
    names = held(fn, inputs, **told)
    found[name] = Counter(n for n in names if "triton" in n or "rung" in n or "clone" in n)
print(json.dumps(found))
