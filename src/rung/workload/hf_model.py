"""A model of Hugging Face's transformers as a workload.

Its configuration, and its weights unless they are to be random, come from a folder or from the local cache. Nothing is downloaded unless
HF_HUB_OFFLINE=0 is set. Inputs are random: token ids, pixels, sound.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from rung.workload.base import Workload

WEIGHTS = ("*.safetensors", "*.bin")
SAMPLE_RATE = 16_000  # of sound, a second
# What a training step is asked for, by how the name of the model's class ends.
LABELS = {
    **dict.fromkeys(("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForTokenClassification"), "a token each"),
    **dict.fromkeys(("ForConditionalGeneration", "MTModel"), "a text"),
    **dict.fromkeys(("ForImageClassification", "ForAudioClassification", "ForSequenceClassification"), "a class"),
    "ForCTC": "a short text",
}


def make(
    name: str,
    task: Literal["prefill", "generate", "infer", "train"] | None = None,
    batch: int = 1,
    seq: int = 512,
    new_tokens: int = 64,
    image_size: int = 0,
    audio_seconds: float = 5.0,
    dtype: str = "",
    random_weights: bool = False,
) -> Workload:
    """name: a folder, or the name of a repository in the local cache. task: `prefill` reads a prompt of `seq` tokens (without a cache),
    `generate` also writes `new_tokens`, `infer` is one forward of any other model, `train` one step of AdamW; by default prefill or
    infer. dtype: of the weights; by default the checkpoint's, and float32 in training."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import transformers

    transformers.logging.set_verbosity_error()
    folder = _folder(name, random_weights)
    config = transformers.AutoConfig.from_pretrained(folder)
    if not config.architectures:
        raise ValueError(
            f'the config.json of {name} names no architecture; add one, as in "architectures": ["LlamaForCausalLM"]'
        )
    kind = getattr(transformers, config.architectures[0], None)
    if kind is None:
        raise ValueError(
            f"transformers {transformers.__version__} has no {config.architectures[0]}, which {name} asks for"
        )
    decoder = kind.__name__.endswith(("ForCausalLM", "LMHeadModel")) and not config.is_encoder_decoder
    task = task or ("prefill" if decoder else "infer")
    if task == "prefill" and not decoder:
        raise ValueError(f"{kind.__name__} reads no prompt; give --task infer or train")
    if task == "generate" and not kind.can_generate():
        raise ValueError(f"{kind.__name__} generates no text; give --task infer or train")
    training = task == "train"
    floats = (
        getattr(torch, dtype)
        if dtype
        else torch.float32
        if training
        else getattr(config, "dtype", None) or torch.float32
    )
    parameters = inspect.signature(kind.forward).parameters
    options = {"use_cache": False} if "use_cache" in parameters else {}

    def model() -> nn.Module:
        if not random_weights:
            loaded: nn.Module = kind.from_pretrained(folder, dtype=floats)
            return loaded
        before = torch.get_default_dtype()
        torch.set_default_dtype(floats)  # buffers that ask for another dtype keep it, as when weights are loaded
        try:
            made: nn.Module = kind(config)
        finally:
            torch.set_default_dtype(before)
        return made

    def inputs(seed: int) -> dict[str, Any]:
        draw = torch.Generator().manual_seed(seed)
        given = _inputs(kind, config, parameters, draw, batch, seq, image_size, audio_seconds)
        given = {key: value.to(floats) if value.is_floating_point() else value for key, value in given.items()}
        if training:
            return _with_labels(kind, config, given, draw, batch, seq)
        if config.is_encoder_decoder and task != "generate":
            given["decoder_input_ids"] = _ids(config, draw, batch, seq)
        return given

    def forward(module: Any, given: dict[str, Any]) -> Any:
        if task == "generate":
            return module.generate(**given, min_new_tokens=new_tokens, max_new_tokens=new_tokens, do_sample=False)
        output = module(**given, **options)
        return output.loss if training else output[0] if not hasattr(output, "logits") else output.logits

    text = kind.main_input_name == "input_ids"
    return Workload(
        f"{config.model_type} {task}", model, inputs, forward, mode="train" if training else "infer", samples=batch,
        loss=(lambda output, given: output) if training else None,
        optimizer=(lambda weights: torch.optim.AdamW(weights, lr=1e-4)) if training else None,
        tokens=batch * (new_tokens if task == "generate" else seq) if text else None, output=not training,
    )  # fmt: skip


def _folder(name: str, random_weights: bool) -> str:
    """Where the configuration lies, and the weights where they are wanted."""
    if Path(name).is_dir():
        folder = Path(name)
    else:
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(name, allow_patterns=["*.json"] if random_weights else None))
        except Exception as error:
            raise FileNotFoundError(
                f"{name} is not a folder and not in the local cache: get it with `hf download {name}`, or set HF_HUB_OFFLINE=0"
            ) from error
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json: give the folder of a model that transformers has saved")
    if not random_weights and not any(path for pattern in WEIGHTS for path in folder.glob(pattern)):
        raise FileNotFoundError(
            f"{folder} has no weights ({' or '.join(WEIGHTS)}): give --random-weights, which needs config.json alone"
        )
    return str(folder)


def _ids(config: Any, draw: torch.Generator, *shape: int) -> torch.Tensor:
    """Token ids; the first few are often padding and the ends of a text."""
    return torch.randint(
        min(4, config.get_text_config().vocab_size - 1), config.get_text_config().vocab_size, shape, generator=draw
    )


def _inputs(
    kind: Any,
    config: Any,
    parameters: Any,
    draw: torch.Generator,
    batch: int,
    seq: int,
    image_size: int,
    audio_seconds: float,
) -> dict[str, torch.Tensor]:
    """What the model's forward is given, by the name of its main input and by what its configuration says."""
    found: dict[str, torch.Tensor] = {}
    main = kind.main_input_name
    two_sides = hasattr(config, "text_config") and hasattr(config, "vision_config")
    in_text = any(
        hasattr(config, name) for name in ("image_token_id", "image_token_index")
    )  # an image stands in the text
    if main == "input_ids" or (two_sides and "input_ids" in parameters):
        found["input_ids"] = _ids(config, draw, batch, seq)
    if main == "pixel_values" or (two_sides and "pixel_values" in parameters and not in_text):
        vision = getattr(config, "vision_config", config)
        size = image_size or getattr(vision, "image_size", 224)
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        found["pixel_values"] = torch.randn(batch, getattr(vision, "num_channels", 3), height, width, generator=draw)
    if main == "input_features" and hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
        found[main] = torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions, generator=draw)
    if main == "input_values":
        bins = (
            (config.max_length, config.num_mel_bins)
            if hasattr(config, "num_mel_bins")
            else (int(audio_seconds * SAMPLE_RATE),)
        )
        found[main] = torch.randn(batch, *bins, generator=draw)
    if not found:
        raise ValueError(
            f"no inputs can be made for {kind.__name__}, which reads {main}; write a workload file (--write-workload) and make them there"
        )
    return found


def _with_labels(
    kind: Any, config: Any, given: dict[str, torch.Tensor], draw: torch.Generator, batch: int, seq: int
) -> dict[str, Any]:
    """The inputs of a training step, for which the model works out its loss."""
    asked = next((what for ending, what in LABELS.items() if kind.__name__.endswith(ending)), "")
    if "return_loss" in inspect.signature(kind.forward).parameters:  # which text belongs to which image
        return {**given, "return_loss": True}
    if not asked:
        raise ValueError(
            f"no loss is known for {kind.__name__}; write a workload file (--write-workload) and work it out there"
        )
    if asked == "a class":
        labels = torch.randint(config.num_labels, (batch,), generator=draw)
    elif kind.__name__.endswith("ForTokenClassification"):
        labels = torch.randint(config.num_labels, (batch, seq), generator=draw)
    elif asked == "a short text":
        labels = _ids(config, draw, batch, 32)
    else:
        labels = _ids(config, draw, batch, seq)
    return {**given, "labels": labels}
