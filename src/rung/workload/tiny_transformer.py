"""The built-in workload: a small LLaMA-style decoder, written the way people write one first.

Nothing here is fused, cached or clever: this is the baseline that a climb starts from.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rung.errors import UsageError
from rung.workload.base import Parallel, Workload

VOCABULARY = 1000

#        hidden, layers, sequence, batch
SIZES = {
    "tiny": (256, 4, 128, 8),
    "small": (512, 8, 256, 8),
    "medium": (1024, 12, 512, 16),
    "large": (2048, 16, 1024, 8),
}


class RMSNorm(nn.Module):
    """x / rms(x) * weight, over the last dimension (Zhang and Sennrich 2019)."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x: Tensor, theta: float = 10000.0) -> Tensor:
    """Rotary embedding of consecutive pairs; x: [batch, heads, seq, head_dim] (Su et al. 2021)."""
    seq, dim = x.shape[-2:]
    inverse = theta ** (-torch.arange(0, dim, 2, device=x.device, dtype=torch.float32) / dim)
    angle = torch.outer(torch.arange(seq, device=x.device, dtype=torch.float32), inverse)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Attention(nn.Module):
    """Causal grouped-query attention with half as many key-value heads as query heads."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, heads // 2, dim // heads
        self.q_proj = nn.Linear(dim, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(dim, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(dim, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        q = self.q_proj(x).view(batch, seq, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, seq, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, seq, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q), rotate(k)
        k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
        v = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        scores = torch.matmul(q, k.transpose(-2, -1)) * self.head_dim**-0.5
        mask = torch.full((seq, seq), float("-inf"), device=x.device, dtype=scores.dtype).triu(1)
        weights = torch.softmax(scores + mask, dim=-1)
        out = torch.matmul(weights, v).transpose(1, 2).reshape(batch, seq, -1)
        return self.o_proj(out)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020)."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Pre-norm attention and feed-forward, each with a residual."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(dim)
        self.attention = Attention(dim, heads)
        self.mlp_norm = RMSNorm(dim)
        self.mlp = SwiGLU(dim, 4 * dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class TinyTransformer(nn.Module):
    """tokens [batch, seq] int64 -> logits [batch, seq, vocabulary]; the output shares the embedding's weight."""

    def __init__(self, dim: int, layers: int, heads: int, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = RMSNorm(dim)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embedding.weight)


def make(
    size: Literal["tiny", "small", "medium", "large"] | None = None,
    mode: Literal["train", "infer"] = "train",
    batch_size: int | None = None,
    seq_len: int | None = None,
    hidden_dim: int | None = None,
    num_layers: int | None = None,
    num_heads: int = 8,
    learning_rate: float = 3e-4,
    use_amp: bool = False,
    num_steps: int = 50,
    parallel: Parallel = "ddp",
) -> Workload:
    """A small LLaMA-style decoder; a size sets the dimensions that are not given (default: small, on a machine without a GPU tiny)."""
    size = size or ("small" if torch.cuda.is_available() else "tiny")
    defaults = SIZES[size]
    given = (hidden_dim, num_layers, seq_len, batch_size)
    dim, layers, seq, batch = (d if g is None else g for d, g in zip(defaults, given, strict=True))
    for name, value in (
        ("batch-size", batch),
        ("seq-len", seq),
        ("num-layers", layers),
        ("num-steps", num_steps),
    ):
        if value < 1:
            raise UsageError(f"--{name} is {value}; it must be at least 1.")
    if num_heads < 2 or num_heads % 2 or dim % num_heads or (dim // num_heads) % 2:
        raise UsageError(
            f"--hidden-dim {dim} with --num-heads {num_heads}: heads must be even, and divide the hidden "
            "dimension into an even head size."
        )

    def tokens(rows: int, length: int, seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randint(VOCABULARY, (rows, length + 1), generator=generator)
        return {"tokens": drawn[:, :-1].contiguous(), "targets": drawn[:, 1:].contiguous()}

    def forward(model: nn.Module, batch: dict[str, Tensor]) -> Any:
        return model(batch["tokens"])

    def loss(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())

    odd_rows, odd_length = (3 if batch != 3 else 2), max(1, seq // 2 - 1)
    return Workload(
        name=f"tiny-transformer {size}" if given == (None,) * 4 else "tiny-transformer",
        model=lambda: TinyTransformer(dim, layers, num_heads),
        inputs=lambda seed: tokens(batch, seq, seed),
        forward=forward,
        mode=mode,
        loss=loss if mode == "train" else None,
        optimizer=(lambda params: torch.optim.AdamW(params, lr=learning_rate)) if mode == "train" else None,
        other_shapes=(lambda seed: tokens(odd_rows, odd_length, seed),),
        amp=torch.bfloat16 if use_amp else None,
        samples=batch,
        tokens=batch * seq,
        steps=num_steps,
        parallel=parallel,
        options={
            "mode": mode, "batch_size": batch, "seq_len": seq, "hidden_dim": dim, "num_layers": layers,
            "num_heads": num_heads, "learning_rate": learning_rate, "use_amp": use_amp, "num_steps": num_steps,
            "parallel": parallel,
        },
    )  # fmt: skip
