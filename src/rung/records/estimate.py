"""What `rung estimate --json` prints: one step of a model on one GPU, without a measurement."""

from __future__ import annotations

from rung.records.record import SCHEMA, Part


class Parted(Part, kw_only=True):
    """A part of a step on one GPU, over all layers. intensity: FLOP a byte; floor_ns, bound, measured_floor_ns: null without a GPU."""

    name: str
    flops: int
    bytes: int
    intensity: float
    floor_ns: int | None
    bound: str | None
    measured_floor_ns: int | None


class Communication(Part, kw_only=True):
    """Bytes that each GPU sends in a step. tensor_per_layer: of a layer's all-reduces in tensor parallelism; data: of gradients and
    gathered weights in data parallelism. Rings: an all-reduce of S bytes among N sends 2 S (N - 1) / N (nccl-tests, PERFORMANCE.md), a
    gather or a scatter half of it. Not in the time: no data sheet's link is known here."""

    tensor_per_layer: int
    tensor: int
    data: int


class Training(Part, kw_only=True, tag_field="kind", tag="training"):
    """Bytes on one GPU. gathered: of weights (and, at their turn, gradients) that are divided, the largest layer's in whole; buckets: DDP's
    copy of the gradients. activations: what backward needs, all of it kept; recomputed: only the input of every layer kept, and one layer
    at a time computed again. states: all but activations; total: with activations, total_recomputed: with recomputed."""

    sharding: str
    data_parallel: int
    weights: int
    gradients: int
    optimizer: int
    gathered: int
    buckets: int
    activations: int
    recomputed: int
    total: int
    states: int
    total_recomputed: int


class Serving(Part, kw_only=True, tag_field="kind", tag="serving"):
    """Bytes on one GPU. cache: of all sequences, in whole pages; activations: of the widest block of one forward pass; max_batch: sequences
    of this length that fit into the share of the memory that a server takes, beside weights and activations; null where no GPU is named, or
    where the model has no cache."""

    weights: int
    cache: int
    activations: int
    page_tokens: int
    pages_per_sequence: int
    max_batch: int | None
    total: int


class Estimate(Part, kw_only=True, tag_field="kind", tag="estimate"):
    """What a step costs on one GPU. parameters, active: of the whole model; gpu_parameters: of one rank of tensor parallelism; tokens: that
    a data-parallel rank computes. cache_per_token, cache_per_sequence: bytes over all layers, on one GPU; a token beyond a window costs
    less. intensity: FLOP a byte. gpu, and peaks (whose figures of it these are, and how far they were checked): null where no GPU is named.
    tokens_per_s: of one data-parallel rank, at the roof, communication left out; fits: whether the memory is enough."""

    schema: int = SCHEMA
    mode: str
    dtype: str
    name: str
    says: str
    omitted: tuple[str, ...]
    batch: int
    seq: int
    source: int
    tensor_parallel: int
    data_parallel: int
    parameters: int
    active: int
    gpu_parameters: int
    tokens: int
    flops: int
    bytes: int
    cache_per_token: int
    cache_per_sequence: int
    communication: Communication
    memory: Training | Serving
    floor_ns: int | None
    measured_floor_ns: int | None
    bound: str | None
    parts: tuple[Parted, ...]
    intensity: float
    gpu: str | None
    peaks: dict[str, str] | None
    gpu_memory: float | None
    tokens_per_s: float | None
    fits: bool | None
