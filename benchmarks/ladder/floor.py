"""How fast a training step of the built-in transformer can be on this GPU: its products, attention and optimizer alone.

    PYTHONPATH=src python benchmarks/ladder/floor.py --size medium

Every matrix product of the step (forward, gradient of the input, gradient of the weight) is timed by itself in bfloat16,
as are attention in each of torch's ways and the fused optimizer. Beside them: what each would take at the best rate and
bandwidth seen here, those of a large square product and a large copy among them. Neither sum has norms, rotary embedding,
activations, residuals, casts or the loss in it. Prints Markdown.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import rung
from rung.workload.tiny_transformer import SIZES, VOCABULARY, TinyTransformer

HEADS = 8
SQUARE = 8192  # of the large product
COPIED = 1 << 30  # bytes of the large copy
ADAM_BYTES = 28  # a parameter: weight, two moments and gradient read, weight and two moments written, in float32


@dataclass(frozen=True)
class Row:
    what: str
    count: int
    flops: float
    nbytes: float
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="medium")
    parser.add_argument("--seconds", type=float, default=0.7, help="of measuring, each (default: 0.7)")
    given = parser.parse_args()

    def timed(call: Callable[[], object]) -> float:
        return rung.bench(call, seconds=given.seconds, precision=0.01, timer="graph").interval.value / 1e9

    dim, layers, seq, batch = SIZES[given.size]
    rows = [
        *products(dim, layers, seq * batch, timed),
        *attention(dim, layers, seq, batch, timed),
        optimizer(dim, layers, timed),
    ]
    square, copied = ceilings(timed)
    # A large product is slower than those of the step where it draws more power than the GPU may.
    rate = max(square, *(r.flops / r.seconds for r in rows))
    bandwidth = max(copied, *(r.nbytes / r.seconds for r in rows if not r.flops))
    reached = f"{rate / 1e12:.0f} TFLOP/s, {bandwidth / 1e12:.2f} TB/s"
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: {reached}\n")
    print("| what | in a step | ms each | ms | TFLOP/s | ms at the rates above |\n|---|---|---|---|---|---|")
    for r in rows:
        least = max(r.flops / rate, r.nbytes / bandwidth)
        reached = f"{r.flops / r.seconds / 1e12:.0f}" if r.flops else ""
        print(
            f"| {r.what} | {r.count} | {1e3 * r.seconds:.3f} | {1e3 * r.count * r.seconds:.2f} | {reached} | {1e3 * r.count * least:.2f} |"
        )
    for title, left_out in (("q, k, v and gate, up apart", "joined"), ("joined", "apart")):
        counted = [r for r in rows if left_out not in r.what]
        ways = [r for r in counted if r.what.startswith("attention")]
        best = min(ways, key=lambda r: r.seconds)
        counted = [r for r in counted if r not in ways] + [best]
        alone = sum(r.count * r.seconds for r in counted)
        least = sum(r.count * max(r.flops / rate, r.nbytes / bandwidth) for r in counted)
        print(
            f"\n{title}: {1e3 * alone:.2f} ms as measured one by one, {1e3 * least:.2f} ms at the rates above ({best.what})"
        )


def ceilings(timed: Callable[[Callable[[], object]], float]) -> tuple[float, float]:
    """FLOP/s of a large product and bytes/s of a large copy, read and written."""
    a, b = drawn(SQUARE, SQUARE), drawn(SQUARE, SQUARE)
    source, target = (torch.empty(COPIED, dtype=torch.uint8, device="cuda") for _ in range(2))
    return 2 * SQUARE**3 / timed(lambda: a @ b), 2 * COPIED / timed(lambda: target.copy_(source))


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def products(dim: int, layers: int, tokens: int, timed: Callable[[Callable[[], object]], float]) -> list[Row]:
    widths = {
        "q, o": (2 * layers, dim, dim), "k, v (apart)": (2 * layers, dim, dim // 2),
        "gate, up (apart)": (2 * layers, dim, 4 * dim), "down": (layers, 4 * dim, dim),
        "q, k, v (joined)": (layers, dim, 2 * dim), "gate, up (joined)": (layers, dim, 8 * dim),
        "logits": (1, dim, VOCABULARY),
    }  # fmt: skip
    rows = []
    for name, (count, width, out) in widths.items():
        x, w, g = drawn(tokens, width), drawn(out, width), drawn(tokens, out)
        calls = {"forward": lambda: x @ w.t(), "of input": lambda: g @ w, "of weight": lambda: g.t() @ x}  # noqa: B023
        for which, call in calls.items():
            nbytes = 2 * (tokens * width + tokens * out + width * out)
            rows.append(Row(f"{name}: {which}", count, 2 * tokens * width * out, nbytes, timed(call)))
    # q is apart from o in the joined form, where o alone is left.
    return [r for r in rows if not r.what.startswith("q, o")] + [
        Row(r.what.replace("q, o", name), layers, r.flops, r.nbytes, r.seconds)
        for r in rows if r.what.startswith("q, o") for name in ("q (apart)", "o")
    ]  # fmt: skip


def attention(dim: int, layers: int, seq: int, batch: int, timed: Callable[[Callable[[], object]], float]) -> list[Row]:
    head = dim // HEADS
    q, k, v = (drawn(batch, n, seq, head).requires_grad_() for n in (HEADS, HEADS // 2, HEADS // 2))
    out_grad = drawn(batch, HEADS, seq, head)
    once = 2 * 2 * batch * HEADS * seq * seq * head / 2  # two products, half of it masked
    moved = 2 * batch * seq * head * (2 * HEADS + 2 * HEADS // 2)
    rows = []
    for name, way in (("flash", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION)):

        def forward(way: SDPBackend = way) -> torch.Tensor:
            with sdpa_kernel(way):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        def both() -> object:
            return torch.autograd.grad(forward(), (q, k, v), out_grad)

        try:
            rows.append(Row(f"attention, {name}: forward and backward", layers, 3.5 * once, 3 * moved, timed(both)))
        except (RuntimeError, rung.RungError) as error:
            print(f"attention, {name}: {str(error).splitlines()[0][:150]}\n")
    return rows


def optimizer(dim: int, layers: int, timed: Callable[[Callable[[], object]], float]) -> Row:
    model = TinyTransformer(dim, layers, HEADS).to("cuda")
    adam = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    adam.step()
    count = sum(p.numel() for p in model.parameters())
    return Row(f"AdamW, fused, {count / 1e6:.0f} M parameters", 1, 0.0, ADAM_BYTES * count, timed(adam.step))


if __name__ == "__main__":
    main()
