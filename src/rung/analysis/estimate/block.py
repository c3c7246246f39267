"""A block of a model: its parameters, and what a step costs in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rung.analysis.costs.call import ITEM, Cost, Tensor
from rung.analysis.costs.gemm import product
from rung.errors import UsageError

# The rows that a block works on: the tokens of the sequence itself; those of the source (what an encoder reads, or the text of a
# diffusion transformer); both in one sequence; or one row a sequence (a pooled token, the time step of a diffusion).
On = Literal["tokens", "source", "both", "sequence"]
Part = Literal[
    "embedding and head", "projections", "attention", "mlp", "router and experts", "norms and elementwise", "optimizer"
]
PARTS: tuple[Part, ...] = (
    "embedding and head", "projections", "attention", "mlp", "router and experts", "norms and elementwise", "optimizer",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """How a model is run once: `batch` sequences, of each `queries` tokens computed, which see `keys` tokens, themselves among them.

    source: tokens of the source a sequence. cached: keys and values of the other tokens and of the source lie in a cache, and
    the source is not computed again. dtype: of DTYPES; in fp8 products take fp8, what lies between them is bf16.
    """

    batch: int
    queries: int
    keys: int
    source: int = 0
    dtype: str = "bf16"
    train: bool = False
    cached: bool = False

    def lengths(self, on: On) -> tuple[int, int]:
        """Tokens of a sequence that are computed, and those that they can see."""
        if on == "sequence":
            return 1, 1
        if on == "tokens":
            return self.queries, self.keys
        if self.cached:
            return 0, self.source
        length = self.source + (self.queries if on == "both" else 0)
        return length, length

    def rows(self, on: On) -> int:
        return self.batch * self.lengths(on)[0]

    @property
    def weight(self) -> int:
        """Bytes of a weight."""
        return ITEM[self.storage]

    @property
    def item(self) -> int:
        """Bytes of an element between products."""
        return max(self.weight, 2)

    @property
    def storage(self) -> str:
        return "fp32" if self.dtype == "tf32" else self.dtype

    @property
    def between(self) -> str:
        return "bf16" if self.dtype == "fp8" else self.dtype


class Work(NamedTuple):
    """Work of a part, done so many times."""

    part: Part
    cost: Cost
    times: int = 1


@dataclass(frozen=True)
class Block(ABC):
    """A kind of block. What it is not asked to override, it does not have."""

    @property
    @abstractmethod
    def parameters(self) -> int:
        """How many there are."""

    @property
    def active(self) -> int:
        """The parameters that one token uses."""
        return self.parameters

    def work(self, step: Step) -> Iterator[Work]:
        yield from ()

    def saved(self, step: Step) -> int:
        """Bytes that the forward pass keeps for backward, without recomputation."""
        return 0

    def entering(self, step: Step) -> int:
        """Bytes of the residual stream that enter a layer through it: what recomputation keeps. A layer has one such block a stream, its MLP
        or experts."""
        return 0

    def live(self, step: Step) -> int:
        """Bytes of its inputs, outputs and what lies between them, while it runs."""
        return 0

    def cache(self, tokens: int, source: int) -> int:
        """Elements that a cache of so many tokens of one sequence has for it."""
        return 0

    def shard(self, ranks: int) -> Block:
        """What one of so many ranks has of it in tensor parallelism as in Megatron-LM (Shoeybi et al. 2019, section 3): the first
        products divided by columns, the last by rows, norms and small products whole. Raises UsageError where they do not divide it.
        """
        return self

    def reduced(self, step: Step) -> int:
        """Elements that the ranks have to sum after it, in the forward pass."""
        return 0


@dataclass(frozen=True)
class Linear:
    """x [rows, inner] by a weight [out, inner], and a bias [out]."""

    inner: int
    out: int
    bias: bool = False

    @property
    def parameters(self) -> int:
        return self.inner * self.out + (self.out if self.bias else 0)

    def costs(self, rows: int, step: Step) -> Iterator[Cost]:
        """2 rows x inner x out operations; in training, as many for each of its two gradients. Biases are not counted."""
        if not rows:
            return
        kind = step.storage
        x, weight, y = (_matrix(a, b, kind) for a, b in ((rows, self.inner), (self.inner, self.out), (rows, self.out)))
        yield product(x, weight, rows * self.out, self.inner, dtype=step.between if kind == "fp8" else kind)
        if step.train:
            yield product(y, weight, rows * self.inner, self.out)
            yield product(y, x, self.inner * self.out, rows)


def _matrix(rows: int, columns: int, dtype: str) -> Tensor:
    return Tensor((rows, columns), dtype, rows * columns)


def elementwise(elements: int, step: Step) -> Iterator[Work]:
    """So many elements read and written in the forward pass. Backward moves twice as many."""
    if elements:
        yield Work("norms and elementwise", Cost(0, elements * step.item * (3 if step.train else 1)))


def divided(size: int, ranks: int, what: str) -> int:
    """size / ranks. Raises UsageError where that is no whole number."""
    if size % ranks:
        raise UsageError(f"--tensor-parallel {ranks} does not divide the {size} {what}: choose a divisor of it.")
    return size // ranks
