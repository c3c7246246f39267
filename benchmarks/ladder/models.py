"""Shapes of well-known models as plain PyTorch modules with random weights, for `hf.py` and for climbs by hand:

    rung climb benchmarks/ladder/models.py:llama --kind decode --batch 16

They are written as Hugging Face writes them (scaled_dot_product_attention, norms in float32, experts in a loop), so
that a machine without transformers measures the same work. `compiled` runs the model under plain torch.compile, in the
mode that it names: what a climb is compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rung import Workload
from rung.workload.tiny_transformer import SwiGLU

Mode = Literal["eager", "default", "reduce-overhead", "max-autotune"]


def drawn(make: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> nn.Module:
    """The module with random weights, on the GPU where there is one: every tensor is cut from one block of normal
    numbers, of a length that is no multiple of any row. Vectors of norms are near one, everything else is small. The
    block is drawn on the CPU, so that one seed gives the same weights everywhere; a billion of them take a second."""
    where = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device("meta"):
        model = make().to(dtype)
    model.to_empty(device=where)
    block = torch.randn(1_000_003).to(where)
    for place, (name, tensor) in enumerate([*model.named_parameters(), *model.named_buffers()]):
        times = -(-tensor.numel() // block.numel())
        noise = block.roll(7919 * place).repeat(times)[: tensor.numel()].view(tensor.shape)
        norm = tensor.dim() == 1 and not name.endswith("bias")
        tensor.data.copy_(1 + 0.1 * noise if norm else noise if name.endswith("_cache") else 0.02 * noise)
    del noise
    torch.cuda.empty_cache()  # several models share the GPU; without one, nothing
    return model


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rope(positions: Tensor, dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin, [batch or 1, 1, tokens, dim], of positions [batch or 1, tokens]."""
    inverse = theta ** (-torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim)
    angle = positions[:, None, :, None].float() * inverse
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def repeat_kv(x: Tensor, times: int) -> Tensor:
    batch, heads, tokens, dim = x.shape
    return x[:, :, None].expand(batch, heads, times, tokens, dim).reshape(batch, heads * times, tokens, dim)


class LlamaAttention(nn.Module):
    """Grouped-query attention; with a cache of `past` entries, one token attends to all of it."""

    def __init__(self, dim: int, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.q_proj = nn.Linear(dim, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(dim, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(dim, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, dim, bias=False)

    def cached(self, batch: int, past: int) -> None:
        for name in ("k_cache", "v_cache"):
            drawn = torch.randn(batch, self.kv_heads, past, self.head_dim)
            self.register_buffer(name, drawn, persistent=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, position: Tensor | None) -> Tensor:
        batch, tokens, _ = x.shape
        q = self.q_proj(x).view(batch, tokens, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, tokens, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, tokens, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        if position is None:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            self.k_cache[:batch].index_copy_(2, position, k.to(self.k_cache.dtype))
            self.v_cache[:batch].index_copy_(2, position, v.to(self.v_cache.dtype))
            keys, values = self.k_cache[:batch], self.v_cache[:batch]
            mask = (torch.arange(keys.shape[2], device=x.device) <= position)[None, None]
            times = self.heads // self.kv_heads
            out = F.scaled_dot_product_attention(q, repeat_kv(keys, times), repeat_kv(values, times), attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).reshape(batch, tokens, -1))


class Experts(nn.Module):
    """The two best of several feed-forwards for each token, one expert after the other."""

    def __init__(self, dim: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(SwiGLU(dim, hidden) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weights, chosen = torch.topk(self.gate(flat).float().softmax(-1), 2, dim=-1)
        weights = (weights / weights.sum(-1, keepdim=True)).to(x.dtype)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == number)
            out.index_add_(0, token, (expert(flat[token]) * weights[token, rank, None]).to(out.dtype))
        return out.view_as(x)


class LlamaBlock(nn.Module):
    def __init__(self, dim: int, heads: int, kv_heads: int, head_dim: int, mlp: nn.Module) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(dim), RMSNorm(dim)
        self.self_attn, self.mlp = LlamaAttention(dim, heads, kv_heads, head_dim), mlp

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, position: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, position)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """tokens [batch, tokens] -> logits; the output shares the embedding's weight."""

    def __init__(
        self, vocabulary: int, dim: int, layers: int, heads: int, kv_heads: int, mlp: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(LlamaBlock(dim, heads, kv_heads, dim // heads, mlp()) for _ in range(layers))
        self.norm, self.head_dim = RMSNorm(dim), dim // heads

    def forward(self, tokens: Tensor, position: Tensor | None = None, last: bool = False) -> Tensor:
        x = self.embed_tokens(tokens)
        places = torch.arange(tokens.shape[1], device=x.device)[None] if position is None else position[None]
        cos, sin = rope(places, self.head_dim, 500000.0, x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin, position)
        x = self.norm(x[:, -1:] if last else x)
        return F.linear(x, self.embed_tokens.weight)


class EncoderBlock(nn.Module):
    """Post-norm (BERT) or pre-norm (ViT, GPT-2) attention and feed-forward with biases."""

    def __init__(self, dim: int, heads: int, *, pre: bool, causal: bool, joined: bool, gelu: str = "none") -> None:
        super().__init__()
        self.heads, self.pre, self.causal, self.gelu = heads, pre, causal, gelu
        self.first, self.second = nn.LayerNorm(dim), nn.LayerNorm(dim)
        if joined:
            self.qkv = nn.Linear(dim, 3 * dim)
        else:
            self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.out, self.up, self.down = nn.Linear(dim, dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, tokens, dim = x.shape
        parts = self.qkv(x).chunk(3, -1) if hasattr(self, "qkv") else (self.query(x), self.key(x), self.value(x))
        q, k, v = (t.view(batch, tokens, self.heads, -1).transpose(1, 2) for t in parts)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.out(out.transpose(1, 2).reshape(batch, tokens, dim))

    def feed(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate=self.gelu))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.pre:
            x = x + self.attend(self.first(x), mask)
            return x + self.feed(self.second(x))
        x = self.first(x + self.attend(x, mask))
        return self.second(x + self.feed(x))


class Bert(nn.Module):
    """tokens and attention_mask [batch, tokens] -> the last hidden state."""

    def __init__(self, dim: int = 1024, layers: int = 24, heads: int = 16, vocabulary: int = 30522) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, dim), nn.Embedding(512, dim)
        self.kinds, self.norm = nn.Embedding(2, dim), nn.LayerNorm(dim)
        self.layer = nn.ModuleList(
            EncoderBlock(dim, heads, pre=False, causal=False, joined=False) for _ in range(layers)
        )

    def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.words(tokens) + self.places(places) + self.kinds(torch.zeros_like(tokens)))
        mask = attention_mask[:, None, None, :].bool()
        for layer in self.layer:
            x = layer(x, mask)
        return x


class ViT(nn.Module):
    """images [batch, 3, side, side] -> class logits."""

    def __init__(self, dim: int = 1024, layers: int = 24, heads: int = 16, side: int = 224, patch: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.cls, self.places = (nn.Parameter(torch.randn(1, n, dim) * 0.02) for n in (1, (side // patch) ** 2 + 1))
        self.layers = nn.ModuleList(
            EncoderBlock(dim, heads, pre=True, causal=False, joined=False) for _ in range(layers)
        )
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 1000)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(x.shape[0], -1, -1), x), dim=1) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


class GPT2(nn.Module):
    """tokens [batch, tokens] -> logits; the output shares the embedding's weight."""

    def __init__(self, dim: int = 1024, layers: int = 24, heads: int = 16, vocabulary: int = 50257) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, dim), nn.Embedding(1024, dim)
        self.h = nn.ModuleList(
            EncoderBlock(dim, heads, pre=True, causal=True, joined=True, gelu="tanh") for _ in range(layers)
        )
        self.ln_f = nn.LayerNorm(dim)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def _under(mode: Mode, call: Callable[..., Any]) -> Callable[..., Any]:
    """The call under plain torch.compile; `default` is torch.compile without a mode."""
    if mode == "eager":
        return call
    compiled = torch.compile(call, mode=None if mode == "default" else mode, dynamic=False)
    if mode not in ("reduce-overhead", "max-autotune"):
        return compiled

    def marked(model: nn.Module, batch: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(model, batch)

    return marked


def _tokens(vocabulary: int, rows: int, length: int, seed: int) -> Tensor:
    return torch.randint(vocabulary, (rows, length), generator=torch.Generator().manual_seed(seed))


def _language(
    name: str, model: Callable[[], nn.Module], vocabulary: int, batch: int, tokens: int, train: bool, mode: Mode
) -> Workload:
    """Next-token training under autocast on float32 weights, or a forward of bfloat16 weights. In training the forward
    ends in the loss, as a Hugging Face model's does that is given labels: nobody needs the logits themselves."""

    def inputs(rows: int, length: int, seed: int) -> dict[str, Tensor]:
        drawn = _tokens(vocabulary, rows, length + 1, seed)
        return {"tokens": drawn[:, :-1].contiguous(), "targets": drawn[:, 1:].contiguous()}

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch["tokens"]).flatten(0, 1).float(), batch["targets"].flatten())

    return Workload(
        name=name,
        model=lambda: drawn(model, torch.float32 if train else torch.bfloat16),
        inputs=lambda seed: inputs(batch, tokens, seed),
        forward=_under(mode, loss if train else lambda model, batch: model(batch["tokens"])),
        mode="train" if train else "infer",
        loss=(lambda found, batch: found) if train else None,
        optimizer=(lambda parameters: torch.optim.AdamW(parameters, lr=1e-4)) if train else None,
        other_shapes=(lambda seed: inputs(batch + 1 if batch < 4 else batch - 1, max(tokens // 2 - 1, 1), seed),),
        amp=torch.bfloat16 if train else None,
        samples=batch,
        tokens=batch * tokens,
    )


def llama(
    kind: Literal["prefill", "decode", "train"] = "prefill",
    batch: int = 1,
    tokens: int = 2048,
    past: int = 1024,
    compiled: Mode = "eager",
    layers: int = 16,
    dim: int = 2048,
    hidden: int = 8192,
    vocabulary: int = 128256,
) -> Workload:
    """Llama-3.2-1B's shape. decode: one token a sequence on a full cache of `past` entries."""
    name = f"llama-3.2-1b {kind} {batch}x{1 if kind == 'decode' else tokens}"

    def model() -> Llama:
        return Llama(vocabulary, dim, layers, 32, 8, lambda: SwiGLU(dim, hidden))

    if kind == "train":
        return _language(name, model, vocabulary, batch, tokens, True, compiled)
    decode = kind == "decode"
    rows = batch + 1

    def made() -> nn.Module:
        def whole() -> Llama:
            built = model()
            for layer in built.layers if decode else ():
                layer.self_attn.cached(rows, past)
            return built

        return drawn(whole, torch.bfloat16)

    def inputs(count: int, length: int, seed: int) -> dict[str, Tensor]:
        given = {"tokens": _tokens(vocabulary, count, length, seed)}
        return {**given, "position": torch.tensor([past - 1])} if decode else given

    def forward(model: Llama, batch: dict[str, Tensor]) -> Tensor:
        return model(batch["tokens"], batch.get("position"), last=True)

    length = 1 if decode else tokens
    return Workload(
        name=name,
        model=made,
        inputs=lambda seed: inputs(batch, length, seed),
        forward=_under(compiled, forward),
        other_shapes=(lambda seed: inputs(rows, length if decode else length // 2 - 1, seed),),
        samples=batch,
        tokens=batch * length,
    )


def mixtral(
    batch: int = 4, tokens: int = 512, compiled: Mode = "eager", layers: int = 8, dim: int = 1024, experts: int = 8
) -> Workload:
    """Mixtral, small: 8 experts of which two see a token."""
    return _language(
        f"mixtral-small {batch}x{tokens}",
        lambda: Llama(32000, dim, layers, 16, 4, lambda: Experts(dim, 7 * dim // 2, experts)),
        32000, batch, tokens, False, compiled,
    )  # fmt: skip


def gpt2(
    batch: int = 8, tokens: int = 1024, train: bool = True, compiled: Mode = "eager", layers: int = 24, dim: int = 1024
) -> Workload:
    """GPT-2 medium."""
    kind = "train" if train else "infer"
    return _language(
        f"gpt2-medium {kind} {batch}x{tokens}", lambda: GPT2(dim, layers), 50257, batch, tokens, train, compiled
    )


def bert(batch: int = 8, tokens: int = 384, compiled: Mode = "eager", layers: int = 24, dim: int = 1024) -> Workload:
    """BERT-large, inference; the last eighth of every second sequence is padding."""

    def inputs(rows: int, length: int, seed: int) -> dict[str, Tensor]:
        mask = torch.ones(rows, length, dtype=torch.int64)
        mask[1::2, length - length // 8 :] = 0
        return {"tokens": _tokens(30522, rows, length, seed), "attention_mask": mask}

    return Workload(
        name=f"bert-large {batch}x{tokens}",
        model=lambda: drawn(lambda: Bert(dim, layers), torch.bfloat16),
        inputs=lambda seed: inputs(batch, tokens, seed),
        forward=_under(compiled, lambda model, batch: model(**batch)),
        other_shapes=(lambda seed: inputs(batch + 1, tokens // 2 - 1, seed),),
        samples=batch,
        tokens=batch * tokens,
    )


def vit(batch: int = 32, compiled: Mode = "eager", layers: int = 24, dim: int = 1024) -> Workload:
    """ViT-L/16, inference on images of 224 x 224."""

    def inputs(rows: int, seed: int) -> Tensor:
        return torch.randn(rows, 3, 224, 224, generator=torch.Generator().manual_seed(seed)).bfloat16()

    return Workload(
        name=f"vit-l/16 {batch}x224",
        model=lambda: drawn(lambda: ViT(dim, layers), torch.bfloat16),
        inputs=lambda seed: inputs(batch, seed),
        forward=_under(compiled, lambda model, batch: model(batch)),
        other_shapes=(lambda seed: inputs(batch + 1, seed),),
        samples=batch,
    )
