"""Encoder-decoders: an encoder over the source, and a decoder that also attends to its result. `--seq` is of the decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rung.analysis.estimate.architecture import Architecture, Group, counted
from rung.analysis.estimate.attentions import Attention
from rung.analysis.estimate.block import Block, On
from rung.analysis.estimate.configuration import Configuration
from rung.analysis.estimate.ends import Added, Head, Norm, Projection, Table
from rung.analysis.estimate.families.decoders import divided
from rung.analysis.estimate.mlps import MLP


def t5(configuration: Configuration) -> Architecture:
    """T5 (Raffel et al. 2020): no biases, a table of relative positions in the first layer of each stack. 1.1 has a gated MLP and an
    output head of its own (`feed_forward_proj`, `tie_word_embeddings`).
    """
    c = configuration
    hidden, heads, width, ffn = (c.integer(name) for name in ("d_model", "num_heads", "d_kv", "d_ff"))
    layers, vocab = c.integer("num_layers"), c.integer("vocab_size")
    below = c.maybe("num_decoder_layers") or layers
    gated = c.word("feed_forward_proj", "relu").startswith("gated-")
    relative = Added(heads * (c.maybe("relative_attention_num_buckets") or 32))

    def attention(on: On, cross: bool = False) -> Attention:
        return Attention(hidden, heads, heads, width, causal=on == "tokens", rotary=False, cross=cross, on=on)

    def norm(on: On) -> Norm:
        return Norm(hidden, on=on)

    encoder = (norm("source"), attention("source"), norm("source"), MLP(hidden, ffn, gated, on="source"))
    decoder = (
        *(norm("tokens"), attention("tokens"), norm("tokens"), attention("tokens", cross=True)),
        *(norm("tokens"), MLP(hidden, ffn, gated)),
    )
    tied = c.flag("tie_word_embeddings", True)
    return Architecture(
        c.kind,
        f"hidden {hidden}, {layers} + {below} layers, {counted(heads, 'head')} of {width}, MLP {ffn}{' gated' if gated else ''}, vocabulary {vocab}"
        f"{' (tied)' if tied else ''}",
        hidden,
        (
            Group(
                "embedding", 1, (Table(vocab, hidden), Table(0, hidden, on="source"), relative, relative), layer=False
            ),
            Group("encoder layer", layers, encoder),
            Group("encoder norm", 1, (norm("source"),), layer=False),
            Group("decoder layer", below, decoder),
            Group("head", 1, (norm("tokens"), Head(hidden, vocab, tied)), layer=False),
        ),
        source=None,
    )


def _layers(c: Configuration, k_bias: bool | None, final: bool) -> tuple[tuple[Group, ...], str]:
    """The layers of BART and Whisper: biases and norms with one, positions learned. final: a norm after each stack."""
    hidden = c.integer("d_model")
    counts, ffns, all_heads = (
        tuple(c.integer(f"{side}_{name}") for side in ("encoder", "decoder"))
        for name in ("layers", "ffn_dim", "attention_heads")
    )

    def stack(side: int, on: On) -> tuple[Block, ...]:
        heads, norm = all_heads[side], Norm(hidden, gains=2, on=on)
        width = divided(c, hidden, heads)
        attention = Attention(
            hidden,
            heads,
            heads,
            width,
            qkv_bias=True,
            out_bias=True,
            k_bias=k_bias,
            causal=side == 1,
            rotary=False,
            on=on,
        )
        blocks: tuple[Block, ...] = (norm, attention)
        if side == 1:
            blocks += norm, replace(attention, cross=True)
        return (*blocks, norm, MLP(hidden, ffns[side], gated=False, bias=True, on=on))

    norms = Norm(hidden, gains=2, on="source"), Norm(hidden, gains=2)
    after = (Group("norm after each stack", 1, norms, layer=False),) if final else ()
    found = (
        Group("encoder layer", counts[0], stack(0, "source")),
        Group("decoder layer", counts[1], stack(1, "tokens")),
        *after,
    )
    return found, f"hidden {hidden}, {counts[0]} + {counts[1]} layers, {counted(all_heads[0], 'head')}, MLP {ffns[0]}"


def bart(configuration: Configuration) -> Architecture:
    """BART (Lewis et al. 2020) and mBART, which has a norm after each stack: positions are learned, with two rows more."""
    c = configuration
    hidden, vocab = c.integer("d_model"), c.integer("vocab_size")
    positions = (c.integer("max_position_embeddings") + 2) * hidden
    layers, says = _layers(c, None, final=c.kind == "mbart")
    norms = Norm(hidden, gains=2, on="source"), Norm(hidden, gains=2)
    tables = (Table(vocab, hidden), Table(0, hidden, on="source"), Added(2 * positions), *norms)
    head = Head(hidden, vocab, c.flag("tie_word_embeddings", True))
    return Architecture(
        c.kind,
        f"{says}, vocabulary {vocab}",
        hidden,
        (Group("embedding", 1, tables, layer=False), *layers, Group("head", 1, (head,), layer=False)),
        source=None,
    )


def whisper(configuration: Configuration) -> Architecture:
    """Whisper (Radford et al. 2022): two convolutions of width 3 over the mel spectrogram, the second with stride 2; projections of
    keys have no bias. The source is as many frames as the encoder has positions.
    """
    c = configuration
    hidden, vocab, mel = c.integer("d_model"), c.integer("vocab_size"), c.integer("num_mel_bins")
    frames, positions = c.integer("max_source_positions"), c.integer("max_target_positions")
    layers, says = _layers(c, False, final=True)
    front = (
        Projection(3 * mel, hidden, on="source", repeated=2),
        Projection(3 * hidden, hidden, on="source"),
        *(Added(frames * hidden, on="source"), Table(vocab, hidden), Added(positions * hidden)),
    )
    head = Head(hidden, vocab, c.flag("tie_word_embeddings", True))
    return Architecture(
        c.kind,
        f"{says}, {frames} frames, vocabulary {vocab}",
        hidden,
        (Group("embedding", 1, front, layer=False), *layers, Group("head", 1, (head,), layer=False)),
        tokens=positions,
        source=frames,
    )


READERS: dict[str, Callable[[Configuration], Architecture]] = {
    "t5": t5, "mt5": t5, "bart": bart, "mbart": bart, "whisper": whisper,
}  # fmt: skip
