"""What is climbed: the workload, and what decides which rungs apply to it."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from rung.records.record import Part, Scalar


class Workload(Part, kw_only=True):
    """What was climbed. own_forward: it says itself how the model is called; output: a training step hands out what forward returns.
    max_grad_norm: to which gradients are clipped; samples, tokens: of a step; flops: of its matrix products, null where they were not counted."""

    name: str
    mode: str
    own_forward: bool = False
    output: bool = True
    max_grad_norm: float | None = None
    samples: int | None = None
    tokens: int | None = None
    model: str = ""
    structure: str = ""
    parameters: int | None = None
    options: dict[str, str] | None = None
    flops: float | None = None


class Recompilation(Part, kw_only=True):
    """What is compiled anew for a second batch of the same shape. where: a place in the user's source; why: the guard that failed."""

    where: str
    why: str


class Break(Part, kw_only=True):
    """A place of the user's source at which Dynamo ends a graph. count: how often; hint: what to do."""

    where: str
    line: str
    why: str
    hint: str
    count: int


class Batch(Part, kw_only=True):
    """The inputs of a step: their shapes in words, and how many elements they have together."""

    shape: str = ""
    elements: int


Sizes = tuple[int, int, int, bool]  # of a product: M, N, K, and whether there is a bias


class LookedUp(Part, kw_only=True, array_like=True):
    """Linear layers of one shape. said: the library of its tuned product, or why there is none; layers: how many have it as captured, and
    as rewritten."""

    sizes: Sizes
    said: str
    layers: tuple[int, int] = (1, 1)


class TunedProducts(Part, kw_only=True):
    """What the tables of aiter have for a step (`rung.hardware.aiter`). missing: why aiter is of no use here, and then nothing else is known;
    chip: in words; tables, tuner: files; tuned, left: shapes with a tuned product, and without; untuned: those that the tuner can be given;
    command: that tunes them."""

    missing: str
    chip: str | UnsetType = UNSET
    tables: list[str] | UnsetType = UNSET
    tuner: str | UnsetType = UNSET
    tuned: list[LookedUp] | UnsetType = UNSET
    left: list[LookedUp] | UnsetType = UNSET
    untuned: list[Sizes] | UnsetType = UNSET
    command: str | UnsetType = UNSET


class Facts(Part, kw_only=True):
    """What decides which rungs apply (`rung.ladder.survey`). Before `surveyed`, of the graph nothing is known; another version may not
    have had a field.

    rates: matrix FLOP/s by precision; bandwidth: bytes/s; flops: FLOP of a step, None where torch cannot count them; amp, dtype: torch's names, dtype of the weights, or of the inputs where there are none; dropout: whether a step draws it; draws: whether its forward draws other random numbers; hooked, optimizer_not_fused,
    optimizer_not_captured, one_shape: why, empty where not; same_size_shapes: named ones with as many elements as the measured one; called: elements that the model is called with; shapes: the measured one first; weights_read: elements by bytes of an element;
    stepped_bytes: that the optimizer moves; inductor, variables: settings in effect; captured, rewritten: counts of operators in the
    graph; written_out: FLOP and scores of attention written by hand; aiter: what its tables have. ranks: of the job that is climbed, 1 for one
    process; parallel: how they train together.
    """

    gpu: bool
    vendor: str | UnsetType = UNSET
    torch: str | UnsetType = UNSET
    arch: str | UnsetType = UNSET
    mode: str
    tokens: int | UnsetType | None = UNSET
    flops: float | UnsetType | None = UNSET
    named_shapes: int | UnsetType = UNSET
    same_size_shapes: int | UnsetType = UNSET
    blocks: int | UnsetType = UNSET
    kinds_of_blocks: int | UnsetType = UNSET
    contiguous_convolutions: int | UnsetType = UNSET
    cudnn_benchmark: bool | UnsetType = UNSET
    amp: str | UnsetType | None = UNSET
    dtype: str | UnsetType = UNSET
    matmul_precision: str | UnsetType = UNSET
    optimizer: str | UnsetType | None = UNSET
    optimizer_is_fused: bool | UnsetType = UNSET
    optimizer_not_fused: str | UnsetType = UNSET
    optimizer_not_captured: str | UnsetType = UNSET
    rates: dict[str, float]
    bandwidth: float | UnsetType | None = UNSET
    dropout: bool | UnsetType = UNSET
    draws: bool | UnsetType = UNSET
    hooked: str | UnsetType = UNSET
    shapes: list[Batch] | UnsetType = UNSET
    own_precision: str = "exact"
    weights_read: dict[str, int] | UnsetType = UNSET
    stepped_bytes: int | UnsetType = UNSET
    linears: int | UnsetType = UNSET
    products_widen: bool | UnsetType = UNSET
    attention_choices: dict[str, str] | UnsetType = UNSET
    switches: dict[str, str] | UnsetType = UNSET
    takes_sdpa: bool | UnsetType = UNSET
    generates: bool | UnsetType = UNSET
    inductor: dict[str, Any] | UnsetType = UNSET
    variables: dict[str, Scalar] | UnsetType = UNSET
    matches: dict[str, int] = msgspec.field(default_factory=dict)
    skipped: list[str] = msgspec.field(default_factory=list)
    captured: dict[str, int | float] | UnsetType = UNSET
    rewritten: dict[str, int | float] | UnsetType = UNSET
    written_out: dict[str, int | float] | UnsetType = UNSET
    graphs: int | UnsetType = UNSET
    graph_breaks: list[str] = msgspec.field(default_factory=list)
    breaks: list[Break] | UnsetType = UNSET
    recompilations: list[Recompilation] | UnsetType | None = UNSET
    aiter: TunedProducts | UnsetType = UNSET
    without_gradient: list[str] = msgspec.field(default_factory=list)
    one_shape: str | UnsetType = UNSET
    called: int | UnsetType = UNSET
    surveyed: bool | UnsetType = UNSET
    ranks: int = 1
    parallel: str = "none"
