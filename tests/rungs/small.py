"""Workloads of a few neurons, one for each kind of place in which a rung works, and what stands in for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from rung.engine.compiled import Renewed
from rung.workload import Workload

WIDTH, TOKENS, STEPS = 16, 12, 4


class Block(nn.Module):
    """What compilers fuse: products with something before and after them, and two that do not depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.left, self.right = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.up(self.norm(x)))
        left, right = self.left(h), self.right(h)
        return x + 0.7 * left * torch.sigmoid(right)


class Blocks(nn.Module):
    def __init__(self, count: int = 1) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def numbers(*shape: int) -> Callable[[int], torch.Tensor]:
    return lambda seed: torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def trained(infer: Workload, optimizer: Callable[[Any], torch.optim.Optimizer]) -> Workload:
    return Workload(infer.name, infer.model, infer.inputs, mode="train", optimizer=optimizer,
                    loss=lambda output, batch: output.square().mean())  # fmt: skip


def uneven(model: nn.Module) -> nn.Module:
    """Rows of weights of different sizes, as trained ones are."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.data *= torch.linspace(0.5, 2, module.out_features)[:, None]
    return model


PRODUCTS = Workload("products", Blocks, numbers(4, WIDTH))
DEEP = Workload("deep", lambda: Blocks(4), numbers(4, WIDTH))
HALF = Workload("half", lambda: uneven(Blocks()).bfloat16(), lambda seed: numbers(4, WIDTH)(seed).bfloat16())
TRAINED = trained(PRODUCTS, lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1))
# Without a step counter: a CPU has no capturable Adam.
RECORDED = trained(PRODUCTS, lambda p: torch.optim.SGD(p, lr=0.1))


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.relu(self.norm(self.first(x))))


IMAGES = Workload("images", Images, numbers(2, 3, 6, 6))


class Attention(nn.Module):
    """A model with a switch of its own, as Hugging Face's have it."""

    def __init__(self, kind: str = "eager") -> None:
        super().__init__()
        self.qkv, self.config = nn.Linear(WIDTH, 3 * WIDTH), SimpleNamespace(_attn_implementation=kind)

    def set_attn_implementation(self, name: str) -> None:
        self.config._attn_implementation = name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.view(*x.shape[:2], 2, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.config._attn_implementation == "sdpa":
            return self.attend(q, k, v).transpose(1, 2).flatten(2)
        above = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(above, float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


ATTENTION = Workload("attention", Attention, numbers(2, 5, WIDTH))
SDPA = Workload("attention by SDPA", lambda: Attention("sdpa"), numbers(2, 5, WIDTH))


class Writer(nn.Module):
    """Writes token after token; its cache grows, or has a fixed size and is emptied in `empty`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.generation_config = SimpleNamespace(cache_implementation=None)
        self.size, self.offset, self.cache = STEPS + 8, 0, None

    def empty(self, rows: int) -> None:
        self.cache = None

    def generate(self, prompt: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.empty(len(prompt))
        tokens, logits = prompt, []
        for _ in range(STEPS):
            new = tokens if not logits else tokens[:, -1:]
            logits.append(self._next(self.embed(new), tokens.shape[1]))
            tokens = torch.cat([tokens, logits[-1].argmax(-1, keepdim=True)], 1)
        return tokens, torch.stack(logits, 1)

    def _next(self, x: torch.Tensor, length: int) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        kept = self.cache
        if self.generation_config.cache_implementation == "static":
            if kept is None or kept[0].shape[0] != len(x):
                kept = tuple(torch.zeros(len(x), self.size, WIDTH, dtype=x.dtype) for _ in range(2))
            at = slice(length - x.shape[1] + self.offset, length + self.offset)
            for whole, part in zip(kept, (k, v), strict=True):
                whole[:, at] = part[:, : len(range(*at.indices(self.size)))]
            k, v = (whole[:, :length] for whole in kept)
        elif kept is not None:
            kept = k, v = torch.cat([kept[0], k], 1), torch.cat([kept[1], v], 1)
        self.cache = kept if kept is not None else (k, v)
        return (F.scaled_dot_product_attention(q[:, -1:], k, v)[:, 0]) @ self.embed.weight.T


WRITER = Workload(
    "writer", Writer, lambda seed: torch.randint(TOKENS, (2, 3), generator=torch.Generator().manual_seed(seed)),
    lambda model, batch: model.generate(batch),
)  # fmt: skip


class Recorded:
    """A CPU's stand-in for `rung.engine.cuda_graph.GraphedStep`: the third call of a shape records what runs, and what is
    recorded reads its inputs, and writes its results, where they lay then. The switches are slips of an implementation."""

    inputs = gradients = rate = shape = result = True

    def __init__(self, run: Any, device: Any, model: Any, optimizer: Any, renewed: Any) -> None:
        self.run, self.optimizer, self.renewed = run, optimizer, renewed
        self.calls: dict[Any, int] = {}
        self.kept: dict[Any, Any] = {}

    def __call__(self, batch: torch.Tensor) -> Any:
        if self.renewed() is Renewed.STEP:
            self.calls, self.kept = {}, {}
        key = batch.shape if self.shape else "any"
        self.calls[key] = self.calls.get(key, 0) + 1
        if self.calls[key] <= 2:
            return self.run(batch)
        first = key not in self.kept
        if first:
            self.kept[key] = [batch.clone(), None, self.optimizer and self.optimizer.param_groups[0]["lr"]]
        static, result, rate = self.kept[key]
        if self.inputs:
            static.copy_(batch) if static.shape == batch.shape else static[: len(batch)].copy_(batch[: len(static)])
        parameters = self.optimizer.param_groups[0]["params"] if self.optimizer else []
        before = [p.grad for p in parameters]
        if self.optimizer and not self.rate:
            now, self.optimizer.param_groups[0]["lr"] = self.optimizer.param_groups[0]["lr"], rate
        made = self.run(static)
        if self.optimizer and not self.rate:
            self.optimizer.param_groups[0]["lr"] = now
        if not self.gradients:
            for parameter, gradient in zip(parameters, before, strict=True):
                parameter.grad = gradient
        if result is None:
            self.kept[key][1] = made
            return made
        if self.result:
            pytree.tree_map(lambda old, new: old.copy_(new), result, made)
        return result

    @property
    def shapes(self) -> int:
        return len(self.kept)
