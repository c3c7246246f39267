"""Level 2: how several ranks exchange gradients and weights. NCCL's and RCCL's variables are in environment.toml."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import UNSET

from rung.plan import Plan
from rung.rungs.proofs import all_of, counted, less_often, more_often, reported
from rung.rungs.requirements import (
    AUTOCAST,
    CAST_WEIGHTS,
    DDP,
    FSDP2,
    GPU,
    RANKS,
    TENSOR_PARALLEL,
    allowed,
    unless,
    unless_backward_is_compiled,
)
from rung.rungs.rung import Inapplicable, Remaining, Requirement, Rung

# MiB of gradients that are exchanged at once. torch's own is 25: less begins sooner and launches more, more moves at a higher rate.
BUCKETS = (8, 100)

# Blocks that FSDP2 gathers before they are needed. By itself torch gathers the next one, once the host has come to it.
AHEAD = 2


def _with_exchange(plan: Plan, **how: Any) -> Plan:
    return replace(plan, exchange=replace(plan.exchange, **how))


def _with_ddp_argument(plan: Plan, argument: str, value: Any) -> Plan:
    return _with_exchange(plan, ddp=tuple({**dict(plan.exchange.ddp), argument: value}.items()))


NOT_IN_PYTHON = unless_backward_is_compiled(
    "gradients are exchanged in Python (ddp-compiled-backward), which knows nothing of it."
)
WHOLE = unless("torch.compile of the whole", lambda c: c.plan.compile, "it needs the whole model compiled.")


def _ddp_argument(name: str, argument: str, value: Any, *requires: Requirement, **declared: Any) -> Rung:
    """A rung that gives DistributedDataParallel another argument."""
    return Rung(
        name=name,
        level=2,
        changes=f"DistributedDataParallel({argument}={value})",
        requires=(RANKS, DDP, *requires),
        change=lambda p: _with_ddp_argument(p, argument, value),
        proof=reported(f"ddp {argument}", value, argument),
        **declared,
    )


def _exchange_factors(best: float, worst: float) -> Remaining:
    return lambda c: {"communication": (best, worst), "idle": (0.8, 1.02)}


def _ddp_buckets(size: int) -> Rung:
    return _ddp_argument(
        f"ddp-buckets-{size}",
        "bucket_cap_mb",
        size,
        title=f"gradients exchanged {size} MiB at a time",
        contract="reassociated",  # in which order ranks are summed may depend on it
        remaining=_exchange_factors(0.7, 1.1),
        effect=f"buckets of {size} MiB",
        replaces=tuple(f"ddp-buckets-{other}" for other in BUCKETS if other != size),
    )


GRADIENT_VIEWS = _ddp_argument(
    "ddp-gradient-views",
    "gradient_as_bucket_view",
    True,
    NOT_IN_PYTHON,
    title="gradients as views of the buckets",
    contract="exact",
    remaining=lambda c: {"copy": (0.5, 1.0), "pointwise": (0.95, 1.0)},
    effect="gradients are views of what is exchanged, and are there once",
    improves="memory",
)

STATIC_GRAPH = _ddp_argument(
    "ddp-static-graph",
    "static_graph",
    True,
    NOT_IN_PYTHON,
    title="static graph for DistributedDataParallel",
    contract="exact",
    remaining=lambda c: {"launch_gap": (0.9, 1.0), "communication": (0.9, 1.0)},
    effect="the graph of the first step is taken for that of all",
)


def _only_with_autocast(what: str) -> Requirement:
    why = f"{what} in float32 so far, and would lose by it: it goes with autocast (bf16)."
    return Requirement(AUTOCAST.needs, lambda c: None if c.autocast else Inapplicable(why))


# As torch's kernels have it (`rung.engine.symmetric_memory`).
MOST_WITH_SHARED_MEMORY = 8
_ON_ONE_HOST = unless(
    f"at most {MOST_WITH_SHARED_MEMORY} ranks, on one host",
    lambda c: c.facts.ranks <= MOST_WITH_SHARED_MEMORY,
    f"at most {MOST_WITH_SHARED_MEMORY} ranks of one host share memory.",
)

# On two H200 with NVLink, a step of `large` took 1.26 times as long with buckets of 25 MiB, and as long with those of 100 MiB. How it is with
# other links, and with more GPUs, is a guess.
SYMMETRIC_MEMORY = Rung(
    name="ddp-symmetric-memory",
    level=2,
    title="gradients summed in memory that the GPUs share",
    contract="reassociated",
    changes="DistributedDataParallel.register_comm_hook: torch's symm_mem.two_shot_all_reduce_ (one_shot_all_reduce for small buckets) in the place of NCCL or RCCL, on a stream of its own; no NVLink multicast",
    requires=(
        GPU,
        RANKS,
        DDP,
        _ON_ONE_HOST,
        unless_backward_is_compiled(
            "gradients are exchanged in a compiled graph (ddp-compiled-backward), which asks no hook."
        ),
    ),
    remaining=lambda c: {"communication": (0.8, 2.5), "copy": (1.0, 1.1), "idle": (0.8, 1.02)},
    change=lambda p: _with_exchange(p, symmetric_memory=True),
    effect="GPUs read each other's gradients directly, in one kernel a bucket",
    proof=counted("buckets in symmetric memory", "buckets summed in symmetric memory"),
)

BF16_GRADIENTS = Rung(
    name="bf16-gradients",
    level=2,
    title="gradients exchanged in bfloat16",
    contract="bf16",
    changes="DistributedDataParallel.register_comm_hook(None, bf16_compress_hook), or fully_shard(mp_policy=MixedPrecisionPolicy(reduce_dtype=bfloat16))",
    requires=(
        GPU,
        RANKS,
        unless(
            "", lambda c: c.facts.parallel != "tensor", "the ranks compute one model together and average no gradients."
        ),
        allowed("bf16"),
        _only_with_autocast("gradients are computed"),
        unless_backward_is_compiled(
            "gradients are exchanged in a compiled graph (ddp-compiled-backward), and whether torch still joins them there was not tried."
        ),
    ),
    remaining=_exchange_factors(0.5, 0.95),
    change=lambda p: _with_exchange(p, gradients="bf16"),
    effect="half as many bytes between the ranks",
    proof=reported("gradients", "bf16", "the format in which gradients are exchanged"),
)

KEEP_GATHERED = Rung(
    name="fsdp-keep-gathered",
    level=2,
    title="weights gathered once a step",
    contract="exact",
    changes="fully_shard(reshard_after_forward=False): weights that forward has gathered stay until backward",
    requires=(RANKS, FSDP2),
    remaining=_exchange_factors(0.55, 1.0),
    change=lambda p: _with_exchange(p, gathered=True),
    effect="weights are gathered less often",
    proof=less_often(r"(?i)all_?gather", "gatherings of weights"),
)


# Products round their factors to bfloat16 under autocast, wherever the weights were rounded; what is not a factor of a product, as a norm's
# weight or an embedding, is rounded besides.
BF16_WEIGHTS = Rung(
    name="fsdp-bf16-weights",
    level=2,
    title="weights gathered in bfloat16",
    contract="bf16",
    changes="fully_shard(mp_policy=MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=float32, cast_forward_inputs=False))",
    requires=(
        RANKS,
        FSDP2,
        allowed("bf16"),
        CAST_WEIGHTS,
        _only_with_autocast("weights are used"),
    ),
    remaining=lambda c: {
        "communication": (0.6, 1.0),
        "pointwise": (0.85, 1.05),
        "copy": (0.7, 1.0),
        "idle": (0.8, 1.02),
    },
    change=lambda p: _with_exchange(p, weights="bf16"),
    effect="half as many bytes of weights between the ranks, and no cast of them at each use",
    proof=reported("weights", "bf16", "the format in which weights are gathered"),
)


PREFETCH = Rung(
    name="fsdp-prefetch",
    level=2,
    title="weights of later blocks gathered ahead",
    contract="exact",
    changes=f"set_modules_to_forward_prefetch and set_modules_to_backward_prefetch: the next {AHEAD} blocks, whose weights are in memory the longer",
    requires=(
        RANKS,
        FSDP2,
        unless(
            f"more than {AHEAD} blocks that repeat",
            lambda c: c.facts.blocks is UNSET or (c.facts.blocks or 0) > AHEAD,
            f"the model has no list of more than {AHEAD} blocks that repeat.",
        ),
    ),
    remaining=_exchange_factors(0.7, 1.05),
    change=lambda p: _with_exchange(p, ahead=AHEAD),
    effect="a gathering begins before the host has come to the block that needs it",
    proof=counted("ahead", "blocks gathered ahead"),
)

# The range is a guess: what ranks lose to each other on the cores was not measured on a machine with several nodes.
CORES = Rung(
    name="rank-cores",
    level=2,
    title="each rank on cores of its own, near its GPU",
    contract="exact",
    changes="sched_setaffinity: the cores of the GPU's NUMA node, divided among the ranks that are near them",
    requires=(RANKS,),
    remaining=lambda c: {"launch_gap": (0.85, 1.02), "idle": (0.9, 1.02), "communication": (0.9, 1.02)},
    change=lambda p: _with_exchange(p, cores=True),
    effect="no rank moves between cores, or to those of another",
    proof=reported("cores", "own", "the set of cores"),
)

# What it gives depends on the link between the ranks. torch cuts the graph so that the exchange of a bucket begins while
# the rest of backward runs; without the cuts it begins once backward has ended.
ONE_GRAPH = Rung(
    name="ddp-one-graph",
    level=2,
    title="one compiled graph, and not one for each bucket of gradients",
    contract="reassociated",
    changes="torch._dynamo.config.optimize_ddp = False: kernels are fused and weights joined across buckets, and no exchange hides behind backward",
    requires=(
        RANKS,
        DDP,
        WHOLE,
        unless_backward_is_compiled("the model is one graph (ddp-compiled-backward)."),
    ),
    remaining=lambda c: {
        "gemm": (0.95, 1.0),
        "pointwise": (0.8, 1.0),
        "launch_gap": (0.7, 1.0),
        "communication": (1.0, 2.0),
    },
    change=lambda p: _with_exchange(p, one_graph=True),
    effect="the model is one graph, whatever the buckets hold",
    proof=reported("one graph under DDP", True, "one graph under DDP"),
)

# Experimental in torch (docs/internals/many-gpus.md has what it gave on two H200).
COMPILED_BACKWARD = Rung(
    name="ddp-compiled-backward",
    level=2,
    title="backward and the exchange in one compiled graph",
    contract="reassociated",
    changes='torch._dynamo.config.optimize_ddp = "python_reducer" and compiled autograd: the model is one graph, and gradients are exchanged inside of that of backward',
    requires=(
        RANKS,
        DDP,
        WHOLE,
        unless(
            "no rewrite of what Inductor compiles",
            lambda c: not c.plan.inductor_passes,
            "it compiles backward anew, where rewrites of Inductor's graphs would not be in effect.",
        ),
    ),
    remaining=lambda c: {
        "gemm": (0.95, 1.0),
        "pointwise": (0.8, 1.0),
        "copy": (0.8, 1.0),
        "launch_gap": (0.7, 1.0),
        "communication": (0.7, 1.3),
    },
    change=lambda p: _with_exchange(p, compiled_backward=True),
    effect="the model is one graph, and a part of its exchange still hides behind backward",
    proof=reported("compiled backward", True, "one compiled graph of backward"),
    replaces=("ddp-one-graph", "ddp-gradient-views", "ddp-static-graph", "ddp-symmetric-memory", "bf16-gradients"),
    prepare_seconds=60,
)

# Inductor's option for it. What a step gains depends on how large the products are beside their exchange: the range is a guess.
FUSE_PRODUCTS = "_micro_pipeline_tp"


def _with_fused_products(plan: Plan) -> Plan:
    options = {**dict(plan.inductor), FUSE_PRODUCTS: True}
    return _with_exchange(replace(plan, inductor=tuple(options.items())), fused_products=True)


ASYNC_TENSOR_PARALLEL = Rung(
    name="async-tensor-parallel",
    level=2,
    title="products that overlap with their exchange",
    contract="reassociated",
    changes="torch._inductor.config._micro_pipeline_tp: all-gathers before products, and reduce-scatters behind them, become symm_mem.fused_all_gather_matmul and symm_mem.fused_matmul_reduce_scatter; no NVLink multicast",
    requires=(GPU, RANKS, TENSOR_PARALLEL, _ON_ONE_HOST, WHOLE),
    remaining=lambda c: {"communication": (0.3, 1.05), "gemm": (1.0, 1.1), "idle": (0.8, 1.05)},
    change=_with_fused_products,
    effect="a product begins with the parts that have come, and sends those that are done",
    proof=all_of(
        reported(f"inductor {FUSE_PRODUCTS}", True, FUSE_PRODUCTS),
        more_often(r"symm_mem::fused_(all_gather|matmul)", "products fused with their exchange"),
    ),
)

EXCHANGE = (
    *(_ddp_buckets(size) for size in BUCKETS),
    GRADIENT_VIEWS,
    STATIC_GRAPH,
    ONE_GRAPH,
    COMPILED_BACKWARD,
    SYMMETRIC_MEMORY,
    BF16_GRADIENTS,
    KEEP_GATHERED,
    BF16_WEIGHTS,
    PREFETCH,
)
