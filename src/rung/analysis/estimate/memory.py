"""What a model needs of a GPU's memory: to train, divided among data-parallel ranks, and to serve, with a cache in pages."""

from __future__ import annotations

from rung.analysis.estimate.architecture import Architecture
from rung.analysis.estimate.block import Step
from rung.records.estimate import Serving, Training

SHARDINGS = ("ddp", "fsdp", "zero1", "zero2", "zero3")
PAGE = 16  # tokens of a page of the cache: vLLM's default (--block-size)
SHARE = 0.9  # of the GPU's memory that a server takes: vLLM's default (--gpu-memory-utilization)


def training(model: Architecture, step: Step, sharding: str, ranks: int) -> Training:
    """model: what one rank of tensor parallelism has; step: of one data-parallel rank.

    States: mixed precision with Adam after "ZeRO" (Rajbhandari et al. 2020, sections 3.1 and 5): with P parameters, 2P bytes of weights,
    2P of gradients, and 12P for the optimizer (a copy of the weights and two moments in fp32); in fp32 4P, 4P and 8P. Of N ranks each
    has all of it (ddp); the optimizer's / N (zero1); gradients / N as well (zero2); weights / N as well (zero3, fsdp). Then a layer's
    weights and gradients are gathered when it runs: the largest one's are added ("PyTorch FSDP", Zhao et al. 2023, section 3.2.1:
    sum / N + max). DDP keeps gradients in buckets, too, where gradient_as_bucket_view is not set (its documentation).

    Activations: what each block says (`Block.saved`), attention's scores never kept (FlashAttention). With recomputation, the input of
    each layer is kept, and what one layer saves ("Reducing Activation Recomputation in Large Transformer Models", Korthikanti et al.
    2022, section 5: 2 s b h bytes a layer in 16 bits). Without sequence parallelism norms' inputs are whole on every rank.
    """
    parameters, item = model.parameters, step.weight
    master = 4 if item < 4 else 0
    divided = {"weights": sharding in ("fsdp", "zero3"), "gradients": sharding in ("fsdp", "zero2", "zero3")}
    largest = max(group.parameters // group.count for group in model.groups)
    kept = computed = inner = 0
    for group in model.groups:
        saved = sum(block.saved(step) for block in group.blocks)
        kept += group.count * saved
        if group.layer:
            inner += group.count * sum(block.entering(step) for block in group.blocks)
            computed = max(computed, saved)
        else:
            inner += saved
    weights = -(-parameters * item // (ranks if divided["weights"] else 1))
    gradients = -(-parameters * item // (ranks if divided["gradients"] else 1))
    optimizer = -(-parameters * (8 + master) // (1 if sharding == "ddp" else ranks))
    gathered = 2 * largest * item if divided["weights"] and ranks > 1 else 0
    buckets = parameters * item if sharding == "ddp" and ranks > 1 else 0
    states = weights + gradients + optimizer + gathered + buckets
    recomputed = min(inner + computed, kept)
    return Training(
        sharding=sharding,
        data_parallel=ranks,
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        gathered=gathered,
        buckets=buckets,
        activations=kept,
        recomputed=recomputed,
        total=states + kept,
        states=states,
        total_recomputed=states + recomputed,
    )


def serving(model: Architecture, step: Step, tokens: int, memory: float | None) -> Serving:
    """model: what one rank of tensor parallelism has. tokens: of a sequence at its full length; memory: of the GPU, in bytes.

    A sequence takes whole pages of PAGE tokens ("PagedAttention", Kwon et al. 2023, section 4.1), so that at most PAGE - 1 of its
    last are lost. Sliding windows keep their window alone. The activations of a batch grow with it.
    """
    pages = -(-tokens // PAGE)
    each = model.cache(pages * PAGE, step.source) * step.item
    weights = model.parameters * step.weight
    activations = max((block.live(step) for _, block in model.blocks), default=0)
    most = None
    if memory is not None and each:
        room = memory * SHARE - weights
        most = max(int(room // (each + activations / step.batch)), 0)
    cache = each * step.batch
    return Serving(
        weights=weights,
        cache=cache,
        activations=activations,
        page_tokens=PAGE,
        pages_per_sequence=pages if each else 0,
        max_batch=most,
        total=weights + cache + activations,
    )
