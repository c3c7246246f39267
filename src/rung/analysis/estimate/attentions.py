"""Attention: over a sequence or a source, grouped, in a window; DeepSeek's latent attention; joint attention of two streams.

Attention itself is fused, as in FlashAttention (Dao et al. 2022): queries, keys and values are read once, the result is written
once, and the scores never reach the memory. Forward are 2 products of queries x keys, backward 5 (analysis/costs/attention.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from rung.analysis.costs.attention import pairs
from rung.analysis.costs.call import Cost
from rung.analysis.estimate.block import Block, Linear, On, Step, Work, divided, elementwise
from rung.errors import UsageError


def seen(queries: int, keys: int, causal: bool, window: int | None) -> int:
    """Pairs of a query and a key that it sees, the last query being the last key's: all up to its own if causal; of them the last
    `window`. Without a causal mask, a window is as many keys around it.
    """
    if not causal:
        return queries * min(keys, window or keys)
    all_of_them = pairs(queries, keys, True, last_key=True)
    return all_of_them - (pairs(queries, keys - window, True, last_key=True) if window and keys > window else 0)


def fused(
    step: Step, visible: int, heads: int, depth: tuple[int, int], read: int, result: int, rows: int
) -> Iterator[Work]:
    """The products of attention and what they move.

    visible: pairs of a query and a key, of all sequences; depth: widths of a head in q k^T and in the product with v; read, result:
    elements of q, k and v, and of the result; rows: queries of all heads, whose log-sum-exp (fp32) training keeps.
    """
    if not visible:
        return
    per_pair = 2 * visible * heads
    log_sum = 4 * rows if step.train else 0
    yield Work(
        "attention", Cost(per_pair * sum(depth), (read + result) * step.item + log_sum, step.between, matrix=True)
    )
    if step.train:
        again = 3 * depth[0] + 2 * depth[1]
        moved = (2 * read + 2 * result) * step.item + log_sum
        yield Work("attention", Cost(per_pair * again, moved, step.between, matrix=True))


@dataclass(frozen=True)
class Attention(Block):
    """Projections of queries, keys and values, attention, and the projection of its result; the residual addition after it.

    hidden: width of the input; kv_heads: fewer of them are shared by groups of queries (grouped-query attention, Ainslie et al.
    2023). window: tokens that a query sees, itself among them (sliding window, Mistral 7B, Jiang et al. 2023, section 2).
    cross: keys and values come from the source, whose width is source_width. k_bias: None is as qkv_bias. qk_norm: a gain for
    queries and one for keys, of a head's width, or of all heads'. sinks: a learned score for each head. joins: its result is added to
    the residual stream by itself, not together with that of an MLP beside it.
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    k_bias: bool | None = None
    causal: bool = True
    window: int | None = None
    cross: bool = False
    source_width: int | None = None
    rotary: bool = True
    qk_norm: Literal["", "head", "all"] = ""
    sinks: bool = False
    joins: bool = True
    on: On = "tokens"

    @property
    def _q(self) -> Linear:
        return Linear(self.hidden, self.heads * self.head_dim, self.qkv_bias)

    @property
    def _kv(self) -> Linear:
        return Linear(self.source_width or self.hidden, 2 * self.kv_heads * self.head_dim, self.qkv_bias)

    @property
    def _qkv(self) -> Linear:
        return Linear(self.hidden, (self.heads + 2 * self.kv_heads) * self.head_dim, self.qkv_bias)

    @property
    def _o(self) -> Linear:
        return Linear(self.heads * self.head_dim, self.hidden, self.out_bias)

    @property
    def parameters(self) -> int:
        norms = {"": 0, "head": 2 * self.head_dim, "all": (self.heads + self.kv_heads) * self.head_dim}[self.qk_norm]
        no_k_bias = self.qkv_bias and self.k_bias is False
        return (
            self._q.parameters
            + self._kv.parameters
            - (self.kv_heads * self.head_dim if no_k_bias else 0)
            + self._o.parameters
            + norms
            + (self.heads if self.sinks else 0)
        )

    def _lengths(self, step: Step) -> tuple[int, int]:
        queries, keys = step.lengths(self.on)
        return queries, step.source if self.cross else keys

    def work(self, step: Step) -> Iterator[Work]:
        rows = step.rows(self.on)
        if not rows:
            return
        queries, keys = self._lengths(step)
        inputs = [(self._q, rows), (self._kv, step.rows("source"))] if self.cross else [(self._qkv, rows)]
        for linear, count in (*inputs, (self._o, rows)):
            for cost in linear.costs(count, step):
                yield Work("projections", cost)
        wide = rows * self.heads * self.head_dim
        read_keys = min(keys, self.window + queries - 1) if self.window else keys
        kv = 2 * step.batch * read_keys * self.kv_heads * self.head_dim
        visible = step.batch * seen(queries, keys, self.causal and not self.cross, self.window)
        yield from fused(step, visible, self.heads, (self.head_dim, self.head_dim), wide + kv, wide, rows * self.heads)
        turned = 2 * (self.heads + self.kv_heads) * self.head_dim
        normed = turned if self.qk_norm else 0
        added = 3 * self.hidden if self.joins else 0
        yield from elementwise(rows * (added + normed + (turned if self.rotary else 0)), step)

    def saved(self, step: Step) -> int:
        """Its input, queries, keys, values and the attention's result."""
        rows, others = step.rows(self.on), step.rows("source") if self.cross else step.rows(self.on)
        width = self.head_dim
        return step.item * (rows * (self.hidden + 2 * self.heads * width) + others * 2 * self.kv_heads * width)

    def live(self, step: Step) -> int:
        wide = (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        return step.rows(self.on) * step.item * (2 * self.hidden + wide)

    def cache(self, tokens: int, source: int) -> int:
        if self.on != "tokens":
            return 0
        length = source if self.cross else min(tokens, self.window or tokens)
        return 2 * length * self.kv_heads * self.head_dim

    def shard(self, ranks: int) -> Attention:
        heads = divided(self.heads, ranks, "heads of attention")
        if self.kv_heads % ranks and ranks % self.kv_heads:
            raise UsageError(
                f"--tensor-parallel {ranks} and {self.kv_heads} heads of keys and values: one must divide the other."
            )
        return replace(self, heads=heads, kv_heads=max(self.kv_heads // ranks, 1))

    def reduced(self, step: Step) -> int:
        return step.rows(self.on) * self.hidden if self.joins else 0


@dataclass(frozen=True)
class LatentAttention(Block):
    """Multi-head latent attention (DeepSeek-V2, Liu et al. 2024, section 2.1): keys and values of all heads come from one latent
    vector a token of width kv_rank, which is what a cache keeps, beside one rotated key of width rope for all heads.

    q_rank: the width of the queries' latent, None where they are projected at once; nope, rope: the parts of a head of queries and
    keys without and with positions; value: the width of a head of values. bias: of the projections into the latents, and of the last one.

    A sequence is computed with keys and values expanded. With a cache, the expansion is absorbed into queries and results (the
    same section): heads attend to the latents themselves, as if these were one head's keys and values.
    """

    hidden: int
    heads: int
    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int
    bias: bool = False

    @property
    def _queries(self) -> tuple[Linear, ...]:
        width = self.heads * (self.nope + self.rope)
        if self.q_rank is None:
            return (Linear(self.hidden, width),)
        return Linear(self.hidden, self.q_rank, self.bias), Linear(self.q_rank, width)

    @property
    def _down(self) -> Linear:
        return Linear(self.hidden, self.kv_rank + self.rope, self.bias)

    @property
    def _up(self) -> Linear:
        return Linear(self.kv_rank, self.heads * (self.nope + self.value))

    @property
    def _o(self) -> Linear:
        return Linear(self.heads * self.value, self.hidden, self.bias)

    @property
    def parameters(self) -> int:
        linears = (*self._queries, self._down, self._up, self._o)
        return sum(linear.parameters for linear in linears) + (self.q_rank or 0) + self.kv_rank

    def work(self, step: Step) -> Iterator[Work]:
        rows = step.rows("tokens")
        whole = (*self._queries, self._down, *(() if step.cached else (self._up,)), self._o)
        for linear in whole:
            for cost in linear.costs(rows, step):
                yield Work("projections", cost)
        heads, key = self.heads, self.nope + self.rope
        visible = step.batch * seen(step.queries, step.keys, True, None)
        if step.cached:
            yield Work("projections", self._absorbed(rows, step))
            kept = step.batch * step.keys * (self.kv_rank + self.rope)
            queries, result = rows * heads * (self.kv_rank + self.rope), rows * heads * self.kv_rank
            yield from fused(step, visible, heads, (self.kv_rank + self.rope, self.kv_rank), queries + kept, result, 0)
        else:
            expanded = step.batch * step.keys * heads * (key + self.value)
            yield from fused(
                step, visible, heads, (key, self.value), rows * heads * key + expanded, rows * heads * self.value, rows * heads
            )  # fmt: skip
        latents = 2 * ((self.q_rank or 0) + self.kv_rank)
        turned = 2 * (heads + 1) * self.rope
        yield from elementwise(rows * (3 * self.hidden + latents + turned), step)

    def _absorbed(self, rows: int, step: Step) -> Cost:
        """Queries into the latents' space and results out of it, a product a head each: the weights of `_up`, read once."""
        flops = 2 * rows * self._up.inner * self._up.out
        moved = rows * self.heads * (self.nope + 2 * self.kv_rank + self.value)
        return Cost(flops, self._up.parameters * step.weight + moved * step.item, step.dtype, matrix=True)

    def saved(self, step: Step) -> int:
        key = self.nope + self.rope
        width = self.hidden + 2 * (self.q_rank or 0) + 2 * self.kv_rank + self.heads * (2 * key + 2 * self.value)
        return step.rows("tokens") * step.item * width

    def live(self, step: Step) -> int:
        width = 2 * self.hidden + self.heads * (2 * (self.nope + self.rope) + 2 * self.value)
        return step.rows("tokens") * step.item * width

    def cache(self, tokens: int, source: int) -> int:
        return tokens * (self.kv_rank + self.rope)

    def shard(self, ranks: int) -> LatentAttention:
        return replace(self, heads=divided(self.heads, ranks, "heads of attention"))

    def reduced(self, step: Step) -> int:
        return step.rows("tokens") * self.hidden


@dataclass(frozen=True)
class JointAttention(Block):
    """Attention over image and text in one sequence, each with projections of its own (MM-DiT: Stable Diffusion 3, Esser et al.
    2024, section 4). last: the text's result is not used any more, so it has no projection. Projections have biases.
    """

    hidden: int
    heads: int
    head_dim: int
    qk_norm: bool = False
    last: bool = False

    @property
    def _in(self) -> Linear:
        return Linear(self.hidden, 3 * self.heads * self.head_dim, bias=True)

    @property
    def _out(self) -> Linear:
        return Linear(self.heads * self.head_dim, self.hidden, bias=True)

    @property
    def parameters(self) -> int:
        norms = 4 * self.head_dim if self.qk_norm else 0
        return 2 * self._in.parameters + (1 if self.last else 2) * self._out.parameters + norms

    def work(self, step: Step) -> Iterator[Work]:
        tokens, text = step.rows("tokens"), step.rows("source")
        for linear, count in (
            (self._in, tokens),
            (self._in, text),
            (self._out, tokens),
            (self._out, 0 if self.last else text),
        ):
            for cost in linear.costs(count, step):
                yield Work("projections", cost)
        rows, (length, _) = step.rows("both"), step.lengths("both")
        wide = rows * self.heads * self.head_dim
        depth = (self.head_dim, self.head_dim)
        yield from fused(step, step.batch * length * length, self.heads, depth, 3 * wide, wide, rows * self.heads)
        yield from elementwise(rows * 3 * self.hidden + (4 * wide if self.qk_norm else 0), step)

    def saved(self, step: Step) -> int:
        return step.rows("both") * step.item * (self.hidden + 4 * self.heads * self.head_dim)

    def live(self, step: Step) -> int:
        return step.rows("both") * step.item * (2 * self.hidden + 4 * self.heads * self.head_dim)

    def shard(self, ranks: int) -> JointAttention:
        return replace(self, heads=divided(self.heads, ranks, "heads of attention"))

    def reduced(self, step: Step) -> int:
        return step.rows("tokens" if self.last else "both") * self.hidden
