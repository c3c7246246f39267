"""What stands before, between and after attention and MLP: norms, tables of embeddings, single projections, the output head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rung.analysis.costs.call import Cost
from rung.analysis.estimate.block import Block, Linear, On, Part, Step, Work, elementwise


@dataclass(frozen=True)
class Norm(Block):
    """gains: parameters an element, 0 to 2 (none, a gain, a gain and a bias). modulated: its result is scaled and shifted, and that of
    the block after it scaled, by a condition (adaLN, Peebles and Xie 2022, section 3.2).
    """

    width: int
    gains: int = 1
    modulated: bool = False
    on: On = "tokens"

    @property
    def parameters(self) -> int:
        return self.gains * self.width

    def work(self, step: Step) -> Iterator[Work]:
        yield from elementwise(step.rows(self.on) * self.width * (8 if self.modulated else 2), step)

    def saved(self, step: Step) -> int:
        return step.rows(self.on) * self.width * step.item * (2 if self.modulated else 1)


@dataclass(frozen=True)
class Table(Block):
    """A table of embeddings [entries, width], of which each row takes one."""

    entries: int
    width: int
    on: On = "tokens"

    @property
    def parameters(self) -> int:
        return self.entries * self.width

    def work(self, step: Step) -> Iterator[Work]:
        rows = step.rows(self.on)
        if rows:
            moved = 2 * rows * self.width * step.item * (2 if step.train else 1)
            yield Work("embedding and head", Cost(0, moved))

    def shard(self, ranks: int) -> Table:
        """By rows, to a whole number of them, as Megatron-LM pads vocabularies."""
        return replace(self, entries=-(-self.entries // ranks))

    def reduced(self, step: Step) -> int:
        return step.rows(self.on) * self.width


@dataclass(frozen=True)
class Added(Block):
    """A learned tensor of `elements` that is added to a batch, or put before each sequence: positions, a class token."""

    elements: int
    on: On = "tokens"

    @property
    def parameters(self) -> int:
        return self.elements


@dataclass(frozen=True)
class Projection(Block):
    """One product that is no part of attention or an MLP: a patch embedding or a convolution (inner: channels x kernel), a time step's
    embedding, a modulation, a pooler. repeated: rows for each row of `on`, as in a convolution before one of stride 2.
    """

    inner: int
    out: int
    bias: bool = True
    on: On = "tokens"
    part: Part = "embedding and head"
    repeated: int = 1

    @property
    def _linear(self) -> Linear:
        return Linear(self.inner, self.out, self.bias)

    @property
    def parameters(self) -> int:
        return self._linear.parameters

    def work(self, step: Step) -> Iterator[Work]:
        for cost in self._linear.costs(step.rows(self.on) * self.repeated, step):
            yield Work(self.part, cost)

    def saved(self, step: Step) -> int:
        return step.rows(self.on) * self.repeated * self.inner * step.item

    def live(self, step: Step) -> int:
        return step.rows(self.on) * self.repeated * (self.inner + self.out) * step.item


@dataclass(frozen=True)
class Head(Block):
    """The projection to the vocabulary. tied: its weight is the embedding's."""

    hidden: int
    vocab: int
    tied: bool = False
    bias: bool = False

    @property
    def _linear(self) -> Linear:
        return Linear(self.hidden, self.vocab, self.bias)

    @property
    def parameters(self) -> int:
        return (0 if self.tied else self.hidden * self.vocab) + (self.vocab if self.bias else 0)

    def work(self, step: Step) -> Iterator[Work]:
        for cost in self._linear.costs(step.rows("tokens"), step):
            yield Work("embedding and head", cost)

    def saved(self, step: Step) -> int:
        """Its input, the logits, and their softmax in fp32."""
        return step.rows("tokens") * (self.hidden * step.item + self.vocab * (step.item + 4))

    def live(self, step: Step) -> int:
        return step.rows("tokens") * self.vocab * step.item

    def shard(self, ranks: int) -> Head:
        return replace(self, vocab=-(-self.vocab // ranks))
