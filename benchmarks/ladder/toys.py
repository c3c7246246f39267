"""Hugging Face architectures at toy size: a config each, random weights, nothing downloaded (transformers 4.48+)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rung import Workload

VOCABULARY, WIDTH, HEADS, IMAGE, MELS = 100, 32, 4, 16, 8
LAST = VOCABULARY - 1
COMMON = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": HEADS, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = {**COMMON, "num_key_value_heads": 2}
SHORT = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}
VISION = {"hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": HEADS,
          "image_size": IMAGE, "patch_size": 4}  # fmt: skip
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

# name: (the model's class, its config's class, the config's values, what it reads)
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "Llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED, "tokens"),
    "Qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED, "tokens"),
    "Qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8}, "tokens"),
    "Gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**GROUPED, "head_dim": 8}, "tokens"),
    "Mistral": ("MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": 8}, "tokens"),
    "Mixtral": ("MixtralForCausalLM", "MixtralConfig", {**GROUPED, "num_local_experts": 4}, "tokens"),
    "Phi3": ("Phi3ForCausalLM", "Phi3Config", GROUPED, "tokens"),
    "GPT-2": ("GPT2LMHeadModel", "GPT2Config",
              {**SHORT, "n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "n_positions": 64,
               "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}, "tokens"),
    "GPT-NeoX": ("GPTNeoXForCausalLM", "GPTNeoXConfig", COMMON, "tokens"),
    "Falcon": ("FalconForCausalLM", "FalconConfig",
               {**SHORT, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS}, "tokens"),
    "OPT": ("OPTForCausalLM", "OPTConfig",
            {**SHORT, "hidden_size": WIDTH, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": HEADS,
             "max_position_embeddings": 64, "word_embed_proj_dim": WIDTH, "dropout": 0.0}, "tokens"),
    "BERT": ("BertForMaskedLM", "BertConfig", {**COMMON, **NO_DROPOUT}, "tokens"),
    "RoBERTa": ("RobertaForMaskedLM", "RobertaConfig", {**COMMON, **NO_DROPOUT}, "tokens"),
    "DistilBERT": ("DistilBertForMaskedLM", "DistilBertConfig",
                   {"vocab_size": VOCABULARY, "dim": WIDTH, "hidden_dim": 48, "n_layers": 2, "n_heads": HEADS,
                    "max_position_embeddings": 64, "dropout": 0.0, "attention_dropout": 0.0}, "tokens"),
    "ViT": ("ViTForImageClassification", "ViTConfig", {**VISION, **NO_DROPOUT}, "image"),
    "T5": ("T5ForConditionalGeneration", "T5Config",
           {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": HEADS,
            "feed_forward_proj": "gated-gelu", "dropout_rate": 0.0}, "two token sequences"),
    "Whisper": ("WhisperForConditionalGeneration", "WhisperConfig",
                {"vocab_size": VOCABULARY, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2,
                 "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": 48,
                 "decoder_ffn_dim": 48, "max_source_positions": 16, "max_target_positions": 16,
                 "num_mel_bins": MELS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
                 "decoder_start_token_id": 1, "dropout": 0.0}, "speech"),
    "CLIP": ("CLIPModel", "CLIPConfig",
             {"text_config": {**COMMON, "eos_token_id": LAST}, "vision_config": VISION, "projection_dim": 16},
             "image and tokens"),
}  # fmt: skip


def every() -> dict[str, tuple[str, str, dict[str, Any], str]]:
    """Those above and those of further.py."""
    from further import FURTHER

    return {**ARCHITECTURES, **FURTHER}


def make(
    name: str,
    mode: str = "train",
    attention: str = "eager",
    width: int = WIDTH,
    tokens: int = 9,
    dtype: str = "float32",
    adamw: bool = False,
) -> Workload:
    """One architecture as a workload: the first output (logits), and a loss that reaches every parameter.

    width: of the hidden state, for those that have grouped heads (kernels ask for heads of 16 elements and more). dtype: of the weights.
    Weights stay as they are in training, unless AdamW moves them.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    model_class, config_class, values, reads = every()[name]
    if width != WIDTH:
        values = _wider(name, values, width, tokens)
    config = getattr(transformers, config_class)(**values)
    # Gemma2 caps its scores, which SDPA cannot: transformers itself refuses it there.
    attention = "eager" if name == "Gemma2" else attention

    def model() -> torch.nn.Module:
        made: torch.nn.Module = getattr(transformers, model_class)._from_config(config, attn_implementation=attention)
        return made.to(getattr(torch, dtype))

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-3) if adamw else torch.optim.SGD(parameters, lr=0.0)

    options: dict[str, Any] = {} if reads == "image" or name in _WITHOUT_CACHE else {"use_cache": False}
    return Workload(
        name=name,
        model=model,
        inputs=lambda seed: _batch(reads, 2, tokens, seed),
        other_shapes=(lambda seed: _batch(reads, 1, tokens - tokens // 5 - 1, seed),),
        forward=lambda module, batch: module(**batch, **options)[0],
        mode="train" if mode == "train" else "infer",
        loss=_loss if mode == "train" else None,
        optimizer=optimizer if mode == "train" else None,
    )


def _wider(name: str, values: dict[str, Any], width: int, tokens: int) -> dict[str, Any]:
    if "num_key_value_heads" not in values:
        raise ValueError(f"{name} is not made in another width; those with grouped heads are.")
    made = {**values, "hidden_size": width, "max_position_embeddings": max(64, tokens)}
    if "head_dim" in values:
        made["head_dim"] = width // HEADS
    if name == "Gemma2":
        made["sliding_window"] = tokens // 2
    return made


_WITHOUT_CACHE = ("BERT", "RoBERTa", "DistilBERT", "CLIP")


def _loss(output: torch.Tensor, batch: Any) -> torch.Tensor:
    weights = torch.linspace(-1, 1, output.shape[-1], dtype=output.dtype, device=output.device)
    return (output * weights).square().mean()


def _batch(reads: str, rows: int, length: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def tokens(count: int) -> torch.Tensor:
        found = torch.randint(3, VOCABULARY - 1, (rows, count), generator=generator)
        found[:, -1] = LAST  # CLIP reads its first token where none ends the text, and that one attends to itself alone
        return found

    def floats(*shape: int) -> torch.Tensor:
        return torch.randn(rows, *shape, generator=generator)

    make: dict[str, Callable[[], dict[str, torch.Tensor]]] = {
        "tokens": lambda: {"input_ids": tokens(length)},
        "image": lambda: {"pixel_values": floats(3, IMAGE, IMAGE)},
        "two token sequences": lambda: {"input_ids": tokens(length), "decoder_input_ids": tokens(length - 3)},
        "speech": lambda: {"input_features": floats(MELS, 32), "decoder_input_ids": tokens(length - 3)},
        "image and tokens": lambda: {"input_ids": tokens(length), "pixel_values": floats(3, IMAGE, IMAGE)},
    }
    return make[reads]()
