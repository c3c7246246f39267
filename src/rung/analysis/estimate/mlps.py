"""The MLP of a layer, and the experts that may stand in its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rung.analysis.costs.call import Cost
from rung.analysis.estimate.block import Block, Linear, On, Part, Step, Work, divided, elementwise


@dataclass(frozen=True)
class MLP(Block):
    """Up, activation, down, and the residual addition after it. gated: a third product, whose activation multiplies the second
    (SwiGLU and its kin, Shazeer 2020).
    """

    hidden: int
    ffn: int
    gated: bool = True
    bias: bool = False
    joins: bool = True
    on: On = "tokens"
    part: Part = "mlp"

    @property
    def _up(self) -> Linear:
        return Linear(self.hidden, self.ffn, self.bias)

    @property
    def _down(self) -> Linear:
        return Linear(self.ffn, self.hidden, self.bias)

    @property
    def parameters(self) -> int:
        return (2 if self.gated else 1) * self._up.parameters + self._down.parameters

    def work(self, step: Step) -> Iterator[Work]:
        rows = step.rows(self.on)
        for linear, times in ((self._up, 2 if self.gated else 1), (self._down, 1)):
            for cost in linear.costs(rows, step):
                yield Work(self.part, cost, times)
        yield from elementwise(
            rows * ((5 if self.gated else 2) * self.ffn + (3 * self.hidden if self.joins else 0)), step
        )

    def saved(self, step: Step) -> int:
        """Its input, and what the activation, the gate's product and the last projection need."""
        return step.rows(self.on) * step.item * (self.hidden + (4 if self.gated else 2) * self.ffn)

    def entering(self, step: Step) -> int:
        return step.rows(self.on) * step.item * self.hidden

    def live(self, step: Step) -> int:
        return step.rows(self.on) * step.item * (2 * self.hidden + 3 * self.ffn)

    def shard(self, ranks: int) -> MLP:
        return replace(self, ffn=divided(self.ffn, ranks, "columns of the MLP"))

    def reduced(self, step: Step) -> int:
        return step.rows(self.on) * self.hidden if self.joins else 0


@dataclass(frozen=True)
class Experts(Block):
    """A router, and `experts` MLPs of which each token uses top_k (Switch Transformers, Fedus et al. 2021; Mixtral, Jiang et al. 2024);
    beside them one for all tokens of width `shared` (DeepSeekMoE, Dai et al. 2024), 0 for none. shared_gate: a product to one number
    weighs its result.

    Which experts a step uses is not known: routing is taken to be random and even, so that of E experts rows tokens use
    E (1 - (1 - top_k / E)^rows), and their weights are read.
    """

    hidden: int
    ffn: int
    experts: int
    top_k: int
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    shared: int = 0
    shared_gate: bool = False

    @property
    def _router(self) -> Linear:
        return Linear(self.hidden, self.experts, self.router_bias)

    @property
    def _one(self) -> MLP:
        return MLP(self.hidden, self.ffn, self.gated, self.bias)

    @property
    def _shared(self) -> MLP | None:
        return (
            MLP(self.hidden, self.shared, self.gated, part="router and experts", joins=False) if self.shared else None
        )

    def _with(self, experts: int) -> int:
        shared = self._shared.parameters if self._shared else 0
        gate = self.hidden if self.shared_gate else 0
        return self._router.parameters + shared + gate + experts * self._one.parameters

    @property
    def parameters(self) -> int:
        return self._with(self.experts)

    @property
    def active(self) -> int:
        return self._with(self.top_k)

    def used(self, rows: int) -> int:
        """Experts that so many tokens are expected to use."""
        if not rows:
            return 0
        expected = self.experts * (1 - (1 - self.top_k / self.experts) ** rows)
        return min(max(round(expected), self.top_k), self.experts)

    def work(self, step: Step) -> Iterator[Work]:
        rows = step.rows("tokens")
        small = (self._router, *((Linear(self.hidden, 1),) if self.shared_gate else ()))
        for linear in small:
            for cost in linear.costs(rows, step):
                yield Work("router and experts", cost)
        for inner, out, times in ((self.hidden, self.ffn, 2 if self.gated else 1), (self.ffn, self.hidden, 1)):
            for cost in self._grouped(inner, out, rows, step):
                yield Work("router and experts", cost, times)
        if self._shared:
            yield from self._shared.work(step)
        chosen = rows * self.top_k
        activation = chosen * (5 if self.gated else 2) * self.ffn
        # Tokens are gathered by expert, and their results weighed and summed.
        yield from elementwise(activation + (2 + 1) * chosen * self.hidden + rows * (1 + 3) * self.hidden, step)

    def _grouped(self, inner: int, out: int, rows: int, step: Step) -> Iterator[Cost]:
        """One product of the experts with their tokens; in training, its two gradients."""
        chosen = rows * self.top_k
        if not chosen:
            return
        flops, weights = 2 * chosen * inner * out, self.used(rows) * inner * out * step.weight
        into = step.weight  # products in fp8 take fp8
        yield Cost(flops, weights + chosen * (inner * into + out * step.item), step.dtype, matrix=True)
        if step.train:
            yield Cost(flops, weights + chosen * (inner + out) * step.item, step.dtype, matrix=True)
            yield Cost(flops, weights + chosen * (inner + out) * step.item, step.dtype, matrix=True)

    def saved(self, step: Step) -> int:
        rows = step.rows("tokens")
        each = self.hidden + (4 if self.gated else 2) * self.ffn
        own = rows * step.item * (self.hidden + self.top_k * (each + self.hidden)) + rows * 4 * self.experts
        return own + (self._shared.saved(step) if self._shared else 0)

    def entering(self, step: Step) -> int:
        return step.rows("tokens") * step.item * self.hidden

    def live(self, step: Step) -> int:
        return step.rows("tokens") * step.item * (2 * self.hidden + self.top_k * (2 * self.hidden + 3 * self.ffn))

    def shard(self, ranks: int) -> Experts:
        shared = divided(self.shared, ranks, "columns of the shared expert")
        return replace(self, ffn=divided(self.ffn, ranks, "columns of an expert"), shared=shared)

    def reduced(self, step: Step) -> int:
        return step.rows("tokens") * self.hidden
