"""The backend: runs the passes on each captured graph, counts, checks, and hands over."""

from __future__ import annotations

import copy
import hashlib
import importlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx

from rung.hardware.aiter import Product
from rung.rewrites.added_inputs import AddedInputs, examples
from rung.rewrites.attention.biased import add_bias
from rung.rewrites.attention.copies import drop_copies
from rung.rewrites.attention.decoding import fuse_decoding
from rung.rewrites.attention.flex import fuse_calls
from rung.rewrites.attention.float32_attention import fuse_float32
from rung.rewrites.attention.mask_free import drop_masks
from rung.rewrites.attention.multi_head import write_out
from rung.rewrites.attention.sdpa import fuse_attention, fuse_flex
from rung.rewrites.attention.short import run_short
from rung.rewrites.batch_norm import fold_batch_norm
from rung.rewrites.cache import write_in_place
from rung.rewrites.cast_cache import cache_casts
from rung.rewrites.checkpoints import caching, checkpoint_as_written
from rung.rewrites.convolution_epilogues import join_relu
from rung.rewrites.counts import NAMES, attention, count, products
from rung.rewrites.cross_entropy import fuse_cross_entropy
from rung.rewrites.epilogues import join_activations, join_gelu
from rung.rewrites.experts import group_experts
from rung.rewrites.folded_weights import fold_weights
from rung.rewrites.gemv import multiply_one_row
from rung.rewrites.graph.buffers import Expected, guarded, note_buffers, taken_buffers
from rung.rewrites.graph.captured import let_go, own_copy
from rung.rewrites.hoisted_constants import hoist_constants
from rung.rewrites.horizontal_fusion import fuse_gate_up, fuse_qkv
from rung.rewrites.logits import narrow_logits
from rung.rewrites.loss_kernel import fuse_loss
from rung.rewrites.packed_weights import note_placements
from rung.rewrites.patches import multiply_patches
from rung.rewrites.residual_dtype import narrow_residuals
from rung.rewrites.rotary import fuse_rotary
from rung.rewrites.routed import route_to_aiter
from rung.rewrites.statistics import Statistics
from rung.rewrites.weight_cache import WeightCache, count_step

_Pass = Callable[[fx.Graph], tuple[int, list[str]]]

_PASS_FUNCTIONS: dict[str, _Pass] = {
    "flex-attention": fuse_flex,
    "sdpa": fuse_attention,
    "triton-decode-attention": fuse_decoding,
    "sdpa-no-mask": drop_masks,
    "biased-attention": add_bias,
    "short-attention": run_short,
    "tf32-attention": fuse_float32,
    "flex-for-sdpa": fuse_calls,
    "in-place-cache": write_in_place,
    "folded-batch-norm": fold_batch_norm,
    "hoisted-constants": hoist_constants,
    "narrow-logits": narrow_logits,
    "fused-cross-entropy": fuse_cross_entropy,
    "grouped-experts": group_experts,
    "fused-qkv": fuse_qkv,
    "fused-gate-up": fuse_gate_up,
    "bf16-stream": narrow_residuals,
    "strided-sdpa-inputs": drop_copies,
    "triton-rope": fuse_rotary,
    "triton-cross-entropy": fuse_loss,
    "folded-weights": fold_weights,
    "bf16-weights": cache_casts,
    "patch-matmul": multiply_patches,  # of weights as they are kept
    "aiter-gemm": route_to_aiter,
    "triton-gemv": multiply_one_row,
    "activation-epilogue": join_activations,  # of products that are left
    "gelu-epilogue": join_gelu,
    "convolution-epilogue": join_relu,
}

PASSES = tuple(_PASS_FUNCTIONS)
# Only a whole graph has callers that can be given one more input.
_WHOLE_GRAPH_PASSES = ("hoisted-constants", "folded-weights", "bf16-weights")

# Passes on the graphs that Inductor compiles: the hook of its settings, and whose pass it is.
INDUCTOR_PASSES = {
    "recompute": ("joint_custom_post_pass", "rung.rewrites.inductor_passes.recompute", "Recompute"),
    "fused-dgrad": ("post_grad_custom_pre_pass", "rung.rewrites.inductor_passes.fused_dgrad", "FusedDgrad"),
    "foreach-weight-casts": (
        "post_grad_custom_pre_pass",
        "rung.rewrites.inductor_passes.foreach_casts",
        "ForeachWeightCasts",
    ),
    "depthwise-dgrad": ("post_grad_custom_pre_pass", "rung.rewrites.inductor_passes.depthwise", "DepthwiseDgrad"),
    "float32-gradients": (
        "post_grad_custom_post_pass",
        "rung.rewrites.inductor_passes.float32_gradients",
        "Float32Gradients",
    ),
    "k-major-wgrad": ("post_grad_custom_post_pass", "rung.rewrites.inductor_passes.k_major", "KMajorWgrad"),
}

# What a pass takes away from others: a window is SDPA's with a mask, where FlexAttention is not taken.
_DISPLACES = {
    "flex-attention": ("sdpa",),
    "triton-decode-attention": ("sdpa-no-mask",),
    "biased-attention": ("short-attention", "flex-for-sdpa"),
    "tf32-attention": ("flex-for-sdpa",),
    "fused-cross-entropy": ("triton-cross-entropy",),
    "aiter-gemm": ("triton-gemv", "activation-epilogue", "gelu-epilogue"),
    "triton-gemv": ("activation-epilogue", "gelu-epilogue"),
}


def hidden(matches: Mapping[str, int]) -> tuple[str, ...]:
    """The passes that found nothing only because another one was before them, where all are run."""
    return tuple(other for name in PASSES if matches.get(name) for other in _DISPLACES.get(name, ()))


@dataclass
class _GraphRecord:
    matches: dict[str, int]
    skipped: list[str]
    before: Counter[str] = field(default_factory=Counter)
    after: Counter[str] = field(default_factory=Counter)
    products: Counter[Product] = field(default_factory=Counter)
    left: Counter[Product] = field(default_factory=Counter)
    written_out: Counter[str] = field(default_factory=Counter)


class RewriteBackend:
    """A Dynamo backend: ``torch.compile(fn, backend=RewriteBackend(["sdpa"], "inductor"), dynamic=False)``."""

    def __init__(
        self,
        passes: Sequence[str],
        inner: Literal["inductor", "eager"] = "inductor",
        inductor_options: dict[str, Any] | None = None,
        inductor_passes: Sequence[str] = (),
        model: torch.nn.Module | None = None,
    ) -> None:
        """model: whose batch norms write to their statistics unseen; it is not kept alive."""
        unknown = sorted({*passes, *inductor_passes} - {*PASSES, *INDUCTOR_PASSES})
        if unknown:
            raise ValueError(f"unknown passes {unknown}; known: {[*PASSES, *INDUCTOR_PASSES]}")
        if inner not in ("inductor", "eager"):
            raise ValueError(f"inner is 'inductor' or 'eager', not {inner!r}")
        # One order, whatever order they were chosen in: a pass reads what those before it wrote.
        self.passes = tuple(name for name in PASSES if name in passes)
        self.inner = inner
        self.inductor_options = dict(inductor_options or {})
        self.inductor_passes = tuple(inductor_passes)
        self._expected: list[Expected] = []
        self._records: dict[str, _GraphRecord] = {}
        self._added: list[AddedInputs] = []
        self._statistics = Statistics(model)
        self._weight_cache = WeightCache(self._statistics)

    @property
    def matches(self) -> dict[str, int]:
        """Rewrites by pass, summed over the graphs; a graph compiled again counts once."""
        return {name: sum(r.matches.get(name, 0) for r in self._records.values()) for name in self.passes}

    @property
    def rewritten(self) -> dict[str, int]:
        """The passes that found anything, and how much."""
        return {name: found for name, found in self.matches.items() if found}

    @property
    def before(self) -> dict[str, int]:
        """Operations that the passes count on, by `counts.NAMES`, in the graphs as they were captured."""
        return _summed(record.before for record in self._records.values())

    @property
    def after(self) -> dict[str, int]:
        """The same once rewritten: what the rewrites did, told by the graph and not by the passes."""
        return _summed(record.after for record in self._records.values())

    @property
    def products(self) -> dict[Product, tuple[int, int]]:
        """The shapes of linear layers' products: how many were captured, and how many there are as the other passes left them."""
        captured = sum((record.products for record in self._records.values()), Counter[Product]())
        left = sum((record.left for record in self._records.values()), Counter[Product]())
        return {product: (captured[product], left[product]) for product in sorted({*captured, *left})}

    @property
    def written_out(self) -> dict[str, int]:
        """The size of the attention that was written by hand and is calls now (`counts.attention`)."""
        return dict(sum((record.written_out for record in self._records.values()), Counter[str]()))

    @property
    def graphs(self) -> int:
        return len(self._records)

    @property
    def skipped(self) -> list[str]:
        """Why near misses were left alone, in words that begin with the name of the pass."""
        return list(dict.fromkeys(reason for record in self._records.values() for reason in record.skipped))

    @property
    def copied(self) -> int:
        """How many inputs that stand for several weights are put together anew at every call."""
        return sum(one.copied for added in self._added for one in added.packed)

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return self._rewritten(gm, example_inputs, trusting=True)

    def _rewritten(self, written: fx.GraphModule, example_inputs: Sequence[Any], trusting: bool) -> Callable[..., Any]:
        """trusting: buffers are taken for what they hold now."""
        key = _fingerprint(written, example_inputs)
        record = _GraphRecord(dict.fromkeys(self.passes, 0), [])
        # Checkpointed regions and other wrapped bodies are graph modules of their own inside this one.
        gm = own_copy(written)
        self._statistics.look()
        note_placements(gm, example_inputs, self._statistics)
        if trusting:
            note_buffers(gm, example_inputs)
        subgraphs = [module for module in gm.modules() if isinstance(module, fx.GraphModule)]
        rehearsals: dict[fx.GraphModule, fx.Graph] = {}
        nodes = {node: None for subgraph in subgraphs for node in subgraph.graph.nodes}  # also those that passes erase
        for subgraph in subgraphs:
            self._run_pass("sdpa", write_out, subgraph, record, rehearsals, nodes)
        record.before = count(subgraphs)
        record.products = products(subgraphs)
        for subgraph in subgraphs:
            for name in self.passes:
                if name == "aiter-gemm":
                    record.left += products([subgraph])  # as the passes before it left them
                if subgraph is gm or name not in _WHOLE_GRAPH_PASSES:
                    before = attention(subgraph) if name == "sdpa" else Counter[str]()
                    self._run_pass(name, _PASS_FUNCTIONS[name], subgraph, record, rehearsals, nodes)
                    record.written_out += attention(subgraph) - before if name == "sdpa" else before
        record.after = count(subgraphs)
        for subgraph in subgraphs:  # once: passes read graphs, and writing code takes longer than most of them
            subgraph.recompile()
        expected = taken_buffers(gm)
        self._expected += expected
        self._records[key] = record
        added = AddedInputs(gm, self._weight_cache)
        if added.cached:
            count_step()  # whoever changed the model, so that it was captured anew, may have written to weights unseen
        run = self.compiled(gm, [*example_inputs, *examples(gm)])
        self._added.append(added)
        whole = run if not added else lambda *arguments: run(*arguments, *added(arguments))
        if not expected:
            let_go(nodes)
            return whole
        return guarded(whole, expected, lambda arguments: self._rewritten(written, arguments, trusting=False))

    def outdated(self) -> bool:
        """Whether a buffer that was taken for what it held was written to: a call that runs asks that itself, a recorded one cannot."""
        written = [one.written() for one in self._expected]  # all of them now, and not one at each call
        return any(written)

    def renew(self) -> bool:
        """Copies of weights are of the present weights again: a call that runs sees to that itself, a recorded one cannot. False where they
        were."""
        return self._weight_cache.renew()

    def undo(self) -> None:
        """Takes back what the passes did outside the graphs: weights that were moved next to one another."""
        for added in self._added:
            for one in added.packed:
                one.undo()

    def compiled(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """The rewritten graph, handed over."""
        if self.inner == "eager":
            checkpoint_as_written(gm)
            run: Callable[..., Any] = gm.forward
        else:
            from torch._inductor.compile_fx import compile_fx

            with caching(gm):
                run = compile_fx(
                    gm, inputs, config_patches=inductor_patches(self.inductor_options, self.inductor_passes) or None
                )
        return run

    def _run_pass(
        self,
        name: str,
        run: _Pass,
        subgraph: fx.GraphModule,
        record: _GraphRecord,
        rehearsals: dict[fx.GraphModule, fx.Graph],
        nodes: dict[fx.Node, None],
    ) -> None:
        """nodes: of all graphs, those that are erased later among them."""
        # A rehearsal on a copy: a pass that fails halfway must leave no trace in the real graph, whose placeholders carry
        # attributes of Dynamo that a copy put back in its place would lack. The copy goes the way of the graph.
        rehearsal = rehearsals[subgraph] = rehearsals.get(subgraph) or copy.deepcopy(subgraph.graph)
        nodes |= dict.fromkeys(rehearsal.nodes)
        try:
            run(rehearsal)
            rehearsal.lint()
        except Exception as error:
            del rehearsals[subgraph]
            record.skipped.append(f"{name}: the pass failed and was left out ({type(error).__name__}: {error})")
            return
        finally:
            nodes |= dict.fromkeys(rehearsal.nodes)
        count, reasons = run(subgraph.graph)
        subgraph.graph.lint()
        nodes |= dict.fromkeys(subgraph.graph.nodes)
        record.matches[name] = record.matches.get(name, 0) + count
        record.skipped += [f"{name}: {reason}" for reason in reasons]


def inductor_patches(options: Mapping[str, Any], inductor_passes: Sequence[str] = ()) -> dict[str, Any]:
    """These settings of Inductor, and those by which the passes on its graphs run: the named ones, and one that a setting needs."""
    from rung.rewrites.inductor_passes.base import PassSequence
    from rung.rewrites.inductor_passes.dependent_launches import SETTING, WaitFirst  # they load Inductor

    passes: dict[str, list[Any]] = defaultdict(list)
    for name, (hook, module, kind) in INDUCTOR_PASSES.items():
        if name in inductor_passes:
            passes[hook].append(getattr(importlib.import_module(module), kind)())
    if options.get(SETTING):
        passes["post_grad_custom_post_pass"].append(WaitFirst())
    return {**options, **{hook: PassSequence(hooked) for hook, hooked in passes.items()}}


def _summed(counts: Iterable[Counter[str]]) -> dict[str, int]:
    total = sum(counts, Counter[str]())
    return {name: total[name] for name in NAMES}


def _fingerprint(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> str:
    """The same graph at the same shapes has the same fingerprint, however often it is compiled."""
    inputs = [
        (tuple(item.shape), item.dtype, item.device) if isinstance(item, torch.Tensor) else item
        for item in example_inputs
    ]
    codes = [module.code for module in gm.modules() if isinstance(module, fx.GraphModule)]
    return hashlib.sha256(repr((codes, [str(item) for item in inputs])).encode()).hexdigest()
