"""Decoders: one stack of causal layers, dense or with experts, between an embedding and an output head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rung.analysis.estimate.architecture import Architecture, Group, counted
from rung.analysis.estimate.attentions import Attention, LatentAttention
from rung.analysis.estimate.block import Block
from rung.analysis.estimate.configuration import Configuration
from rung.analysis.estimate.ends import Added, Head, Norm, Projection, Table
from rung.analysis.estimate.mlps import MLP, Experts
from rung.errors import InputError

Flag = bool | tuple[str, bool]  # always so, or by a field and its default
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_HEADS = ("num_attention_heads", "n_head")
_FFN = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")


@dataclass(frozen=True)
class Traits:
    """What decoders differ in beside their numbers.

    gains: of a norm (2 with a bias). norms: of a layer. positions: rows that a table of learned positions has beyond
    max_position_embeddings, None without one. parallel: attention and MLP beside each other. windows: which layers have the sliding
    window, where layer_types does not say it: every one, those from max_window_layers on, or all but each so-manieth.
    """

    qkv_bias: Flag = ("attention_bias", False)
    out_bias: Flag = ("attention_bias", False)
    mlp_bias: Flag = False
    gated: bool = True
    gains: int = 1
    norms: int = 2
    parallel: bool = False
    positions: int | None = None
    rotary: bool = True
    qk_norm: Literal["", "head", "all"] = ""
    sinks: bool = False
    tied: bool = False
    head_bias: bool = False
    windows: Literal["", "all", "late"] | int = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)


# Defaults are those of the classes of transformers that their published configurations rely on.
TRAITS = {
    "llama": Traits(mlp_bias=("mlp_bias", False)),
    "smollm3": Traits(mlp_bias=("mlp_bias", False), tied=True),
    "mistral": Traits(False, False, windows="all", defaults={"num_key_value_heads": 8}),
    "mixtral": Traits(False, False, windows="all", defaults={"num_key_value_heads": 8}),
    "qwen2": Traits(True, False, windows="late"),
    "qwen2_moe": Traits(("qkv_bias", True), False, windows="late"),
    "qwen3": Traits(qk_norm="head", windows="late", defaults={"head_dim": 128}),
    "qwen3_moe": Traits(qk_norm="head", windows="late", defaults={"num_key_value_heads": 4}),
    "gemma": Traits(tied=True, defaults={"head_dim": 256}),
    "gemma2": Traits(norms=4, tied=True, windows=2, defaults={"head_dim": 256}),
    "gemma3_text": Traits(
        norms=4, qk_norm="head", tied=True, windows=6,
        defaults={"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208, "sliding_window": 4096},
    ),
    "phi": Traits(True, True, True, gated=False, gains=2, norms=1, parallel=True, head_bias=True),
    "phi3": Traits(False, False, windows="all"),
    "olmo": Traits(gains=0),
    "olmo2": Traits(qk_norm="all"),
    "olmoe": Traits(qk_norm="all"),
    "starcoder2": Traits(
        ("use_bias", True), ("use_bias", True), ("use_bias", True), gated=False, gains=2, tied=True, windows="all",
        defaults={"num_key_value_heads": 2},
    ),
    "gpt_oss": Traits(("attention_bias", True), ("attention_bias", True), sinks=True, windows=2, defaults={"head_dim": 64}),
    "gpt2": Traits(True, True, True, gated=False, gains=2, positions=0, rotary=False, tied=True),
    "gpt_neox": Traits(("attention_bias", True), ("attention_bias", True), True, gated=False, gains=2),
    "opt": Traits(("enable_bias", True), ("enable_bias", True), ("enable_bias", True), gated=False, gains=2, positions=2,
                  rotary=False, tied=True),
    "bloom": Traits(True, True, True, gated=False, gains=2, rotary=False, tied=True),
    "falcon": Traits(("bias", False), ("bias", False), ("bias", False), gated=False, gains=2, tied=True),
    "deepseek_v2": Traits(),
    "deepseek_v3": Traits(),
}  # fmt: skip
TRAITS["kimi_k2"] = TRAITS["deepseek_v3"]  # DeepSeek-V3's class under a name of its own


def decoder(configuration: Configuration) -> Architecture:
    """A decoder of any of TRAITS."""
    traits = TRAITS[configuration.kind]
    c = replace(configuration, defaults=traits.defaults)
    hidden, layers, vocab = c.integer(*_HIDDEN), c.layers(*_LAYERS), c.integer("vocab_size")
    traits = _adjusted(c, traits)
    tied = c.flag("tie_word_embeddings", traits.tied)
    norm = Norm(hidden, traits.gains)
    windows = _windows(c, traits, layers)
    made = [(*((norm,) * traits.norms), _attention(c, traits, windows[n]), _mlp(c, traits, n)) for n in range(layers)]
    width = c.maybe("word_embed_proj_dim") or hidden
    embedding: list[Block] = [Table(vocab, width)]
    if traits.positions is not None:
        embedding.append(Added((c.integer("max_position_embeddings", "n_positions") + traits.positions) * hidden))
    if c.kind == "bloom":
        embedding.append(norm)
    into = (Projection(width, hidden, bias=False),) if width != hidden else ()
    out = (Projection(hidden, width, bias=False),) if width != hidden else ()
    last = () if c.kind == "opt" and not c.flag("do_layer_norm_before", True) else (norm,)
    return Architecture(
        c.kind,
        _says(c, made, vocab, tied),
        hidden,
        (
            Group("embedding", 1, (*embedding, *into), layer=False),
            *groups(made),
            Group("head", 1, (*last, *out, Head(width, vocab, tied, traits.head_bias)), layer=False),
        ),
    )


def groups(layers: Iterable[tuple[Block, ...]], name: str = "layer") -> tuple[Group, ...]:
    """Equal layers together, in the order in which the first of each stands."""
    counts: dict[tuple[Block, ...], int] = {}
    for blocks in layers:
        counts[blocks] = counts.get(blocks, 0) + 1
    return tuple(Group(name, count, blocks) for blocks, count in counts.items())


def _adjusted(c: Configuration, traits: Traits) -> Traits:
    """Traits that a family has by its fields."""
    if c.kind == "falcon":
        new = c.flag("new_decoder_architecture", False)
        parallel = new or c.flag("parallel_attn", True)
        two = c.count("num_ln_in_parallel_attn", 2) == 2 if new else not parallel
        return replace(traits, norms=2 if two else 1, parallel=parallel, rotary=not c.flag("alibi", False))
    if c.kind == "gpt_neox":
        return replace(traits, parallel=c.flag("use_parallel_residual", True))
    return traits


def _flag(c: Configuration, flag: Flag) -> bool:
    return flag if isinstance(flag, bool) else c.flag(*flag)


def _windows(c: Configuration, traits: Traits, layers: int) -> list[int | None]:
    """The window of each layer; None where it sees all."""
    window = c.count("sliding_window", 0) or None
    if traits.windows == "late" and not c.flag("use_sliding_window", False):
        window = None
    kinds = c.several("layer_types")
    if window is None or (not kinds and traits.windows == ""):
        return [None] * layers
    if kinds:
        if len(kinds) != layers:
            raise InputError(
                f"{c.where} has {len(kinds)} layer_types for {layers} layers: there should be one for each layer."
            )
        return [window if kind == "sliding_attention" else None for kind in kinds]
    if traits.windows == "late":
        first = c.count("max_window_layers", layers)
        return [window if n >= first else None for n in range(layers)]
    if traits.windows == "all":
        return [window] * layers
    every = c.maybe("sliding_window_pattern") or int(traits.windows)
    return [window if (n + 1) % every else None for n in range(layers)]


def _attention(c: Configuration, traits: Traits, window: int | None) -> Block:
    hidden, heads = c.integer(*_HIDDEN), c.integer(*_HEADS)
    if c.kind in ("deepseek_v2", "deepseek_v3", "kimi_k2"):
        return LatentAttention(
            hidden,
            heads,
            c.maybe("q_lora_rank"),
            c.integer("kv_lora_rank"),
            c.integer("qk_nope_head_dim"),
            c.integer("qk_rope_head_dim"),
            c.integer("v_head_dim"),
            bias=c.flag("attention_bias", False),
        )
    kv_heads = _kv_heads(c, heads)
    if heads % kv_heads:
        raise InputError(
            f"{c.where} has {heads} heads and {kv_heads} key-value heads: the first should be a multiple of the second."
        )
    return Attention(
        hidden,
        heads,
        kv_heads,
        c.maybe("head_dim") or divided(c, hidden, heads),
        qkv_bias=_flag(c, traits.qkv_bias),
        out_bias=_flag(c, traits.out_bias),
        window=window,
        rotary=traits.rotary,
        qk_norm=traits.qk_norm,
        sinks=traits.sinks,
        joins=not traits.parallel,
    )


def _kv_heads(c: Configuration, heads: int) -> int:
    if c.kind == "falcon":
        if c.flag("new_decoder_architecture", False):
            return c.maybe("num_kv_heads") or heads
        return 1 if c.flag("multi_query", True) else heads
    return c.maybe("num_key_value_heads") or heads


def divided(c: Configuration, hidden: int, heads: int) -> int:
    """The width of a head. Raises InputError where heads do not divide hidden."""
    if hidden % heads:
        raise InputError(f"{c.where} has hidden size {hidden}, which its {heads} heads do not divide: give head_dim.")
    return hidden // heads


def _mlp(c: Configuration, traits: Traits, layer: int) -> Block:
    """The MLP of one layer, or its experts."""
    hidden = c.integer(*_HIDDEN)
    if c.kind in ("mixtral", "gpt_oss"):
        both = c.kind == "gpt_oss"
        return _experts(
            c, hidden, c.integer("intermediate_size"), ("num_local_experts", "num_experts"), bias=both, router_bias=both
        )
    if c.kind == "olmoe":
        return _experts(c, hidden, c.integer("intermediate_size"), ("num_experts",))
    dense = layer in c.several("mlp_only_layers") or (layer + 1) % (c.maybe("decoder_sparse_step") or 1) != 0
    if c.kind in ("qwen2_moe", "qwen3_moe") and not dense:
        shared = c.integer("shared_expert_intermediate_size") if c.kind == "qwen2_moe" else 0
        width = c.integer("moe_intermediate_size")
        return _experts(c, hidden, width, ("num_experts",), shared=shared, shared_gate=bool(shared))
    if c.kind in ("deepseek_v2", "deepseek_v3", "kimi_k2") and layer >= c.count("first_k_dense_replace", 0):
        width = c.integer("moe_intermediate_size")
        return _experts(c, hidden, width, ("n_routed_experts",), shared=c.count("n_shared_experts", 0) * width)
    plain = c.kind in ("gpt2", "bloom", "falcon")  # theirs is 4 x hidden where no width is given
    ffn = (c.maybe(*_FFN) or 4 * hidden) if plain else c.integer(*_FFN)
    return MLP(hidden, ffn, traits.gated, _flag(c, traits.mlp_bias))


def _experts(
    c: Configuration, hidden: int, ffn: int, names: tuple[str, ...], *, bias: bool = False, router_bias: bool = False,
    shared: int = 0, shared_gate: bool = False,
) -> Experts:  # fmt: skip
    experts, top_k = c.integer(*names), c.integer("num_experts_per_tok", "experts_per_token")
    if top_k > experts:
        raise InputError(f"{c.where} chooses {top_k} experts a token, but has only {experts}.")
    return Experts(
        hidden, ffn, experts, top_k, bias=bias, router_bias=router_bias, shared=shared, shared_gate=shared_gate
    )


def _says(c: Configuration, layers: list[tuple[Block, ...]], vocab: int, tied: bool) -> str:
    blocks = dict.fromkeys(block for layer in layers for block in layer)
    parts = [f"hidden {c.integer(*_HIDDEN)}, {counted(len(layers), 'layer')}"]
    for block in blocks:
        if isinstance(block, Attention):
            text = f"{counted(block.heads, 'head')} of {block.head_dim}"
            text += f" ({block.kv_heads} of keys and values)" if block.kv_heads != block.heads else ""
            if text not in parts:
                parts.append(text)
        elif isinstance(block, LatentAttention):
            parts.append(f"{counted(block.heads, 'head')} over latents of {block.kv_rank} + {block.rope}")
        elif isinstance(block, MLP):
            count = sum(block in layer for layer in layers)
            some = f" in {counted(count, 'layer')}" if count < len(layers) else ""
            parts.append(f"MLP {block.ffn}{' gated' if block.gated else ''}{some}")
        elif isinstance(block, Experts):
            shared = f" and one shared of {block.shared}" if block.shared else ""
            parts.append(f"{block.top_k} of {block.experts} experts of {block.ffn}{shared}")
    windows = [block.window for layer in layers for block in layer if isinstance(block, Attention) and block.window]
    if windows:
        parts.append(
            f"a window of {windows[0]} in {'all layers' if len(windows) == len(layers) else counted(len(windows), 'layer')}"
        )
    return ", ".join([*parts, f"vocabulary {vocab}{' (tied)' if tied else ''}"])


def _language_part(c: Configuration) -> Architecture:
    """The language model of one that sees images, too."""
    inner = c.part("text_config")
    kind = inner.kind or f"{c.kind}_text"
    model = decoder(replace(inner, fields={**inner.fields, "model_type": kind}))
    return replace(model, name=c.kind, omitted=("the vision model (vision_config) and what projects its result",))


READERS: dict[str, Callable[[Configuration], Architecture]] = dict.fromkeys(TRAITS, decoder) | {
    "gemma3": _language_part
}
