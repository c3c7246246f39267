"""Architectures of transformers by configuration, with random weights: nothing is downloaded.

Sizes are those of a published checkpoint, or of fewer of its layers where it is large. Inference runs on bfloat16 weights, as these
models are loaded to be served; training runs on float32 weights.

rung climb benchmarks/zoo/huggingface.py:make --name gpt2 --train --numerics bf16
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from making import INFER, LABELS, TOY_LENGTH, TOY_ROWS, TRAIN, Case, Draw, padded, shrunk, workload
from torch import nn

import rung
from rung.errors import UsageError

BOTH = (INFER, TRAIN)


@dataclass(frozen=True)
class Model:
    """kind: what is told apart in tables; reads: which inputs it gets, in `_READS`; rows, length: of a batch; toy: what of the
    configuration differs at toy size, beside what making.py shrinks; head: the attribute of its output; float32: inference on float32
    weights, where the architecture does not run on others."""

    kind: str
    model: str
    config: str
    values: dict[str, Any]
    rows: int
    length: int = 0
    reads: str = "tokens"
    variants: tuple[str, ...] = (INFER,)
    toy: dict[str, Any] = field(default_factory=dict)
    head: str = "logits"
    float32: bool = False


def _bert(layers: int, width: int, vocabulary: int = 30522, **more: Any) -> dict[str, Any]:
    return {"vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": width // 64,
            "intermediate_size": 4 * width, **more}  # fmt: skip


def _llama(
    layers: int, width: int, inner: int, heads: int, groups: int, vocabulary: int, **more: Any
) -> dict[str, Any]:
    return {"vocab_size": vocabulary, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": groups, **more}  # fmt: skip


def _bart(layers: int, width: int, vocabulary: int, inner: int = 0, **more: Any) -> dict[str, Any]:
    return {"vocab_size": vocabulary, "d_model": width, "encoder_layers": layers, "decoder_layers": layers,
            "encoder_attention_heads": width // 64, "decoder_attention_heads": width // 64,
            "encoder_ffn_dim": inner or 4 * width, "decoder_ffn_dim": inner or 4 * width, **more}  # fmt: skip


def _vit(layers: int = 12, width: int = 768, **more: Any) -> dict[str, Any]:
    return {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": width // 64, "intermediate_size": 4 * width,
            "image_size": 224, "patch_size": 16, **more}  # fmt: skip


_SMALL_IMAGE = {"image_size": 32, "patch_size": 8}
_SMALL_TEXT = {"max_position_embeddings": 64}
_CONVOLUTIONS = {"conv_dim": [32] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}

DECODER, ENCODER, BOTH_SIDES, EXPERTS, VISION, SPEECH, SEVERAL, STATE = (
    "decoder-only", "encoder", "encoder-decoder", "mixture of experts", "vision", "speech", "multimodal", "state-space",
)  # fmt: skip

MODELS: dict[str, Model] = {
    # ---- decoder-only: prefill, or next-token training
    "gpt2": Model(DECODER, "GPT2LMHeadModel", "GPT2Config",
                  {"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}, 8, 512, variants=BOTH),
    "qwen3-0.6b": Model(DECODER, "Qwen3ForCausalLM", "Qwen3Config",
                        _llama(28, 1024, 3072, 16, 8, 151936, head_dim=128, tie_word_embeddings=True), 4, 512, variants=BOTH),
    "llama-3.2-1b": Model(DECODER, "LlamaForCausalLM", "LlamaConfig",
                          _llama(16, 2048, 8192, 32, 8, 128256, tie_word_embeddings=True), 2, 1024),
    "smollm2-135m": Model(DECODER, "LlamaForCausalLM", "LlamaConfig",
                          _llama(30, 576, 1536, 9, 3, 49152, tie_word_embeddings=True), 8, 512, variants=BOTH),
    "gemma3-1b": Model(DECODER, "Gemma3ForCausalLM", "Gemma3TextConfig",
                       _llama(26, 1152, 6912, 4, 1, 262144, head_dim=256, sliding_window=512), 2, 1024, toy={"sliding_window": 16}),
    "pythia-410m": Model(DECODER, "GPTNeoXForCausalLM", "GPTNeoXConfig",
                         _bert(24, 1024, 50304), 4, 512, variants=BOTH),
    "opt-350m": Model(DECODER, "OPTForCausalLM", "OPTConfig",
                      {"vocab_size": 50272, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "ffn_dim": 4096,
                       "word_embed_proj_dim": 512, "do_layer_norm_before": False}, 4, 512, variants=BOTH, toy={"word_embed_proj_dim": 32}),
    "bloom-560m": Model(DECODER, "BloomForCausalLM", "BloomConfig",
                        {"vocab_size": 250880, "hidden_size": 1024, "n_layer": 24, "n_head": 16}, 4, 512),
    "phi-1.5": Model(DECODER, "PhiForCausalLM", "PhiConfig", _bert(24, 2048, 51200, num_attention_heads=32), 2, 512),
    "olmo2-1b": Model(DECODER, "Olmo2ForCausalLM", "Olmo2Config", _llama(16, 2048, 8192, 16, 16, 100352), 2, 1024),
    "stablelm-2-1.6b": Model(DECODER, "StableLmForCausalLM", "StableLmConfig",
                             _llama(24, 2048, 5632, 32, 32, 100352, use_qkv_bias=True), 2, 512),
    "codegen-350m": Model(DECODER, "CodeGenForCausalLM", "CodeGenConfig",
                          {"vocab_size": 51200, "n_embd": 1024, "n_layer": 20, "n_head": 16, "n_positions": 2048, "rotary_dim": 32},
                          4, 512, toy={"rotary_dim": 8}),
    "gpt-neo-125m": Model(DECODER, "GPTNeoForCausalLM", "GPTNeoConfig",
                          {"vocab_size": 50257, "hidden_size": 768, "num_layers": 12, "num_heads": 12,
                           "attention_types": [[["global", "local"], 6]]}, 8, 512, variants=BOTH, toy={"attention_types": [[["global", "local"], 1]]}),
    # ---- encoders: masked language modelling
    "bert-large": Model(ENCODER, "BertForMaskedLM", "BertConfig", _bert(24, 1024), 16, 384, "padded", variants=BOTH),
    "roberta-base": Model(ENCODER, "RobertaForMaskedLM", "RobertaConfig",
                          _bert(12, 768, 50265, max_position_embeddings=514, pad_token_id=1), 16, 512, "padded", variants=BOTH),
    "distilbert": Model(ENCODER, "DistilBertForMaskedLM", "DistilBertConfig",
                        {"vocab_size": 30522, "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072}, 32, 256, "padded", variants=BOTH),
    "electra-base": Model(ENCODER, "ElectraForMaskedLM", "ElectraConfig",
                          _bert(12, 768, embedding_size=768), 16, 512, "padded", toy={"embedding_size": 64}),
    "albert-base": Model(ENCODER, "AlbertForMaskedLM", "AlbertConfig",
                         _bert(12, 768, 30000, embedding_size=128), 16, 512, "padded", variants=BOTH),
    "deberta-v3-base": Model(ENCODER, "DebertaV2ForMaskedLM", "DebertaV2Config",
                             _bert(12, 768, 128100, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=256,
                                   norm_rel_ebd="layer_norm", share_att_key=True, position_biased_input=False), 16, 256, "padded", variants=BOTH),
    "modernbert-base": Model(ENCODER, "ModernBertForMaskedLM", "ModernBertConfig",
                             _bert(22, 768, 50368, intermediate_size=1152), 16, 512, "padded", variants=BOTH,
                             toy={"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
                                  "local_attention": 16}),
    "mpnet-base": Model(ENCODER, "MPNetForMaskedLM", "MPNetConfig", _bert(12, 768, 30527), 16, 384, "padded"),
    "xlnet-base": Model(ENCODER, "XLNetLMHeadModel", "XLNetConfig",
                        {"vocab_size": 32000, "d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072}, 16, 256, float32=True),
    # ---- encoder-decoder
    "t5-v1.1-base": Model(BOTH_SIDES, "T5ForConditionalGeneration", "T5Config",
                          {"vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12,
                           "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, 8, 256, "two texts", variants=BOTH),
    "bart-base": Model(BOTH_SIDES, "BartForConditionalGeneration", "BartConfig", _bart(6, 768, 50265), 8, 256, "two texts", variants=BOTH,
                       toy=_SMALL_TEXT),
    "marian": Model(BOTH_SIDES, "MarianMTModel", "MarianConfig",
                    _bart(6, 512, 58101, 2048, pad_token_id=58100, decoder_start_token_id=58100), 16, 128, "two texts", variants=BOTH,
                    toy={"pad_token_id": 1, "decoder_start_token_id": 1, **_SMALL_TEXT}),
    "m2m100": Model(BOTH_SIDES, "M2M100ForConditionalGeneration", "M2M100Config", _bart(12, 1024, 128112), 8, 128, "two texts"),
    # ---- mixtures of experts
    "granitemoe-1b": Model(EXPERTS, "GraniteMoeForCausalLM", "GraniteMoeConfig",
                           _llama(24, 1024, 512, 16, 8, 49152, num_local_experts=32, num_experts_per_tok=8), 2, 512),
    "mixtral-small": Model(EXPERTS, "MixtralForCausalLM", "MixtralConfig",
                           _llama(6, 1024, 3584, 16, 4, 32000, num_local_experts=8, num_experts_per_tok=2), 4, 512, variants=BOTH),
    "olmoe-3-layers": Model(EXPERTS, "OlmoeForCausalLM", "OlmoeConfig",
                            _llama(3, 2048, 1024, 16, 16, 50304, num_experts=64, num_experts_per_tok=8), 4, 512),
    "gpt-oss-2-layers": Model(EXPERTS, "GptOssForCausalLM", "GptOssConfig",
                              _llama(2, 2880, 2880, 64, 8, 32000, head_dim=64, num_local_experts=32, num_experts_per_tok=4,
                                     sliding_window=128), 4, 512, toy={"sliding_window": 16}),
    "deepseek-v2-lite-3-layers": Model(EXPERTS, "DeepseekV2ForCausalLM", "DeepseekV2Config",
                                       {**_llama(3, 2048, 10944, 16, 16, 102400), "q_lora_rank": None, "kv_lora_rank": 512,
                                        "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 64,
                                        "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1408,
                                        "first_k_dense_replace": 1, "topk_method": "greedy", "n_group": 1, "topk_group": 1}, 4, 512,
                                       toy={"kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16,
                                            "num_key_value_heads": 4}),
    "switch-base-8": Model(EXPERTS, "SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig",
                           {"vocab_size": 32128, "d_model": 768, "d_kv": 64, "d_ff": 3072, "num_layers": 12, "num_decoder_layers": 12,
                            "num_sparse_encoder_layers": 6, "num_sparse_decoder_layers": 6, "num_heads": 12, "num_experts": 8},
                           8, 128, "two texts", variants=BOTH, toy={"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}),
    # ---- vision
    "vit-base": Model(VISION, "ViTForImageClassification", "ViTConfig", _vit(num_labels=1000), 64, reads="image", variants=BOTH, toy=_SMALL_IMAGE),
    "dinov2-base": Model(VISION, "Dinov2ForImageClassification", "Dinov2Config", _vit(image_size=518, patch_size=14, num_labels=1000), 16,
                         reads="image", toy={"image_size": 28, "patch_size": 14}),
    "beit-base": Model(VISION, "BeitForImageClassification", "BeitConfig",
                       _vit(use_relative_position_bias=True, use_mask_token=False, num_labels=1000), 32, reads="image", toy=_SMALL_IMAGE),
    "segformer-b2": Model(VISION, "SegformerForSemanticSegmentation", "SegformerConfig",
                          {"hidden_sizes": [64, 128, 320, 512], "depths": [3, 4, 6, 3], "decoder_hidden_size": 768, "num_labels": 150,
                           "image_size": 512}, 8, reads="image", variants=BOTH,
                          toy={"hidden_sizes": [16, 32, 40, 64], "depths": [1, 1, 1, 1], "decoder_hidden_size": 32, "image_size": 64}),
    "yolos-small": Model(VISION, "YolosForObjectDetection", "YolosConfig",
                         {**_vit(12, 384), "image_size": [512, 512]}, 8, reads="image", toy={"image_size": [64, 64]}),
    "hiera-base": Model(VISION, "HieraForImageClassification", "HieraConfig", {"embed_dim": 96, "depths": [2, 3, 16, 3], "num_labels": 1000}, 32,
                        reads="image", toy={"embed_dim": 24, "depths": [1, 1, 1, 1]}),
    # ---- speech and sound
    "whisper-small": Model(SPEECH, "WhisperForConditionalGeneration", "WhisperConfig",
                           {**_bart(12, 768, 51865), "num_mel_bins": 80, "max_source_positions": 1500}, 4, 128, "log-mel", variants=BOTH,
                           toy={"max_source_positions": 32, "max_target_positions": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
                                "decoder_start_token_id": 1}),
    "wav2vec2-base": Model(SPEECH, "Wav2Vec2ForCTC", "Wav2Vec2Config", _bert(12, 768, 32), 8, 80_000, "sound",
                           toy={**_CONVOLUTIONS, "vocab_size": 32}),
    "hubert-base": Model(SPEECH, "HubertModel", "HubertConfig", _bert(12, 768, 32), 8, 80_000, "sound", head="last_hidden_state",
                         toy=_CONVOLUTIONS),
    "wavlm-base": Model(SPEECH, "WavLMModel", "WavLMConfig", _bert(12, 768, 32), 8, 80_000, "sound", head="last_hidden_state",
                        toy=_CONVOLUTIONS),
    "audio-spectrogram": Model(SPEECH, "ASTForAudioClassification", "ASTConfig",
                               _bert(12, 768, num_labels=527, max_length=1024, num_mel_bins=128), 8, reads="spectrogram",
                               toy={"max_length": 64, "num_mel_bins": 32}),
    # ---- several kinds of input
    "clip-vit-b32": Model(SEVERAL, "CLIPModel", "CLIPConfig",
                          {"text_config": {"vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
                                           "num_attention_heads": 8, "eos_token_id": 2},
                           "vision_config": _vit(patch_size=32), "projection_dim": 512}, 64, 77, "image and text", variants=BOTH,
                          toy={"vision_config": _SMALL_IMAGE, "projection_dim": 32}, head="logits_per_image"),
    "siglip-base": Model(SEVERAL, "SiglipModel", "SiglipConfig",
                         {"text_config": _bert(12, 768, 32000, max_position_embeddings=64), "vision_config": _vit()}, 32, 64, "image and text",
                         toy={"vision_config": _SMALL_IMAGE, "text_config": {"max_position_embeddings": TOY_LENGTH}}, head="logits_per_image"),
    "blip-base": Model(SEVERAL, "BlipForConditionalGeneration", "BlipConfig",
                       {"text_config": _bert(12, 768, 30524, encoder_hidden_size=768), "vision_config": _vit(image_size=384)}, 8, 32, "image and text",
                       toy={"vision_config": _SMALL_IMAGE,
                            "text_config": {"encoder_hidden_size": 64, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2, "pad_token_id": 0}}),
    "vilt-base": Model(SEVERAL, "ViltModel", "ViltConfig", _bert(12, 768, image_size=384, patch_size=32), 8, 40, "image and text",
                       toy=_SMALL_IMAGE, head="last_hidden_state"),
    "llava-small": Model(SEVERAL, "LlavaForConditionalGeneration", "LlavaConfig",
                         {"text_config": {"model_type": "llama", **_llama(16, 1024, 4096, 16, 8, 32064)},
                          "vision_config": {"model_type": "clip_vision_model", **_vit(24, 1024, patch_size=14, image_size=336)},
                          "image_token_index": 32000}, 2, 64, "image in the text",
                         toy={"vision_config": {**_SMALL_IMAGE, "num_hidden_layers": 3}, "image_token_index": 120}),
    # ---- state-space models and recurrences
    "mamba-130m": Model(STATE, "MambaForCausalLM", "MambaConfig",
                        {"vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 24, "state_size": 16}, 4, 64),
    "mamba2-130m": Model(STATE, "Mamba2ForCausalLM", "Mamba2Config",
                         {"vocab_size": 50288, "hidden_size": 768, "num_hidden_layers": 24, "state_size": 128, "num_heads": 24,
                          "head_dim": 64, "n_groups": 1, "tie_word_embeddings": True}, 4, 512, variants=BOTH, toy={"state_size": 16, "num_heads": 8, "chunk_size": 16}),
    "falcon-h1-0.5b": Model(STATE, "FalconH1ForCausalLM", "FalconH1Config",
                            _llama(36, 1024, 2048, 8, 2, 32784, head_dim=64, mamba_d_ssm=1536, mamba_n_heads=24, mamba_d_head=64,
                                   mamba_d_state=128, mamba_n_groups=1), 4, 256,
                            toy={"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 16}),
    "qwen3-next-4-layers": Model(STATE, "Qwen3NextForCausalLM", "Qwen3NextConfig",
                                 _llama(4, 2048, 5120, 16, 2, 32000, head_dim=256, num_experts=64, num_experts_per_tok=10,
                                        moe_intermediate_size=512, shared_expert_intermediate_size=512, linear_num_key_heads=16,
                                        linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128), 2, 256,
                                 toy={"num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
                                      "linear_value_head_dim": 16}),
    "recurrentgemma-6-layers": Model(STATE, "RecurrentGemmaForCausalLM", "RecurrentGemmaConfig",
                                     _llama(6, 2560, 15360, 10, 1, 32000, lru_width=2560, attention_window_size=2048), 2, 256,
                                     toy={"num_hidden_layers": 3, "num_key_value_heads": 1, "lru_width": 64, "attention_window_size": 32}),
}  # fmt: skip

CASES = {
    f"hf/{name}": Case(f"hf/{name}", m.kind, f"{__file__}:make", {"name": name}, m.variants, ("transformers",))
    for name, m in MODELS.items()
}


def make(name: str, train: bool = False, toy: bool = False) -> rung.Workload:
    """One architecture; see MODELS for the names."""
    if name not in MODELS:
        raise UsageError(f"--name is {name!r}; it is one of {', '.join(MODELS)}.")
    known = MODELS[name]
    values = shrunk(known.values, known.toy) if toy else known.values
    rows = TOY_ROWS if toy else known.rows
    length = _toy_length(known.reads) if toy else known.length
    config = _of(known.config)(**values)
    model = _of(known.model)
    takes = inspect.signature(model.forward).parameters
    options = {"use_cache": False} if "use_cache" in takes else {}
    batch = _READS[known.reads]

    def made() -> nn.Module:
        found: nn.Module = model(config)
        return found

    def forward(module: Any, given: dict[str, torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor = getattr(module(**given, **options), known.head)
        return found

    def drawn(draw: Draw, count: int) -> dict[str, torch.Tensor]:
        found = batch(draw, count, length, config)
        return {**found, LABELS: _labels(draw, known, found, count, config)} if train else found

    text = known.reads in ("tokens", "padded", "two texts")
    return workload(
        name, made, drawn, rows, train, forward, dtype=torch.float32 if train or known.float32 else torch.bfloat16,
        loss=_segmentation_loss if known.config == "SegformerConfig" else None, tokens=rows * length if text else None,
    )  # fmt: skip


def _of(name: str) -> Any:
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    try:
        return getattr(transformers, name)
    except AttributeError:
        raise ImportError(f"transformers {transformers.__version__} has no {name}") from None


def _toy_length(reads: str) -> int:
    return 4000 if reads == "sound" else TOY_LENGTH


def _text(config: Any) -> Any:
    return getattr(config, "text_config", config)


def _vision(config: Any) -> Any:
    return getattr(config, "vision_config", config)


def _ids(draw: Draw, rows: int, length: int, config: Any) -> torch.Tensor:
    return draw.ids(_text(config).vocab_size - 1, rows, length)


def _image(draw: Draw, rows: int, config: Any) -> torch.Tensor:
    size = _vision(config).image_size
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return draw.normal(rows, 3, height, width)


def _image_in_text(draw: Draw, rows: int, length: int, config: Any) -> dict[str, torch.Tensor]:
    """A text that holds one place for each patch of its image, as a processor writes it."""
    vision = config.vision_config
    patches = (vision.image_size // vision.patch_size) ** 2
    ids = draw.ids(config.image_token_id - 1, rows, patches + length)
    ids[:, 4 : 4 + patches] = config.image_token_id
    return {"input_ids": ids, "pixel_values": _image(draw, rows, config)}


def _two_texts(draw: Draw, rows: int, length: int, config: Any) -> dict[str, torch.Tensor]:
    source, target = (_ids(draw, rows, length, config) for _ in range(2))
    return {"input_ids": source, "attention_mask": padded(rows, length), "decoder_input_ids": target}


_READS: dict[str, Callable[[Draw, int, int, Any], dict[str, torch.Tensor]]] = {
    "tokens": lambda draw, rows, length, config: {"input_ids": _ids(draw, rows, length, config)},
    "padded": lambda draw, rows, length, config: {
        "input_ids": _ids(draw, rows, length, config), "attention_mask": padded(rows, length)
    },
    "two texts": _two_texts,
    "image": lambda draw, rows, length, config: {"pixel_values": _image(draw, rows, config)},
    "log-mel": lambda draw, rows, length, config: {
        "input_features": draw.normal(rows, config.num_mel_bins, 2 * config.max_source_positions),
        "decoder_input_ids": _ids(draw, rows, length, config),
    },
    "sound": lambda draw, rows, length, config: {"input_values": draw.normal(rows, length)},
    "spectrogram": lambda draw, rows, length, config: {"input_values": draw.normal(rows, config.max_length, config.num_mel_bins)},
    "image and text": lambda draw, rows, length, config: {
        "input_ids": _ids(draw, rows, length, config), "pixel_values": _image(draw, rows, config)
    },
    "image in the text": _image_in_text,
}  # fmt: skip


def _labels(draw: Draw, known: Model, batch: dict[str, torch.Tensor], rows: int, config: Any) -> torch.Tensor:
    """What the loss is asked for: the next token, the masked one, a class, a class a pixel, or which text belongs to which image."""
    if known.config == "SegformerConfig":
        return draw.ids(config.num_labels, rows, config.image_size, config.image_size, lowest=0)
    if known.head == "logits_per_image":
        return torch.arange(rows)
    if known.reads == "image":
        return draw.ids(config.num_labels, rows, lowest=0)
    return draw.ids(config.vocab_size - 1, *batch.get("decoder_input_ids", batch.get("input_ids")).shape)


def _segmentation_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    larger = nn.functional.interpolate(logits.float(), size=labels.shape[-2:], mode="bilinear", align_corners=False)
    return nn.functional.cross_entropy(larger, labels)
