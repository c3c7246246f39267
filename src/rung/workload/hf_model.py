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
    model_class = getattr(transformers, config.architectures[0], None)
    if model_class is None:
        raise ValueError(
            f"transformers {transformers.__version__} has no {config.architectures[0]}, which {name} asks for"
        )
    task = _task(model_class, config, task)
    training = task == "train"
    if dtype:
        weights_dtype = getattr(torch, dtype)
    else:
        weights_dtype = torch.float32 if training else getattr(config, "dtype", None) or torch.float32
    parameters = inspect.signature(model_class.forward).parameters
    options = {"use_cache": False} if "use_cache" in parameters else {}

    def model() -> nn.Module:
        if not random_weights:
            loaded: nn.Module = model_class.from_pretrained(folder, dtype=weights_dtype)
            return loaded
        before = torch.get_default_dtype()
        torch.set_default_dtype(weights_dtype)  # buffers that ask for another dtype keep it, as when weights are loaded
        try:
            made: nn.Module = model_class(config)
        finally:
            torch.set_default_dtype(before)
        return made

    def inputs(seed: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        tensors = _inputs(model_class, config, parameters, generator, batch, seq, image_size, audio_seconds)
        tensors = {
            key: value.to(weights_dtype) if value.is_floating_point() else value for key, value in tensors.items()
        }
        if training:
            return _with_labels(model_class, config, tensors, generator, batch, seq)
        if config.is_encoder_decoder and task != "generate":
            tensors["decoder_input_ids"] = _ids(config, generator, batch, seq)
        return tensors

    def forward(module: Any, tensors: dict[str, Any]) -> Any:
        if task == "generate":
            return module.generate(**tensors, min_new_tokens=new_tokens, max_new_tokens=new_tokens, do_sample=False)
        output = module(**tensors, **options)
        return output.loss if training else output[0] if not hasattr(output, "logits") else output.logits

    text = model_class.main_input_name == "input_ids"
    return Workload(
        f"{config.model_type} {task}", model, inputs, forward, mode="train" if training else "infer", samples=batch,
        loss=(lambda output, tensors: output) if training else None,
        optimizer=(lambda weights: torch.optim.AdamW(weights, lr=1e-4)) if training else None,
        tokens=batch * (new_tokens if task == "generate" else seq) if text else None, output=not training,
    )  # fmt: skip


def _task(
    model_class: Any, config: Any, task: Literal["prefill", "generate", "infer", "train"] | None
) -> Literal["prefill", "generate", "infer", "train"]:
    """The task that is asked for, or the usual one of such a model. Raises ValueError where the model cannot do it."""
    decoder = model_class.__name__.endswith(("ForCausalLM", "LMHeadModel")) and not config.is_encoder_decoder
    task = task or ("prefill" if decoder else "infer")
    if task == "prefill" and not decoder:
        raise ValueError(f"{model_class.__name__} reads no prompt; give --task infer or train")
    if task == "generate" and not model_class.can_generate():
        raise ValueError(f"{model_class.__name__} generates no text; give --task infer or train")
    return task


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


def _ids(config: Any, generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Token ids; the first few are often padding and the ends of a text."""
    return torch.randint(
        min(4, config.get_text_config().vocab_size - 1), config.get_text_config().vocab_size, shape, generator=generator
    )


def _inputs(
    model_class: Any,
    config: Any,
    parameters: Any,
    generator: torch.Generator,
    batch: int,
    seq: int,
    image_size: int,
    audio_seconds: float,
) -> dict[str, torch.Tensor]:
    """What the model's forward is given, by the name of its main input and by what its configuration says."""
    tensors: dict[str, torch.Tensor] = {}
    main = model_class.main_input_name
    two_sides = hasattr(config, "text_config") and hasattr(config, "vision_config")
    # Where an image stands in the text, it is no input of its own here.
    in_text = any(hasattr(config, name) for name in ("image_token_id", "image_token_index"))
    if main == "input_ids" or (two_sides and "input_ids" in parameters):
        tensors["input_ids"] = _ids(config, generator, batch, seq)
    if main == "pixel_values" or (two_sides and "pixel_values" in parameters and not in_text):
        vision = getattr(config, "vision_config", config)
        size = image_size or getattr(vision, "image_size", 224)
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        tensors["pixel_values"] = torch.randn(
            batch, getattr(vision, "num_channels", 3), height, width, generator=generator
        )
    if main == "input_features" and hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
        tensors[main] = torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions, generator=generator)
    if main == "input_values":
        samples = (int(audio_seconds * SAMPLE_RATE),)
        shape = (config.max_length, config.num_mel_bins) if hasattr(config, "num_mel_bins") else samples
        tensors[main] = torch.randn(batch, *shape, generator=generator)
    if not tensors:
        raise ValueError(
            f"no inputs can be made for {model_class.__name__}, which reads {main}; write a workload file (--write-workload) and make them there"
        )
    return tensors


def _with_labels(
    model_class: Any, config: Any, tensors: dict[str, torch.Tensor], generator: torch.Generator, batch: int, seq: int
) -> dict[str, Any]:
    """The inputs of a training step, for which the model works out its loss."""
    label = next((what for ending, what in LABELS.items() if model_class.__name__.endswith(ending)), "")
    if "return_loss" in inspect.signature(model_class.forward).parameters:  # which text belongs to which image
        return {**tensors, "return_loss": True}
    if not label:
        raise ValueError(
            f"no loss is known for {model_class.__name__}; write a workload file (--write-workload) and work it out there"
        )
    if label == "a class":
        labels = torch.randint(config.num_labels, (batch,), generator=generator)
    elif model_class.__name__.endswith("ForTokenClassification"):
        labels = torch.randint(config.num_labels, (batch, seq), generator=generator)
    elif label == "a short text":
        labels = _ids(config, generator, batch, 32)
    else:
        labels = _ids(config, generator, batch, seq)
    return {**tensors, "labels": labels}
