"""The transformers and the autoencoders of diffusers' pipelines by configuration, with random weights: nothing is downloaded.

A transformer is one denoising step; of an autoencoder, latents are decoded to an image. Weights are bfloat16 in inference, as pipelines
are loaded, and float32 in training.

rung climb benchmarks/zoo/diffusion.py:make --name pixart-sigma
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from making import INFER, LABELS, TOY_ROWS, TRAIN, Case, Draw, workload
from torch import nn

import rung
from rung.errors import UsageError

TRANSFORMER, AUTOENCODER = "diffusion transformer", "autoencoder"
TEXT = 128  # tokens of a prompt
TOY_TEXT = 8


@dataclass(frozen=True)
class Model:
    """kind: what is told apart in tables; reads: what it is given, in `_READS`; latent: height and width of the latents; text: of a
    prompt's tokens, their width; toy: what differs at toy size."""

    kind: str
    model: str
    values: dict[str, Any]
    reads: str
    rows: int
    latent: int
    toy: dict[str, Any] = field(default_factory=dict)
    text: int = 0
    toy_latent: int = 8
    variants: tuple[str, ...] = (INFER,)


_HEADS = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2}
_BLOCKS = 4
_KL = {
    "in_channels": 3, "out_channels": 3, "block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "sample_size": 512,
    "down_block_types": ("DownEncoderBlock2D",) * _BLOCKS, "up_block_types": ("UpDecoderBlock2D",) * _BLOCKS,
}  # fmt: skip
_SMALL_KL = {"block_out_channels": (16, 16, 32, 32), "layers_per_block": 1, "norm_num_groups": 4, "sample_size": 64}

MODELS: dict[str, Model] = {
    "dit-xl-2": Model(TRANSFORMER, "DiTTransformer2DModel",
                      {"num_attention_heads": 16, "attention_head_dim": 72, "in_channels": 4, "out_channels": 8, "num_layers": 28,
                       "sample_size": 32, "patch_size": 2, "num_embeds_ada_norm": 1000}, "class", 16, 32, {**_HEADS, "sample_size": 8}),
    "pixart-sigma": Model(TRANSFORMER, "PixArtTransformer2DModel",
                          {"num_attention_heads": 16, "attention_head_dim": 72, "in_channels": 4, "out_channels": 8, "num_layers": 28,
                           "cross_attention_dim": 1152, "caption_channels": 4096, "sample_size": 64, "patch_size": 2,
                           "use_additional_conditions": False}, "prompt", 4, 64,
                          {**_HEADS, "sample_size": 8, "cross_attention_dim": 32, "caption_channels": 32}, text=4096, variants=(INFER, TRAIN)),
    "stable-diffusion-3": Model(TRANSFORMER, "SD3Transformer2DModel",
                                {"num_attention_heads": 24, "attention_head_dim": 64, "num_layers": 24, "in_channels": 16, "out_channels": 16,
                                 "joint_attention_dim": 4096, "caption_projection_dim": 1536, "pooled_projection_dim": 2048,
                                 "sample_size": 128, "pos_embed_max_size": 192}, "prompt and pooled", 2, 64,
                                {**_HEADS, "sample_size": 8, "pos_embed_max_size": 16, "joint_attention_dim": 32, "caption_projection_dim": 32,
                                 "pooled_projection_dim": 32}, text=4096),
    "sana-0.6b": Model(TRANSFORMER, "SanaTransformer2DModel",
                       {"num_attention_heads": 36, "attention_head_dim": 32, "num_cross_attention_heads": 16,
                        "cross_attention_head_dim": 72, "cross_attention_dim": 1152, "num_layers": 28, "in_channels": 32, "out_channels": 32,
                        "caption_channels": 2304, "sample_size": 32, "patch_size": 1}, "prompt", 4, 32,
                       {**_HEADS, "num_cross_attention_heads": 2, "cross_attention_head_dim": 16, "cross_attention_dim": 32,
                        "caption_channels": 32, "sample_size": 8}, text=2304),
    "flux-6-blocks": Model(TRANSFORMER, "FluxTransformer2DModel",
                           {"num_attention_heads": 24, "attention_head_dim": 128, "in_channels": 64, "num_layers": 2, "num_single_layers": 4,
                            "joint_attention_dim": 4096, "pooled_projection_dim": 768, "guidance_embeds": False}, "packed", 1, 32,
                           {"num_attention_heads": 2, "attention_head_dim": 16, "axes_dims_rope": (4, 6, 6), "num_single_layers": 1, "num_layers": 1,
                            "joint_attention_dim": 32, "pooled_projection_dim": 32, "in_channels": 16}, text=4096, toy_latent=4),
    "sd-vae": Model(AUTOENCODER, "AutoencoderKL", {**_KL, "latent_channels": 4}, "latents", 4, 64, _SMALL_KL),
    "sd3-vae": Model(AUTOENCODER, "AutoencoderKL",
                     {**_KL, "latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False}, "latents", 1, 128, _SMALL_KL),
    "sana-autoencoder": Model(AUTOENCODER, "AutoencoderDC",
                              {"in_channels": 3, "latent_channels": 32, "attention_head_dim": 32,
                               "encoder_block_types": ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
                               "decoder_block_types": ("ResBlock",) * 3 + ("EfficientViTBlock",) * 3,
                               "encoder_block_out_channels": (128, 256, 512, 512, 1024, 1024),
                               "decoder_block_out_channels": (128, 256, 512, 512, 1024, 1024),
                               "encoder_layers_per_block": (2, 2, 2, 3, 3, 3), "decoder_layers_per_block": (3,) * 6,
                               "encoder_qkv_multiscales": ((), (), (), (5,), (5,), (5,)),
                               "decoder_qkv_multiscales": ((), (), (), (5,), (5,), (5,))}, "latents", 2, 16,
                              {"encoder_block_out_channels": (16, 16, 32, 32, 64, 64), "decoder_block_out_channels": (16, 16, 32, 32, 64, 64),
                               "encoder_layers_per_block": (1,) * 6, "decoder_layers_per_block": (1,) * 6}, toy_latent=2),
    "wan-vae": Model(AUTOENCODER, "AutoencoderKLWan", {"base_dim": 96, "z_dim": 16, "dim_mult": [1, 2, 4, 4]}, "video latents", 1, 32,
                     {"base_dim": 8}, toy_latent=4),
}  # fmt: skip

CASES = {
    f"diffusers/{name}": Case(
        f"diffusers/{name}", m.kind, f"{__file__}:make", {"name": name}, m.variants, ("diffusers",)
    )
    for name, m in MODELS.items()
}


def make(name: str, train: bool = False, toy: bool = False) -> rung.Workload:
    """One model of a pipeline; see MODELS for the names."""
    if name not in MODELS:
        raise UsageError(f"--name is {name!r}; it is one of {', '.join(MODELS)}.")
    diffusers = importlib.import_module("diffusers")
    known = MODELS[name]
    try:
        kind = getattr(diffusers, known.model)
    except AttributeError:
        raise ImportError(f"diffusers {diffusers.__version__} has no {known.model}") from None
    values = {**known.values, **(known.toy if toy else {})}
    size = known.toy_latent if toy else known.latent
    width = (values.get("caption_channels") or values.get("joint_attention_dim") or 0) if known.text else 0
    shape = _Shape(size, TOY_TEXT if toy else TEXT, width, values)
    reads = _READS[known.reads]

    def made() -> nn.Module:
        found: nn.Module = kind(**values)
        return found

    def batch(draw: Draw, rows: int) -> dict[str, torch.Tensor]:
        found = reads(draw, rows, shape)
        return {**found, LABELS: draw.normal(rows, values["out_channels"], size, size)} if train else found

    def forward(module: Any, given: dict[str, torch.Tensor]) -> torch.Tensor:
        call = module.decode if known.kind == AUTOENCODER else module
        found: torch.Tensor = call(**given, return_dict=False)[0]
        return found

    def packed(module: Any, given: dict[str, torch.Tensor]) -> torch.Tensor:
        """Where each token lies is the same for all rows, and no input of its own."""
        text, image = _places(shape, given["hidden_states"].device)
        found: torch.Tensor = module(**given, txt_ids=text, img_ids=image, return_dict=False)[0]
        return found

    return workload(
        name, made, batch, TOY_ROWS if toy else known.rows, train, packed if known.reads == "packed" else forward,
        dtype=torch.float32 if train else torch.bfloat16, loss=_noise_loss,
    )  # fmt: skip


@dataclass(frozen=True)
class _Shape:
    latent: int
    tokens: int
    width: int
    values: dict[str, Any]


def _noise_loss(output: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(output.float(), noise.float())


def _places(shape: _Shape, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the prompt's tokens and of the image's, three coordinates each, as the pipeline lays them out."""
    side = torch.arange(shape.latent, device=device, dtype=torch.float32)
    rows, columns = torch.meshgrid(side, side, indexing="ij")
    return torch.zeros(shape.tokens, 3, device=device), torch.stack(
        (torch.zeros_like(rows), rows, columns), -1
    ).reshape(-1, 3)


def _noisy(draw: Draw, rows: int, shape: _Shape) -> dict[str, torch.Tensor]:
    latent = draw.normal(rows, shape.values["in_channels"], shape.latent, shape.latent)
    return {"hidden_states": latent, "timestep": draw.ids(1000, rows, lowest=0)}


def _prompted(draw: Draw, rows: int, shape: _Shape) -> dict[str, torch.Tensor]:
    return {**_noisy(draw, rows, shape), "encoder_hidden_states": draw.normal(rows, shape.tokens, shape.width)}


def _packed(draw: Draw, rows: int, shape: _Shape) -> dict[str, torch.Tensor]:
    return {
        "hidden_states": draw.normal(rows, shape.latent**2, shape.values["in_channels"]),
        "timestep": draw.uniform(rows),
        "encoder_hidden_states": draw.normal(rows, shape.tokens, shape.width),
        "pooled_projections": draw.normal(rows, shape.values["pooled_projection_dim"]),
    }


_READS: dict[str, Callable[[Draw, int, _Shape], dict[str, torch.Tensor]]] = {
    "class": lambda draw, rows, shape: {**_noisy(draw, rows, shape), "class_labels": draw.ids(1000, rows, lowest=0)},
    "prompt": _prompted,
    "prompt and pooled": lambda draw, rows, shape: {
        **_prompted(draw, rows, shape), "pooled_projections": draw.normal(rows, shape.values["pooled_projection_dim"])
    },
    "packed": _packed,
    "latents": lambda draw, rows, shape: {"z": draw.normal(rows, shape.values["latent_channels"], shape.latent, shape.latent)},
    "video latents": lambda draw, rows, shape: {"z": draw.normal(rows, shape.values["z_dim"], 2, shape.latent, shape.latent)},
}  # fmt: skip
