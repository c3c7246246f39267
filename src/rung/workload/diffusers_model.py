"""One model of a diffusion pipeline as a workload: a denoising step of its transformer or U-Net, or decoding by its autoencoder.

Its configuration, and its weights unless they are to be random, come from a folder or from the local cache. Nothing is downloaded unless
HF_HUB_OFFLINE=0 is set. Inputs are random: latents, a prompt's embedding, a time step.
"""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from rung.workload.base import Workload

PARTS = ("transformer", "unet", "vae")
TIME_STEPS, CLASSES = 1000, 1000  # of diffusion, and of ImageNet


def make(
    name: str,
    part: Literal["transformer", "unet", "vae"] | None = None,
    task: Literal["infer", "train"] = "infer",
    batch: int = 1,
    latent: int = 0,
    prompt_tokens: int = 128,
    dtype: str = "",
    random_weights: bool = False,
) -> Workload:
    """name: a folder, or the name of a repository in the local cache, of a pipeline or of one model. part: by default the pipeline's
    transformer or U-Net. latent: height and width of the latents, by default the configuration's. dtype: of the weights; by default
    bfloat16, and float32 in training."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import diffusers

    diffusers.logging.set_verbosity_error()
    folder = _folder(name, part, random_weights)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    kind = getattr(diffusers, config.get("_class_name", ""), None)
    if kind is None:
        raise ValueError(
            f"diffusers {diffusers.__version__} has no {config.get('_class_name') or 'class that its config.json names'}"
        )
    training, decodes = task == "train", hasattr(kind, "decode")
    if training and decodes:
        raise ValueError(f"{kind.__name__} is an autoencoder, of which only decoding is a workload; leave --task out")
    floats = getattr(torch, dtype or ("float32" if training else "bfloat16"))
    side = latent or (64 if decodes else config.get("sample_size") or 64)
    parameters = inspect.signature(kind.decode if decodes else kind.forward).parameters
    # Flux reads the latents as a sequence of 2 x 2 patches, and where each of them lies.
    packed = "img_ids" in parameters

    def model() -> nn.Module:
        made: nn.Module = kind.from_config(config) if random_weights else kind.from_pretrained(folder)
        wide = getattr(kind, "_keep_in_fp32_modules", None) or []  # parts whose author wants them in float32
        for part_name, module in made.named_modules():
            if not {*part_name.split(".")} & {*wide}:
                for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                    tensor.data = tensor.data.to(floats) if tensor.is_floating_point() else tensor.data
        return made

    def inputs(seed: int) -> dict[str, Any]:
        draw = torch.Generator().manual_seed(seed)
        if decodes:
            channels = config.get("latent_channels") or config.get("z_dim")
            frames = (2,) if "z_dim" in config else ()  # of a video
            return {"z": torch.randn(batch, channels, *frames, side, side, generator=draw).to(floats)}
        given = _inputs(kind, config, parameters, draw, batch, side, prompt_tokens)
        given = {key: value.to(floats) if value.is_floating_point() else value for key, value in given.items()}
        if training:
            channels = config.get("out_channels") or config["in_channels"]
            shape = (batch, (side // 2) ** 2, channels) if packed else (batch, channels, side, side)
            given["noise"] = torch.randn(shape, generator=draw)
        return given

    def forward(module: Any, given: dict[str, Any]) -> torch.Tensor:
        read = {key: value for key, value in given.items() if key in parameters}
        if extra := {key: value for key, value in given.items() if key not in parameters and key != "noise"}:
            read["added_cond_kwargs"] = extra
        if packed:  # the same for all rows, and no input of its own
            read["txt_ids"], read["img_ids"] = _places(side // 2, prompt_tokens, given["hidden_states"].device)
        found: torch.Tensor = (module.decode if decodes else module)(**read, return_dict=False)[0]
        return found

    return Workload(
        f"{kind.__name__} {task}", model, inputs, forward, mode=task, samples=batch,
        loss=(lambda output, given: F.mse_loss(output.float(), given["noise"])) if training else None,
        optimizer=(lambda weights: torch.optim.AdamW(weights, lr=1e-4)) if training else None,
        output=not training,
    )  # fmt: skip


def _folder(name: str, part: str | None, random_weights: bool) -> Path:
    """Where the model's configuration lies, and its weights where they are wanted."""
    folder = Path(name)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(name, allow_patterns=["*.json", "*/*.json"] if random_weights else None))
        except Exception as error:
            raise FileNotFoundError(
                f"{name} is not a folder and not in the local cache: get it with `hf download {name}`, or set HF_HUB_OFFLINE=0"
            ) from error
    there = [known for known in PARTS if (folder / known / "config.json").is_file()]
    if part and part not in there and not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no {part}; it has {', '.join(there) or 'no model at all'}")
    if there:
        folder /= part or there[0]
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"{folder} has neither a config.json nor one in {', '.join(PARTS)}: give the folder of a pipeline that diffusers has saved"
        )
    if not random_weights and not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise FileNotFoundError(f"{folder} has no weights: give --random-weights, which needs config.json alone")
    return folder


def _inputs(
    kind: Any, config: dict[str, Any], parameters: Any, draw: torch.Generator, batch: int, side: int, prompt_tokens: int
) -> dict[str, torch.Tensor]:
    """What one denoising step is given, by what the model's forward takes and what its configuration says."""
    channels = config.get("in_channels", 4)
    given: dict[str, torch.Tensor] = {}
    packed = "img_ids" in parameters
    if packed:
        given["hidden_states"] = torch.randn(batch, (side // 2) ** 2, channels, generator=draw)
    elif "hidden_states" in parameters or "sample" in parameters:
        latents = torch.randn(batch, channels, side, side, generator=draw)
        given["hidden_states" if "hidden_states" in parameters else "sample"] = latents
    else:
        raise ValueError(
            f"no inputs can be made for {kind.__name__}; write a workload file (--write-workload) and make them there"
        )
    steps = torch.randint(TIME_STEPS, (batch,), generator=draw)
    given["timestep"] = steps / TIME_STEPS if packed else steps
    width = next(
        (config[key] for key in ("caption_channels", "joint_attention_dim", "cross_attention_dim") if config.get(key)),
        0,
    )
    prompted = (
        "encoder_hidden_states" in parameters
        and isinstance(width, int)
        and width
        and not config.get("num_embeds_ada_norm")
    )
    if prompted or config.get("caption_channels"):
        given["encoder_hidden_states"] = torch.randn(batch, prompt_tokens, width, generator=draw)
    elif "class_labels" in parameters and config.get("num_embeds_ada_norm"):
        given["class_labels"] = torch.randint(CLASSES, (batch,), generator=draw)
    if "pooled_projections" in parameters and config.get("pooled_projection_dim"):
        given["pooled_projections"] = torch.randn(batch, config["pooled_projection_dim"], generator=draw)
    if config.get("guidance_embeds"):
        given["guidance"] = torch.full((batch,), 3.5)
    if (
        config.get("addition_embed_type") == "text_time"
    ):  # Stable Diffusion XL: the pooled prompt, and sizes of the image
        pooled = config["projection_class_embeddings_input_dim"] - 6 * config["addition_time_embed_dim"]
        given["text_embeds"] = torch.randn(batch, pooled, generator=draw)
        given["time_ids"] = torch.tensor([[8.0 * side, 8.0 * side, 0.0, 0.0, 8.0 * side, 8.0 * side]]).repeat(batch, 1)
    return given


def _places(side: int, prompt_tokens: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Three coordinates of each of the prompt's tokens and of the image's patches."""
    line = torch.arange(side, device=device, dtype=torch.float32)
    rows, columns = torch.meshgrid(line, line, indexing="ij")
    image = torch.stack((torch.zeros_like(rows), rows, columns), -1).reshape(-1, 3)
    return torch.zeros(prompt_tokens, 3, device=device), image
