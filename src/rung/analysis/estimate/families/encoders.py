"""Encoders: BERT and its kin over tokens, vision transformers over patches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rung.analysis.estimate.architecture import Architecture, Group, counted
from rung.analysis.estimate.attentions import Attention
from rung.analysis.estimate.block import Block
from rung.analysis.estimate.configuration import Configuration
from rung.analysis.estimate.ends import Added, Head, Norm, Projection, Table
from rung.analysis.estimate.families.decoders import divided
from rung.analysis.estimate.mlps import MLP


def layer(
    c: Configuration, hidden: int, heads: int, ffn: int, qkv_bias: bool = True, k_bias: bool | None = None
) -> tuple[Block, ...]:
    """A layer that sees all tokens: biases everywhere, and norms that have one."""
    norm = Norm(hidden, gains=2)
    width = divided(c, hidden, heads)
    attention = Attention(
        hidden, heads, heads, width, qkv_bias=qkv_bias, out_bias=True, k_bias=k_bias, causal=False, rotary=False
    )
    return norm, attention, norm, MLP(hidden, ffn, gated=False, bias=True)


def bert(configuration: Configuration) -> Architecture:
    """BERT and RoBERTa (Devlin et al. 2019), with the head of a masked language model where `architectures` has one, else a pooler;
    DistilBERT, which has neither token types nor pooler.
    """
    c = configuration
    distilled = c.kind == "distilbert"
    hidden = c.integer("dim", "hidden_size") if distilled else c.integer("hidden_size")
    layers = c.integer("n_layers", "num_hidden_layers") if distilled else c.integer("num_hidden_layers")
    heads = c.integer("n_heads", "num_attention_heads") if distilled else c.integer("num_attention_heads")
    ffn = c.integer("hidden_dim", "intermediate_size") if distilled else c.integer("intermediate_size")
    vocab, positions = c.integer("vocab_size"), c.integer("max_position_embeddings")
    norm = Norm(hidden, gains=2)
    masked = any("ForMaskedLM" in str(name) for name in c.several("architectures"))
    types = (
        () if distilled else (Table(replace(c, defaults={"type_vocab_size": 2}).integer("type_vocab_size"), hidden),)
    )
    head: tuple[Block, ...] = (Projection(hidden, hidden, on="sequence"),) if not distilled else ()
    if masked:
        tied = c.flag("tie_word_embeddings", True)
        head = (Projection(hidden, hidden), norm, Head(hidden, vocab, tied, bias=True))
    return Architecture(
        c.kind,
        f"hidden {hidden}, {counted(layers, 'layer')}, {counted(heads, 'head')}, MLP {ffn}, vocabulary {vocab}, {'masked-token head' if masked else 'no head'}",
        hidden,
        (
            Group("embedding", 1, (Table(vocab, hidden), Table(positions, hidden), *types, norm), layer=False),
            Group("layer", layers, layer(c, hidden, heads, ffn)),
            *((Group("head", 1, head, layer=False),) if head else ()),
        ),
        decodes=False,
    )


def vit(configuration: Configuration) -> Architecture:
    """A vision transformer (Dosovitskiy et al. 2021): patches and a class token; a classifier where `architectures` has one, else a
    pooler.
    """
    c = configuration
    hidden, layers, heads = (c.integer(name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    ffn, image, patch = (c.integer(name) for name in ("intermediate_size", "image_size", "patch_size"))
    patches = (image // patch) ** 2
    classifies = any("ForImageClassification" in str(name) for name in c.several("architectures"))
    head = Projection(hidden, c.labels(2) if classifies else hidden, on="sequence")
    return Architecture(
        c.kind,
        f"hidden {hidden}, {counted(layers, 'layer')}, {counted(heads, 'head')}, MLP {ffn}, {patches} patches of {patch} x {patch} and a class token",
        hidden,
        (
            Group(
                "embedding",
                1,
                (
                    Projection(replace(c, defaults={"num_channels": 3}).integer("num_channels") * patch**2, hidden),
                    Added((patches + 2) * hidden),
                ),
                layer=False,
            ),
            Group("layer", layers, layer(c, hidden, heads, ffn, c.flag("qkv_bias", True))),
            Group("head", 1, (Norm(hidden, gains=2), head), layer=False),
        ),
        decodes=False,
        tokens=patches + 1,
    )


READERS: dict[str, Callable[[Configuration], Architecture]] = {
    "bert": bert, "roberta": bert, "xlm-roberta": bert, "distilbert": bert, "vit": vit,
}  # fmt: skip
