"""A model as groups of equal layers, and the decoder of the Llama kind that a few numbers describe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rung.analysis.estimate.attentions import Attention
from rung.analysis.estimate.block import Block, Step, Work
from rung.analysis.estimate.ends import Head, Norm, Table
from rung.analysis.estimate.mlps import MLP
from rung.errors import UsageError


@dataclass(frozen=True)
class Group:
    """`count` layers of the same blocks. layer: whether it is one of the layers that recomputation and sharding go by."""

    name: str
    count: int
    blocks: tuple[Block, ...]
    layer: bool = True

    @property
    def parameters(self) -> int:
        return self.count * sum(block.parameters for block in self.blocks)

    @property
    def active(self) -> int:
        return self.count * sum(block.active for block in self.blocks)


@dataclass(frozen=True)
class Architecture:
    """name: as the configuration has it. says: its sizes in a few words.

    decodes: whether it makes one token after the other from a cache. tokens, source: lengths that it has by itself (the patches of an
    image, the frames of Whisper), None where they are free; a source of 0 is none. hidden: width of the residual stream.
    omitted: what the configuration describes and is not counted.
    """

    name: str
    says: str
    hidden: int
    groups: tuple[Group, ...]
    decodes: bool = True
    tokens: int | None = None
    source: int | None = 0
    omitted: tuple[str, ...] = ()

    @property
    def parameters(self) -> int:
        return sum(group.parameters for group in self.groups)

    @property
    def active(self) -> int:
        """Parameters that one token uses: of experts, those that it is routed to."""
        return sum(group.active for group in self.groups)

    @property
    def layers(self) -> int:
        return sum(group.count for group in self.groups if group.layer)

    @property
    def blocks(self) -> Iterator[tuple[int, Block]]:
        """Every kind of block with how often it is there."""
        for group in self.groups:
            for block in group.blocks:
                yield group.count, block

    def work(self, step: Step) -> Iterator[Work]:
        for count, block in self.blocks:
            for work in block.work(step):
                yield work._replace(times=work.times * count)

    def cache(self, tokens: int, source: int) -> int:
        """Elements of keys and values (or latents) of one sequence of so many tokens, over all layers."""
        return sum(count * block.cache(tokens, source) for count, block in self.blocks) if self.decodes else 0

    def shard(self, ranks: int) -> Architecture:
        """What one of so many ranks of tensor parallelism has; itself for one rank."""
        if ranks == 1:
            return self
        groups = (replace(g, blocks=tuple(block.shard(ranks) for block in g.blocks)) for g in self.groups)
        return replace(self, groups=tuple(groups))


_MOST = 2**31


def counted(number: int, noun: str) -> str:
    """`1 layer`, `2 layers`"""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def decoder(
    *,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    ffn: int | None = None,
    vocab: int = 32000,
    gated: bool = True,
    tied: bool = False,
    causal: bool = True,
) -> Architecture:
    """A decoder of the Llama kind: no biases, norms with a gain, rotary positions, an embedding and an output head.

    What is left out is derived: as many heads of keys as of queries, hidden / heads, and an MLP of 8/3 of hidden to the next multiple
    of 256 (Llama's rule), or 4 x hidden where it is not gated. Raises UsageError for numbers that are none of a model.
    """
    given = {"hidden": hidden, "layers": layers, "heads": heads, "kv-heads": kv_heads, "head-dim": head_dim, "ffn": ffn}
    for name, value in (given | {"vocab": vocab}).items():
        if value is not None and not 0 < value < _MOST:
            raise UsageError(f"--{name} must be a number from 1 to 2^31, not {value}.")
    if head_dim is None:
        if hidden % heads:
            raise UsageError(f"--hidden {hidden} is not a multiple of --heads {heads}: give --head-dim.")
        head_dim = hidden // heads
    kv_heads = kv_heads or heads
    if heads % kv_heads:
        raise UsageError(f"--heads {heads} must be a multiple of --kv-heads {kv_heads}.")
    ffn = ffn or (-(-8 * hidden // (3 * 256)) * 256 if gated else 4 * hidden)
    attention = Attention(hidden, heads, kv_heads, head_dim, causal=causal)
    norm = Norm(hidden)
    shared = f" ({kv_heads} of keys and values)" if kv_heads != heads else ""
    says = (
        f"hidden {hidden}, {counted(layers, 'layer')}, {counted(heads, 'head')} of {head_dim}{shared}, MLP {ffn}{' gated' if gated else ''}, "
        f"vocabulary {vocab}{' (tied)' if tied else ''}, {'causal' if causal else 'full'}"
    )
    return Architecture(
        "decoder",
        says,
        hidden,
        (
            Group("embedding", 1, (Table(vocab, hidden),), layer=False),
            Group("layer", layers, (norm, attention, norm, MLP(hidden, ffn, gated))),
            Group("head", 1, (norm, Head(hidden, vocab, tied)), layer=False),
        ),
    )
