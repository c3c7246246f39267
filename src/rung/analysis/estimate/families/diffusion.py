"""Diffusion transformers, one denoising step: DiT, Stable Diffusion 3, Flux. Text encoders and the VAE are models of their own.

Tokens are the patches of a latent image, the source is the text. Conditions (time step, class, pooled text) are one row a sequence.
"""

from __future__ import annotations

from collections.abc import Callable

from rung.analysis.estimate.architecture import Architecture, Group, counted
from rung.analysis.estimate.attentions import Attention, JointAttention
from rung.analysis.estimate.block import Block, On
from rung.analysis.estimate.configuration import Configuration
from rung.analysis.estimate.ends import Norm, Projection, Table
from rung.analysis.estimate.families.decoders import groups
from rung.analysis.estimate.mlps import MLP

_FREQUENCIES = 256  # width of the sinusoidal embedding of a time step (Peebles and Xie 2022)
_OMITTED = ("text encoders and the VAE",)


def _condition(inner: int, hidden: int) -> tuple[Projection, ...]:
    """Two products with an activation between them, for one row a sequence."""
    return Projection(inner, hidden, on="sequence"), Projection(hidden, hidden, on="sequence")


def _modulation(hidden: int, chunks: int) -> Projection:
    """adaLN: a condition to `chunks` vectors that scale and shift (Peebles and Xie 2022, section 3.2)."""
    return Projection(hidden, chunks * hidden, on="sequence", part="projections")


def _modulated(hidden: int, on: On = "tokens") -> Norm:
    return Norm(hidden, gains=0, modulated=True, on=on)


def dit(configuration: Configuration) -> Architecture:
    """DiT (Peebles and Xie 2022) with adaLN-Zero, as diffusers builds it: every layer has the time step's and the class's embedding of
    its own, where the paper's model has one for all; another one goes with the last modulation.
    """
    c = configuration
    heads, width, layers = (c.integer(name) for name in ("num_attention_heads", "attention_head_dim", "num_layers"))
    channels, patch, size = (c.integer(name) for name in ("in_channels", "patch_size", "sample_size"))
    hidden, classes = heads * width, c.integer("num_embeds_ada_norm")
    patches = (size // patch) ** 2
    bias = c.flag("attention_bias", True)
    attention = Attention(hidden, heads, heads, width, qkv_bias=bias, out_bias=True, causal=False, rotary=False)
    # One class more stands for no class (classifier-free guidance).
    embedded = (*_condition(_FREQUENCIES, hidden), Table(classes + 1, hidden, on="sequence"))
    norm = _modulated(hidden)
    blocks = (*embedded, _modulation(hidden, 6), norm, attention, norm, MLP(hidden, 4 * hidden, gated=False, bias=True))
    out = (c.maybe("out_channels") or channels) * patch**2
    last = (norm, Projection(hidden, 2 * hidden, on="sequence"), Projection(hidden, out))
    return Architecture(
        c.kind,
        f"hidden {hidden}, {counted(layers, 'layer')}, {counted(heads, 'head')} of {width}, {patches} patches of {patch} x {patch}",
        hidden,
        (
            Group("embedding", 1, (Projection(channels * patch**2, hidden),), layer=False),
            Group("layer", layers, blocks),
            Group("head", 1, last, layer=False),
        ),
        decodes=False,
        tokens=patches,
        omitted=_OMITTED,
    )


def stable_diffusion_3(configuration: Configuration) -> Architecture:
    """Stable Diffusion 3 (Esser et al. 2024): image and text attend together, with weights of their own; of the last layer the text has
    no result. 3.5 has norms of queries and keys, and 3.5 medium a second attention over the image alone in `dual_attention_layers`.
    """
    c = configuration
    heads, width, layers = c.integer("num_attention_heads"), c.integer("attention_head_dim"), c.layers("num_layers")
    channels, patch, size = (c.integer(name) for name in ("in_channels", "patch_size", "sample_size"))
    hidden, patches = heads * width, (size // patch) ** 2
    normed, dual = bool(c.word("qk_norm", "")), c.several("dual_attention_layers")
    image, text = _modulated(hidden), _modulated(hidden, "source")

    def layer(number: int) -> tuple[Block, ...]:
        last, twice = number == layers - 1, number in dual
        joint = JointAttention(hidden, heads, width, normed, last)
        blocks: list[Block] = [
            _modulation(hidden, 9 if twice else 6),
            _modulation(hidden, 2 if last else 6),
            image,
            text,
            joint,
        ]
        if twice:
            blocks.append(
                Attention(
                    hidden,
                    heads,
                    heads,
                    width,
                    True,
                    True,
                    causal=False,
                    rotary=False,
                    qk_norm="head" if normed else "",
                )
            )
        blocks += [image, MLP(hidden, 4 * hidden, gated=False, bias=True)]
        if not last:
            blocks += [text, MLP(hidden, 4 * hidden, gated=False, bias=True, on="source")]
        return tuple(blocks)

    into = (
        Projection(channels * patch**2, hidden),
        Projection(c.integer("joint_attention_dim"), hidden, on="source"),
        *_condition(_FREQUENCIES, hidden),
        *_condition(c.integer("pooled_projection_dim"), hidden),
    )
    out = (c.maybe("out_channels") or channels) * patch**2
    return Architecture(
        c.kind,
        f"hidden {hidden}, {counted(layers, 'layer')}, {counted(heads, 'head')} of {width}, {patches} patches of {patch} x {patch} and the text",
        hidden,
        (
            Group("embedding", 1, into, layer=False),
            *groups(layer(n) for n in range(layers)),
            Group(
                "head", 1, (image, Projection(hidden, 2 * hidden, on="sequence"), Projection(hidden, out)), layer=False
            ),
        ),
        decodes=False,
        tokens=patches,
        source=333,  # 77 tokens of CLIP and 256 of T5 (pipeline_stable_diffusion_3.py)
        omitted=_OMITTED,
    )


def flux(configuration: Configuration) -> Architecture:
    """Flux (Black Forest Labs 2024), as diffusers builds it: layers like those of Stable Diffusion 3, then layers over image and text in
    one sequence with one set of weights, attention and MLP beside each other.
    """
    c = configuration
    heads, width, double = (c.integer(name) for name in ("num_attention_heads", "attention_head_dim", "num_layers"))
    single, channels = c.integer("num_single_layers"), c.integer("in_channels")
    hidden = heads * width
    image, text, both = _modulated(hidden), _modulated(hidden, "source"), _modulated(hidden, "both")
    joint = (
        *(
            _modulation(hidden, 6),
            _modulation(hidden, 6),
            image,
            text,
            JointAttention(hidden, heads, width, qk_norm=True),
        ),
        *(image, MLP(hidden, 4 * hidden, gated=False, bias=True)),
        *(text, MLP(hidden, 4 * hidden, gated=False, bias=True, on="source")),
    )
    alone = (
        *(_modulation(hidden, 3), both),
        Attention(hidden, heads, heads, width, qkv_bias=True, causal=False, qk_norm="head", joins=False, on="both"),
        MLP(hidden, 4 * hidden, gated=False, bias=True, on="both"),
    )
    guided = _condition(_FREQUENCIES, hidden) if c.flag("guidance_embeds", False) else ()
    into = (
        Projection(channels, hidden),
        Projection(c.integer("joint_attention_dim"), hidden, on="source"),
        *_condition(_FREQUENCIES, hidden),
        *guided,
        *_condition(c.integer("pooled_projection_dim"), hidden),
    )
    out = c.maybe("out_channels") or channels
    return Architecture(
        c.kind,
        f"hidden {hidden}, {counted(double, 'layer')} of two streams and {single} of one, {counted(heads, 'head')} of {width}",
        hidden,
        (
            Group("embedding", 1, into, layer=False),
            Group("layer of two streams", double, joint),
            Group("layer of one stream", single, alone),
            Group(
                "head", 1, (image, Projection(hidden, 2 * hidden, on="sequence"), Projection(hidden, out)), layer=False
            ),
        ),
        decodes=False,
        tokens=4096,  # an image of 1024 x 1024: latents of 128 x 128, packed 2 x 2 (pipeline_flux.py)
        source=512,
        omitted=_OMITTED,
    )


READERS: dict[str, Callable[[Configuration], Architecture]] = {
    "DiTTransformer2DModel": dit, "SD3Transformer2DModel": stable_diffusion_3, "FluxTransformer2DModel": flux,
}  # fmt: skip
