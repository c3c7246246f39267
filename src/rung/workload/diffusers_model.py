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
    model_class = getattr(diffusers, config.get("_class_name", ""), None)
    if model_class is None:
        raise ValueError(
            f"diffusers {diffusers.__version__} has no {config.get('_class_name') or 'class that its config.json names'}"
        )
    training, decodes = task == "train", hasattr(model_class, "decode")
    if training and decodes:
        raise ValueError(
            f"{model_class.__name__} is an autoencoder, of which only decoding is a workload; leave --task out"
        )
    weights_dtype = getattr(torch, dtype or ("float32" if training else "bfloat16"))
    side = latent or (64 if decodes else config.get("sample_size") or 64)
    parameters = inspect.signature(model_class.decode if decodes else model_class.forward).parameters
    # Flux reads the latents as a sequence of 2 x 2 patches, and where each of them lies.
    packed = "img_ids" in parameters

    def model() -> nn.Module:
        loaded: nn.Module = model_class.from_config(config) if random_weights else model_class.from_pretrained(folder)
        in_float32 = getattr(model_class, "_keep_in_fp32_modules", None) or []  # parts whose author wants them so
        for part_name, module in loaded.named_modules():
            if not {*part_name.split(".")} & {*in_float32}:
                for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                    tensor.data = tensor.data.to(weights_dtype) if tensor.is_floating_point() else tensor.data
        return loaded

    def inputs(seed: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        if decodes:
            channels = config.get("latent_channels") or config.get("z_dim")
            frames = (2,) if "z_dim" in config else ()  # of a video
            return {"z": torch.randn(batch, channels, *frames, side, side, generator=generator).to(weights_dtype)}
        tensors = _inputs(model_class, config, parameters, generator, batch, side, prompt_tokens)
        tensors = {
            key: value.to(weights_dtype) if value.is_floating_point() else value for key, value in tensors.items()
        }
        if training:
            channels = config.get("out_channels") or config["in_channels"]
            shape = (batch, (side // 2) ** 2, channels) if packed else (batch, channels, side, side)
            tensors["noise"] = torch.randn(shape, generator=generator)
        return tensors

    def forward(module: Any, tensors: dict[str, Any]) -> torch.Tensor:
        arguments = {key: value for key, value in tensors.items() if key in parameters}
        if extra := {key: value for key, value in tensors.items() if key not in parameters and key != "noise"}:
            arguments["added_cond_kwargs"] = extra
        if packed:  # the same for all rows, and no input of its own
            arguments["txt_ids"], arguments["img_ids"] = _positions(
                side // 2, prompt_tokens, tensors["hidden_states"].device
            )
        output: torch.Tensor = (module.decode if decodes else module)(**arguments, return_dict=False)[0]
        return output

    return Workload(
        f"{model_class.__name__} {task}", model, inputs, forward, mode=task, samples=batch,
        loss=(lambda output, tensors: F.mse_loss(output.float(), tensors["noise"])) if training else None,
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
    parts = [name for name in PARTS if (folder / name / "config.json").is_file()]
    if part and part not in parts and not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no {part}; it has {', '.join(parts) or 'no model at all'}")
    if parts:
        folder /= part or parts[0]
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"{folder} has neither a config.json nor one in {', '.join(PARTS)}: give the folder of a pipeline that diffusers has saved"
        )
    if not random_weights and not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise FileNotFoundError(f"{folder} has no weights: give --random-weights, which needs config.json alone")
    return folder


def _inputs(
    model_class: Any,
    config: dict[str, Any],
    parameters: Any,
    generator: torch.Generator,
    batch: int,
    side: int,
    prompt_tokens: int,
) -> dict[str, torch.Tensor]:
    """What one denoising step is given, by what the model's forward takes and what its configuration says."""
    channels = config.get("in_channels", 4)
    tensors: dict[str, torch.Tensor] = {}
    packed = "img_ids" in parameters
    if packed:
        tensors["hidden_states"] = torch.randn(batch, (side // 2) ** 2, channels, generator=generator)
    elif "hidden_states" in parameters or "sample" in parameters:
        latents = torch.randn(batch, channels, side, side, generator=generator)
        tensors["hidden_states" if "hidden_states" in parameters else "sample"] = latents
    else:
        raise ValueError(
            f"no inputs can be made for {model_class.__name__}; write a workload file (--write-workload) and make them there"
        )
    steps = torch.randint(TIME_STEPS, (batch,), generator=generator)
    tensors["timestep"] = steps / TIME_STEPS if packed else steps
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
        tensors["encoder_hidden_states"] = torch.randn(batch, prompt_tokens, width, generator=generator)
    elif "class_labels" in parameters and config.get("num_embeds_ada_norm"):
        tensors["class_labels"] = torch.randint(CLASSES, (batch,), generator=generator)
    if "pooled_projections" in parameters and config.get("pooled_projection_dim"):
        tensors["pooled_projections"] = torch.randn(batch, config["pooled_projection_dim"], generator=generator)
    if config.get("guidance_embeds"):
        tensors["guidance"] = torch.full((batch,), 3.5)
    if config.get("addition_embed_type") == "text_time":
        # Stable Diffusion XL: the pooled prompt, and sizes of the image
        pooled = config["projection_class_embeddings_input_dim"] - 6 * config["addition_time_embed_dim"]
        tensors["text_embeds"] = torch.randn(batch, pooled, generator=generator)
        tensors["time_ids"] = torch.tensor([[8.0 * side, 8.0 * side, 0.0, 0.0, 8.0 * side, 8.0 * side]]).repeat(
            batch, 1
        )
    return tensors


def _positions(side: int, prompt_tokens: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Three coordinates of each of the prompt's tokens and of the image's patches."""
    line = torch.arange(side, device=device, dtype=torch.float32)
    rows, columns = torch.meshgrid(line, line, indexing="ij")
    image = torch.stack((torch.zeros_like(rows), rows, columns), -1).reshape(-1, 3)
    return torch.zeros(prompt_tokens, 3, device=device), image
