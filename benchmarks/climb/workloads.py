"""Models that no test and no rule of the climb was made on, with random weights: what `time_to_answer.py` climbs.

transformers' and timm's by configuration; two written by hand, one of them with one valid input shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import rung


def tokens(rows: int, length: int, vocabulary: int) -> Callable[[int], torch.Tensor]:
    """A maker of token ids, (rows, length), int64."""
    return lambda seed: torch.randint(vocabulary, (rows, length), generator=torch.Generator().manual_seed(seed))


def images(rows: int, size: int) -> Callable[[int], torch.Tensor]:
    """A maker of images, (rows, 3, size, size), float32."""
    return lambda seed: torch.randn(rows, 3, size, size, generator=torch.Generator().manual_seed(seed))


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


def decoder(rows: int = 4, length: int = 512) -> rung.Workload:
    """A decoder-only language model of 596 M parameters, prefill."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=True, use_cache=False,
    )  # fmt: skip
    ids = tokens(rows, length, config.vocab_size)
    return rung.Workload(
        "decoder", lambda: Qwen3ForCausalLM(config), lambda seed: {"input_ids": ids(seed)},
        forward=lambda model, batch: model(**batch).logits, tokens=rows * length,
    )  # fmt: skip


def translation(rows: int = 8, length: int = 128) -> rung.Workload:
    """An encoder-decoder of 139 M parameters, training."""
    from transformers import BartConfig, BartForConditionalGeneration

    config = BartConfig(d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12,
                        decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072, dropout=0.0, use_cache=False)  # fmt: skip
    source, target = tokens(rows, length, config.vocab_size), tokens(rows, length, config.vocab_size)
    return rung.Workload(
        "translation", lambda: BartForConditionalGeneration(config),
        lambda seed: {"input_ids": source(seed), "decoder_input_ids": target(seed + 1), "labels": target(seed + 2)},
        forward=lambda model, batch: model(input_ids=batch["input_ids"], decoder_input_ids=batch["decoder_input_ids"]).logits,
        loss=lambda logits, batch: F.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten()),
        optimizer=adamw, output=False, tokens=2 * rows * length,
    )  # fmt: skip


def speech(rows: int = 4) -> rung.Workload:
    """A speech encoder of 94 M parameters on 5 s of sound, inference."""
    from transformers import HubertConfig, HubertModel

    sound = lambda seed: torch.randn(rows, 80_000, generator=torch.Generator().manual_seed(seed))  # noqa: E731
    return rung.Workload(
        "speech", lambda: HubertModel(HubertConfig()), lambda seed: {"input_values": sound(seed)},
        forward=lambda model, batch: model(**batch).last_hidden_state, samples=rows,
    )  # fmt: skip


def vision(rows: int = 64) -> rung.Workload:
    """A ConvNeXt of 29 M parameters, training."""
    import timm

    def inputs(seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {
            "x": torch.randn(rows, 3, 224, 224, generator=generator),
            "y": torch.randint(1000, (rows,), generator=generator),
        }

    return rung.Workload(
        "vision", lambda: timm.create_model("convnext_tiny"), inputs, forward=lambda model, batch: model(batch["x"]),
        loss=lambda output, batch: F.cross_entropy(output, batch["y"]), optimizer=adamw, output=False, samples=rows,
    )  # fmt: skip


def vision_infer(rows: int = 32) -> rung.Workload:
    """A vision transformer of 22 M parameters, inference."""
    import timm

    return rung.Workload(
        "vision-infer", lambda: timm.create_model("vit_small_patch16_224"), images(rows, 224), samples=rows
    )


class Furrow(nn.Module):
    """Attention with rotary positions and a gated feed-forward, in names that no rewrite knows."""

    def __init__(self, breadth: int, plaits: int) -> None:
        super().__init__()
        self.plaits, self.strand = plaits, breadth // plaits
        self.alpha, self.omega = nn.RMSNorm(breadth), nn.RMSNorm(breadth)
        self.seek, self.hold, self.bear = (nn.Linear(breadth, breadth, bias=False) for _ in range(3))
        self.weave = nn.Linear(breadth, breadth, bias=False)
        self.sluice, self.rise = (
            nn.Linear(breadth, 3 * breadth, bias=False),
            nn.Linear(breadth, 3 * breadth, bias=False),
        )
        self.fall = nn.Linear(3 * breadth, breadth, bias=False)

    def forward(self, tide: torch.Tensor, turn: torch.Tensor, drift: torch.Tensor) -> torch.Tensor:
        count, steps, breadth = tide.shape
        calm = self.alpha(tide)
        q, k, v = (
            part(calm).view(count, steps, self.plaits, self.strand).transpose(1, 2)
            for part in (self.seek, self.hold, self.bear)
        )
        q, k = (
            t * turn + torch.cat([-t[..., self.strand // 2 :], t[..., : self.strand // 2]], -1) * drift for t in (q, k)
        )
        pull = (q @ k.transpose(-2, -1)) / math.sqrt(self.strand)
        ahead = torch.ones(steps, steps, dtype=torch.bool, device=tide.device).triu(1)
        bond = pull.masked_fill(ahead, float("-inf")).softmax(-1) @ v
        tide = tide + self.weave(bond.transpose(1, 2).reshape(count, steps, breadth))
        calm = self.omega(tide)
        return tide + self.fall(F.silu(self.sluice(calm)) * self.rise(calm))


class Estuary(nn.Module):
    """(rows, length) token ids to (rows, length, vocabulary) logits."""

    def __init__(self, vocabulary: int = 16000, breadth: int = 640, depth: int = 10, plaits: int = 10) -> None:
        super().__init__()
        self.spring = nn.Embedding(vocabulary, breadth)
        self.furrows = nn.ModuleList([Furrow(breadth, plaits) for _ in range(depth)])
        self.last, self.mouth = nn.RMSNorm(breadth), nn.Linear(breadth, vocabulary, bias=False)
        strand = breadth // plaits
        self.register_buffer("pace", 10000.0 ** (-torch.arange(0, strand, 2) / strand), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        angle = torch.outer(torch.arange(ids.shape[1], device=ids.device), self.pace).repeat(1, 2)
        tide = self.spring(ids)
        for furrow in self.furrows:
            tide = furrow(tide, angle.cos(), angle.sin())
        return self.mouth(self.last(tide))


def handwritten(rows: int = 8, length: int = 512) -> rung.Workload:
    """A decoder of 74 M parameters in names of its own, training."""
    source, target = tokens(rows, length, 16000), tokens(rows, length, 16000)
    return rung.Workload(
        "handwritten", Estuary, lambda seed: {"ids": source(seed), "next": target(seed + 1)},
        forward=lambda model, batch: model(batch["ids"]),
        loss=lambda logits, batch: F.cross_entropy(logits.flatten(0, 1), batch["next"].flatten()),
        optimizer=adamw, output=False, tokens=rows * length,
    )  # fmt: skip


class Kiln(nn.Module):
    """A mixer over (16, 196, 512) whose sizes are written in the forward: no other batch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.across = nn.ModuleList([nn.Linear(196, 196) for _ in range(8)])
        self.along = nn.ModuleList([nn.Linear(512, 2048) for _ in range(8)])
        self.back = nn.ModuleList([nn.Linear(2048, 512) for _ in range(8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(16, 196, 512)
        for across, along, back in zip(self.across, self.along, self.back, strict=True):
            x = x + across(F.layer_norm(x, (512,)).transpose(1, 2)).transpose(1, 2)
            x = x + back(F.gelu(along(F.layer_norm(x, (512,)))))
        return x.mean(1)


def one_shape() -> rung.Workload:
    """A module with one valid input shape, inference."""
    made = lambda seed: torch.randn(16, 196, 512, generator=torch.Generator().manual_seed(seed))  # noqa: E731
    return rung.Workload("one_shape", Kiln, made, samples=16)
