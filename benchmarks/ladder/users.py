"""Models as users write them, for `rung climb benchmarks/ladder/users.py:gpt`: nothing in them was made for the ladder.

rung climb benchmarks/ladder/users.py:gpt --numerics bf16 --budget 200
rung climb benchmarks/ladder/users.py:resnet --numerics bf16 --budget 120
rung compare benchmarks/ladder/users.py:encoder --rungs bf16,compile,sdpa,capture --verify
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from rung import Workload


class CausalAttention(nn.Module):
    """By hand, its mask in a buffer, dropout on the probabilities."""

    def __init__(self, dim: int, heads: int, longest: int, dropout: float) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.on_weights, self.on_output = nn.Dropout(dropout), nn.Dropout(dropout)
        self.heads = heads
        self.register_buffer("bias", torch.tril(torch.ones(longest, longest)).view(1, 1, longest, longest))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, dim = x.shape
        q, k, v = (
            t.view(batch, tokens, self.heads, dim // self.heads).transpose(1, 2) for t in self.qkv(x).split(dim, dim=2)
        )
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.bias[:, :, :tokens, :tokens] == 0, float("-inf"))
        mixed = self.on_weights(F.softmax(scores, dim=-1)) @ v
        return self.on_output(self.out(mixed.transpose(1, 2).contiguous().view(batch, tokens, dim)))


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, longest: int, dropout: float) -> None:
        super().__init__()
        self.before_attention, self.attention = nn.LayerNorm(dim), CausalAttention(dim, heads, longest, dropout)
        self.before_mlp = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    """GPT-2's shape; the output layer's weight is the embedding's."""

    def __init__(self, vocabulary: int, longest: int, layers: int, heads: int, dim: int, dropout: float) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, dim), nn.Embedding(longest, dim)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(dim, heads, longest, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.dropout(self.tokens(x) + self.positions(torch.arange(x.size(1), device=x.device)))
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(self.norm(hidden))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def gpt(
    layers: int = 12,
    dim: int = 768,
    heads: int = 12,
    seq: int = 1024,
    batch: int = 8,
    dropout: float = 0.1,
    vocabulary: int = 50304,
) -> Workload:
    """Training, 124 M parameters."""

    def inputs(seed: int) -> dict[str, torch.Tensor]:
        text = torch.randint(0, vocabulary, (batch, seq + 1), generator=torch.Generator().manual_seed(seed))
        return {"x": text[:, :-1].contiguous(), "targets": text[:, 1:].contiguous()}

    return Workload(
        "gpt",
        lambda: GPT(vocabulary, seq, layers, heads, dim, dropout),
        inputs,
        loss=lambda output, batch: output[1],
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1),
        tokens=batch * seq,
        output=False,
    )


class Bottleneck(nn.Module):
    def __init__(self, wide_in: int, narrow: int, stride: int = 1) -> None:
        super().__init__()
        wide = narrow * 4
        self.conv1, self.bn1 = nn.Conv2d(wide_in, narrow, 1, bias=False), nn.BatchNorm2d(narrow)
        self.conv2, self.bn2 = nn.Conv2d(narrow, narrow, 3, stride, 1, bias=False), nn.BatchNorm2d(narrow)
        self.conv3, self.bn3 = nn.Conv2d(narrow, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.relu, self.shortcut = nn.ReLU(inplace=True), nn.Identity()
        if stride != 1 or wide_in != wide:
            self.shortcut = nn.Sequential(nn.Conv2d(wide_in, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(y)))))
        y += self.shortcut(x)
        return self.relu(y)


class ResNet(nn.Module):
    """ResNet-50's shape (He et al. 2016)."""

    def __init__(self, counts: tuple[int, ...], width: int, classes: int = 1000) -> None:
        super().__init__()
        first = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.stem = nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        blocks, wide = [], width
        for stage, count in enumerate(counts):
            for k in range(count):
                blocks.append(Bottleneck(wide, width << stage, 2 if stage and not k else 1))
                wide = (width << stage) * 4
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(wide, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def resnet(mode: str = "infer", batch: int = 64, size: int = 224, small: bool = False) -> Workload:
    train = mode == "train"

    def inputs(seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {
            "x": torch.randn(batch, 3, size, size, generator=generator),
            "y": torch.randint(0, 1000, (batch,), generator=generator),
        }

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4)

    return Workload(
        "resnet",
        lambda: ResNet((1, 1, 1, 1), 16) if small else ResNet((3, 4, 6, 3), 64),
        inputs,
        forward=lambda model, batch: model(batch["x"]),
        loss=(lambda output, batch: F.cross_entropy(output, batch["y"])) if train else None,
        optimizer=optimizer if train else None,
        samples=batch,
    )


class Encoder(nn.Module):
    """Torch's own layers, and its attention called as most call it."""

    def __init__(self, dim: int, heads: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.embedding = nn.Embedding(vocabulary, dim)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(self.embedding(x))
        return self.head(hidden + self.attention(hidden, hidden, hidden)[0])


def encoder(
    dim: int = 512, heads: int = 8, layers: int = 3, vocabulary: int = 8000, batch: int = 8, seq: int = 256
) -> Workload:
    """Training."""
    return Workload(
        "encoder",
        lambda: Encoder(dim, heads, layers, vocabulary),
        lambda seed: {"x": torch.randint(0, vocabulary, (batch, seq), generator=torch.Generator().manual_seed(seed))},
        loss=lambda output, batch: F.cross_entropy(output[:, :-1].flatten(0, 1), batch["x"][:, 1:].flatten()),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        tokens=batch * seq,
    )
