"""What a training step could gain by applying the optimizer otherwise: within the backward pass, or by another kernel.

    PYTHONPATH=src python benchmarks/ladder/weights.py --size medium

The products of the backward pass of the built-in transformer's layers run in one CUDA graph with AdamW on their weights: after all
of them, after each layer, and beside the next layer's products on a second stream. Then the kernels alone: torch's, with the casts
of weights to bfloat16 that autocast makes, and one in Triton that reads gradients in 16 bits, writes the bfloat16 copy of each weight, or
keeps its moments in 8 bits. Prints Markdown, ratios of medians of graphs that took turns.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from rung.workload.tiny_transformer import SIZES

ROUNDS = 25
BLOCK = 1024
LR, BETA1, BETA2, EPS, DECAY = 1e-4, 0.9, 0.999, 1e-8, 0.01


@dataclass
class Weight:
    """One linear layer's weight and what its step reads: float32 weight, gradient and moments, bfloat16 copy, input and output gradient."""

    weight: torch.Tensor
    grad: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor
    steps: torch.Tensor
    copy: torch.Tensor
    seen: torch.Tensor
    above: torch.Tensor
    below: torch.Tensor

    @classmethod
    def of(cls, tokens: int, width: int, out: int) -> Weight:
        def zeros() -> torch.Tensor:
            return torch.zeros(out, width, device="cuda")

        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

        return cls(
            drawn(out, width).float(), zeros(), zeros(), zeros(), torch.zeros((), device="cuda"), drawn(out, width),
            drawn(tokens, width), drawn(tokens, out), torch.empty(tokens, width, device="cuda", dtype=torch.bfloat16),
        )  # fmt: skip

    def backward(self) -> None:
        torch.mm(self.above, self.copy, out=self.below)
        torch.ops.aten.mm.dtype_out(self.above.t(), self.seen, torch.float32, out=self.grad)


def stepped(weights: list[Weight]) -> None:
    torch._foreach_add_([w.steps for w in weights], 1)
    torch._fused_adamw_(
        [w.weight for w in weights], [w.grad for w in weights], [w.first for w in weights], [w.second for w in weights], [],
        [w.steps for w in weights], lr=LR, beta1=BETA1, beta2=BETA2, weight_decay=DECAY, eps=EPS, amsgrad=False, maximize=False,
    )  # fmt: skip


def cast(weights: list[Weight]) -> None:
    torch._foreach_copy_([w.copy for w in weights], [w.weight for w in weights])


@triton.jit
def adamw(
    P,
    G,
    M,
    V,
    SM,
    SV,
    C,
    n,
    lr,
    beta1,
    beta2,
    eps,
    decay,
    c1,
    c2,
    COPY: tl.constexpr,
    EIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    p = tl.load(P + at, mask=mask)
    g = tl.load(G + at, mask=mask).to(tl.float32)
    m = tl.load(M + at, mask=mask).to(tl.float32)
    v = tl.load(V + at, mask=mask).to(tl.float32)
    if EIGHT:
        m *= tl.load(SM + tl.program_id(0))
        v *= tl.load(SV + tl.program_id(0))
    m += (g - m) * (1 - beta1)
    v += (g * g - v) * (1 - beta2)
    p = p * (1 - lr * decay) - lr / c1 * m / (tl.sqrt(v / c2) + eps)
    tl.store(P + at, p, mask=mask)
    if COPY:
        tl.store(C + at, p.to(tl.bfloat16), mask=mask)
    if EIGHT:
        of_m = tl.max(tl.abs(m), axis=0) / 448 + 1e-30
        of_v = tl.max(v, axis=0) / 448 + 1e-30
        tl.store(SM + tl.program_id(0), of_m)
        tl.store(SV + tl.program_id(0), of_v)
        tl.store(M + at, (m / of_m).to(tl.float8e4nv), mask=mask)
        tl.store(V + at, (v / of_v).to(tl.float8e4nv), mask=mask)
    else:
        tl.store(M + at, m, mask=mask)
        tl.store(V + at, v, mask=mask)


def by_triton(weights: list[Weight], half: bool = False, copy: bool = False, eight: bool = False) -> Callable[[], None]:
    flat = [
        (
            w.weight,
            w.grad.bfloat16() if half else w.grad,
            *(m.to(torch.float8_e4m3fn) if eight else m for m in (w.first, w.second)),
            w.copy,
        )
        for w in weights
    ]
    scales = [torch.ones(2, triton.cdiv(w.weight.numel(), BLOCK), device="cuda") for w in weights]

    def step() -> None:
        for (p, g, m, v, c), s in zip(flat, scales, strict=True):
            n = p.numel()
            adamw[(triton.cdiv(n, BLOCK),)](
                p, g, m, v, s[0], s[1], c, n, LR, BETA1, BETA2, EPS, DECAY, 0.1, 0.001, COPY=copy, EIGHT=eight, BLOCK=BLOCK, num_warps=4
            )  # fmt: skip

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="medium")
    given = parser.parse_args()
    dim, layers, seq, batch = SIZES[given.size]
    shapes = [(dim, 2 * dim), (dim, dim), (dim, 8 * dim), (4 * dim, dim)]
    model = [[Weight.of(seq * batch, *shape) for shape in shapes] for _ in range(layers)]
    everything = [w for layer in model for w in layer]
    second = torch.cuda.Stream()

    def products() -> None:
        for w in everything:
            w.backward()

    def after_all() -> None:
        products()
        stepped(everything)

    def after_each() -> None:
        for layer in model:
            for w in layer:
                w.backward()
            stepped(layer)

    def beside() -> None:
        main_stream = torch.cuda.current_stream()
        for layer in model:
            for w in layer:
                w.backward()
            second.wait_stream(main_stream)
            with torch.cuda.stream(second):
                stepped(layer)
        main_stream.wait_stream(second)

    count = sum(w.weight.numel() for w in everything)
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {count / 1e6:.0f} M weights of {layers} layers\n"
    )
    table(
        "products of the backward pass",
        {"alone": products, "AdamW after all": after_all, "after each layer": after_each, "on a second stream": beside},
        "AdamW after all",
    )

    def with_casts() -> None:
        stepped(everything)
        cast(everything)

    kernels = {
        "torch's fused AdamW": lambda: stepped(everything),
        "torch's, and the casts of weights": with_casts,
        "Triton": by_triton(everything),
        "Triton, writes copies": by_triton(everything, copy=True),
        "Triton, gradients in 16 bits": by_triton(everything, half=True),
        "Triton, both": by_triton(everything, half=True, copy=True),
        "Triton, both, moments in 8 bits": by_triton(everything, half=True, copy=True, eight=True),
    }
    table("AdamW", kernels, "torch's, and the casts of weights")


def table(title: str, calls: dict[str, Callable[[], None]], base: str) -> None:
    graphs = {name: captured(call) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()
            begin.record()
            graph.replay()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) / 2)
    print(f"| {title} | ms | over *{base}* |\n|---|---|---|")
    for name, seen in times.items():
        ratios = [t / b for t, b in zip(seen, times[base], strict=True)]
        print(f"| {name} | {statistics.median(seen):.3f} | {statistics.median(ratios):.3f} |")
    print()


def captured(call: Callable[[], None]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


if __name__ == "__main__":
    main()
