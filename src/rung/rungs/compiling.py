"""Level 2: torch.compile, of the whole or of the blocks that repeat, what it makes of autocast's casts, and launches without the host by CUDA
and HIP graphs."""

from __future__ import annotations

from dataclasses import replace

from rung.rungs.graph_rewrites import inductor_rewrite
from rung.rungs.proofs import all_of, counted, more_often, occurs
from rung.rungs.requirements import (
    AUTOCAST,
    CAST_WEIGHTS,
    COMPILED,
    GPU,
    WHOLE_WEIGHTS,
    one_process,
    unless,
    unless_backward_is_compiled,
)
from rung.rungs.rung import Context, Evidence, Inapplicable, Proof, Requirement, Rung, TimeFactors

SEVERAL = 2  # shapes beside the measured one, from which inputs are taken to vary
REPEATED = 2  # times that a block of one kind comes on average: fewer spare too little
MANY_BLOCKS = 4  # from which compiling one block for all of them is worth a thought
LONG = 60.0  # seconds of a first run that are worth sparing


def _compile_factors(c: Context) -> TimeFactors:
    # Copies are casts and layouts, which Inductor makes part of its kernels: all of 1.4 ms were, of a step of 7.2 under autocast. It
    # lays convolutions out with channels innermost, too: 0.65 of their time was left in a ResNet-50 in inference, on one H100.
    convolution = (0.9, 1.0) if c.plan.channels_last else (0.5, 1.0)
    return {
        "pointwise": (0.25, 0.75),
        "copy": (0.0, 0.6),
        "launch_gap": (0.1, 0.8),
        "attention": (0.5, 1.0),
        "convolution": convolution,
    }


COMPILE = Rung(
    name="compile",
    level=2,
    title="torch.compile",
    contract="reassociated",
    changes="forward and loss as one compiled function, static shapes",
    remaining=_compile_factors,
    change=lambda p: replace(p, compile=True, regions=False),
    effect="Inductor compiled the captured graphs",
    proof=counted("compiled_graphs", "graphs compiled"),
    replaces=("compile-regions",),
    always_tried=True,
    prepare_seconds=40.0,  # a first run on 16 cores: 36 s for 12 layers in training
)


def _whole_takes_long(c: Context) -> Inapplicable | None:
    if "compile" in c.failed or c.wants_fast_compile:
        return None
    if not c.plan.compile:
        return Inapplicable("it stands in for torch.compile where that takes long or fails.")
    if c.plan.passes:
        return Inapplicable("graph rewrites are in effect that look at the whole graph.")
    if c.first_run < LONG:
        return Inapplicable(f"compiling the whole takes {c.first_run:.0f} s; it is spared from {LONG:.0f} s on.")
    return None


REGIONS = Rung(
    name="compile-regions",
    level=2,
    title="repeated blocks compiled once",
    contract="reassociated",
    changes="compiles a repeated block once for all its copies (regional compilation); the rest runs uncompiled",
    requires=(
        WHOLE_WEIGHTS,
        unless(
            f"{MANY_BLOCKS} blocks, each kind of them {REPEATED} times on average",
            lambda c: (c.facts.blocks or 0) >= max(MANY_BLOCKS, REPEATED * (c.facts.kinds_of_blocks or 0)),
            "the model has no list of blocks that repeat, called by itself.",
        ),
        unless_backward_is_compiled("the model is one graph with its exchange (ddp-compiled-backward)."),
        Requirement("torch.compile of the whole takes a minute, or fails", _whole_takes_long),
    ),
    # Against the eager step, where compiling the whole failed, it gives less than that; against compile, nothing.
    remaining=lambda c: {} if c.plan.compile else {"pointwise": (0.3, 0.85), "launch_gap": (0.3, 0.9)},
    change=lambda p: replace(p, compile=False, regions=True),
    effect="blocks compiled by themselves",
    proof=all_of(counted("regions", "blocks compiled"), counted("compiled_graphs", "graphs")),
    replaces=("compile", "dynamic-shapes"),
    prepare_seconds=20.0,
    improves="first run",
)


def _shapes_vary(c: Context) -> Inapplicable | None:
    if not c.plan.compile:
        return Inapplicable("it is for what torch.compile makes of the whole model, which is not in effect so far.")
    if c.plan.passes:
        return Inapplicable(
            f"rewrites of the graph are in effect that need to know its sizes: {', '.join(c.plan.passes)}."
        )
    vary = any("size mismatch" in again.why for again in c.facts.recompilations or ())
    if (c.facts.named_shapes or 0) < SEVERAL and not vary:
        return Inapplicable(
            f"its inputs do not vary: the workload names fewer than {SEVERAL} shapes beside the measured one."
        )
    return None


def _fewer_graphs(e: Evidence) -> Proof:
    if not e.over_shapes:
        return Proof(None, "the graphs over all shapes were not counted")
    before, after = e.over_shapes["best"], e.over_shapes["candidate"]
    return Proof(
        0 < after.graphs < before.graphs, f"{before.graphs} -> {after.graphs} graphs compiled for {after.shapes} shapes"
    )


DYNAMIC = Rung(
    name="dynamic-shapes",
    level=2,
    title="one graph for all shapes",
    contract="reassociated",
    changes="input sizes are symbolic in the compiled code; with `capture`, each shape still has its own graph",
    requires=(Requirement("torch.compile of the whole, without rewrites, and inputs that vary", _shapes_vary),),
    remaining=lambda c: {},  # it makes no step faster; what it costs on the measured shape is measured
    change=lambda p: replace(p, dynamic=True),
    effect="fewer graphs compiled over the shapes",
    proof=_fewer_graphs,
    prepare_seconds=40.0,
    improves="graphs",
)

FOREACH_WEIGHT_CASTS = inductor_rewrite(
    name="foreach-weight-casts",
    level=2,
    title="weights cast by one foreach operation",
    contract="exact",
    changes="one foreach operation casts all weights for autocast, instead of one kernel per weight",
    requires=(GPU, AUTOCAST, CAST_WEIGHTS, COMPILED),
    remaining=lambda c: {"pointwise": (0.85, 1.0), "launch_gap": (0.9, 1.0)},
    effect="torch's kernels that copy many tensors",
    reported_as="the rewrite of casts",
    proof=more_often(r"multi_tensor_apply.*Copy", "such copies"),
)


ALONE = one_process("a graph that is replayed would hold the exchange between ranks, which nobody has verified")
GRAPH_LAUNCH = r"^(cuda|hip)GraphLaunch"


def _replayable(c: Context) -> Inapplicable | None:
    if c.training and (why := c.facts.optimizer_not_captured):
        return Inapplicable(f"{why}.")
    if hooked := c.facts.hooked:
        return Inapplicable(f"{hooked} has a hook, whose Python no replay would run.")
    return None


CAPTURE = Rung(
    name="capture",
    level=2,
    title="whole step as one graph",
    contract="exact",
    changes="forward, backward and optimizer replayed as one CUDA or HIP graph per input shape",
    requires=(GPU, ALONE, Requirement("no hooks, and an optimizer that can be captured", _replayable)),
    remaining=lambda c: {"launch_gap": (0.0, 0.25), "idle": (0.2, 1.0)},
    change=lambda p: replace(p, capture=True),
    effect="the step is a graph's replay",
    proof=all_of(counted("captured", "shapes captured"), occurs(GRAPH_LAUNCH, "graph launches")),
    replaces=("reduce-overhead",),
    always_tried=True,
)
