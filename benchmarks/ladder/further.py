"""More Hugging Face architectures at toy size, for `architectures.py --further`: mixtures of experts, sinks, latent and windowed
attention, relative positions, encoders, vision, convolutions, recurrences. Not all of them are in older transformers."""

from __future__ import annotations

from typing import Any

from toys import COMMON, GROUPED, HEADS, IMAGE, NO_DROPOUT, SHORT, VISION, VOCABULARY, WIDTH

_HEAD = {"head_dim": 8}
_ROUTED = {"num_experts": 4, "num_experts_per_tok": 2}
_BART = {
    "vocab_size": VOCABULARY, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "dropout": 0.0, "max_position_embeddings": 64,
}  # fmt: skip

# As toys.ARCHITECTURES.
FURTHER: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "Gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**GROUPED, **_HEAD, "sliding_window": 4}, "tokens"),
    "Llama4": ("Llama4ForCausalLM", "Llama4TextConfig",
               {**GROUPED, **_HEAD, "intermediate_size_mlp": 48, "num_local_experts": 2, "attention_chunk_size": 16}, "tokens"),
    "gpt-oss": ("GptOssForCausalLM", "GptOssConfig",
                {**GROUPED, **_HEAD, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4}, "tokens"),
    "DeepSeek-V3": ("DeepseekV3ForCausalLM", "DeepseekV3Config",
                    {**COMMON, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
                     "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4, "n_group": 1, "topk_group": 1,
                     "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1, "n_shared_experts": 1},
                    "tokens"),
    "Qwen3-MoE": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**GROUPED, **_HEAD, **_ROUTED, "moe_intermediate_size": 24}, "tokens"),
    "Qwen3-Next": ("Qwen3NextForCausalLM", "Qwen3NextConfig",
                   {**GROUPED, **_HEAD, **_ROUTED, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
                    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
                   "tokens"),
    "OLMoE": ("OlmoeForCausalLM", "OlmoeConfig", {**GROUPED, **_ROUTED}, "tokens"),
    "OLMo2": ("Olmo2ForCausalLM", "Olmo2Config", GROUPED, "tokens"),
    "Cohere": ("CohereForCausalLM", "CohereConfig", GROUPED, "tokens"),
    "Granite": ("GraniteForCausalLM", "GraniteConfig", GROUPED, "tokens"),
    "StableLM": ("StableLmForCausalLM", "StableLmConfig", GROUPED, "tokens"),
    "StarCoder2": ("Starcoder2ForCausalLM", "Starcoder2Config",
                   {**GROUPED, "residual_dropout": 0.0, "embedding_dropout": 0.0}, "tokens"),
    "SmolLM3": ("SmolLM3ForCausalLM", "SmolLM3Config", GROUPED, "tokens"),
    "GLM-4": ("Glm4ForCausalLM", "Glm4Config", {**GROUPED, **_HEAD}, "tokens"),
    "Nemotron": ("NemotronForCausalLM", "NemotronConfig", GROUPED, "tokens"),
    "Persimmon": ("PersimmonForCausalLM", "PersimmonConfig", COMMON, "tokens"),
    "Phi": ("PhiForCausalLM", "PhiConfig", {**COMMON, "attention_dropout": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}, "tokens"),
    "GPT-J": ("GPTJForCausalLM", "GPTJConfig",
              {**SHORT, "n_embd": WIDTH, "n_layer": 2, "n_head": HEADS, "n_positions": 64, "rotary_dim": 8, "attn_pdrop": 0.0,
               "resid_pdrop": 0.0, "embd_pdrop": 0.0}, "tokens"),
    "Bloom": ("BloomForCausalLM", "BloomConfig",
              {**SHORT, "hidden_size": WIDTH, "n_layer": 2, "n_head": HEADS, "hidden_dropout": 0.0, "attention_dropout": 0.0}, "tokens"),
    "MPT": ("MptForCausalLM", "MptConfig", {**SHORT, "d_model": WIDTH, "n_layers": 2, "n_heads": HEADS, "max_seq_len": 64}, "tokens"),
    "XLNet": ("XLNetLMHeadModel", "XLNetConfig",
              {"vocab_size": VOCABULARY, "d_model": WIDTH, "n_layer": 2, "n_head": HEADS, "d_inner": 48, "dropout": 0.0}, "tokens"),
    "Mamba": ("MambaForCausalLM", "MambaConfig", {**SHORT, "hidden_size": WIDTH, "num_hidden_layers": 2, "state_size": 4}, "tokens"),
    "ModernBERT": ("ModernBertForMaskedLM", "ModernBertConfig",
                   {**COMMON, "global_attn_every_n_layers": 2, "local_attention": 4, "cls_token_id": 1, "sep_token_id": 2}, "tokens"),
    "DeBERTa": ("DebertaV2ForMaskedLM", "DebertaV2Config",
                {**COMMON, **NO_DROPOUT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 16}, "tokens"),
    "ALBERT": ("AlbertForMaskedLM", "AlbertConfig", {**COMMON, **NO_DROPOUT, "embedding_size": 16}, "tokens"),
    "ELECTRA": ("ElectraForMaskedLM", "ElectraConfig", {**COMMON, **NO_DROPOUT}, "tokens"),
    "BART": ("BartForConditionalGeneration", "BartConfig", _BART, "two token sequences"),
    "Swin": ("SwinForImageClassification", "SwinConfig",
             {"image_size": IMAGE, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
              "hidden_dropout_prob": 0.0, "drop_path_rate": 0.0}, "image"),
    "DINOv2": ("Dinov2ForImageClassification", "Dinov2Config", {**VISION, **NO_DROPOUT}, "image"),
    "BEiT": ("BeitForImageClassification", "BeitConfig", {**VISION, **NO_DROPOUT, "drop_path_rate": 0.0}, "image"),
    "SigLIP": ("SiglipVisionModel", "SiglipVisionConfig", VISION, "image"),
    "ConvNeXt": ("ConvNextForImageClassification", "ConvNextConfig",
                 {"image_size": IMAGE, "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "patch_size": 2}, "image"),
    "ResNet": ("ResNetForImageClassification", "ResNetConfig", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}, "image"),
}  # fmt: skip
