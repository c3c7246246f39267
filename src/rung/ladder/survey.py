"""The facts of a workload that decide which rungs apply. Runs in a worker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import torch
from msgspec import UNSET, UnsetType
from torch.utils import _pytree as pytree

from rung.engine.attention import chosen_backends
from rung.engine.channels_last import contiguous_weights
from rung.engine.disturbed import elements, shapes_of
from rung.engine.dynamo import DynamoLog, inductor_settings, products_widen, record_dynamo_log
from rung.engine.guards import ModelGuards
from rung.engine.linears import suitable
from rung.engine.optimizer import is_fused, why_not_capturable, why_not_fused
from rung.engine.parallel import all_tensor_parallel
from rung.engine.regions import blocks, kinds
from rung.engine.step import Step
from rung.engine.switches import generates, switches, takes_sdpa
from rung.errors import first_line
from rung.hardware import peaks_of
from rung.hardware.aiter import looked_up
from rung.hardware.device import Device, matmul_precision_name, to_device
from rung.hardware.doctor.gpus import Here
from rung.hardware.doctor.machine import Machine
from rung.hardware.doctor.variables import in_effect
from rung.hardware.ranks import Ranks
from rung.ladder.answers import Surveyed
from rung.ladder.reads import memory_read
from rung.plan import Plan
from rung.recipes.fingerprint import describe_model, structure_hash
from rung.records.record import Part, take
from rung.records.workload import Batch, Break, Facts, Recompilation, TunedProducts
from rung.records.workload import Workload as Described
from rung.rungs.inductor import names
from rung.timing.work import rates
from rung.verify.randomness import active
from rung.verify.reference import own_precision
from rung.workload import Workload, call_model, seeded_model, shapes

EXPERTS = "grouped-experts"


class Graphs(Part, kw_only=True):
    """What Dynamo captures: facts of a workload (`rung.records.workload.Facts`)."""

    matches: dict[str, int]
    skipped: list[str]
    captured: dict[str, int | float] | UnsetType = UNSET
    rewritten: dict[str, int | float] | UnsetType = UNSET
    written_out: dict[str, int | float] | UnsetType = UNSET
    graphs: int = 0
    graph_breaks: list[str] = msgspec.field(default_factory=list)
    breaks: list[Break] = msgspec.field(default_factory=list)
    recompilations: list[Recompilation] = msgspec.field(default_factory=list)
    aiter: TunedProducts | UnsetType = UNSET


def described(workload: Workload, model: torch.nn.Module, flops: float | None = None) -> Described:
    return Described(
        name=workload.name,
        mode=workload.mode,
        own_forward=workload.forward is not call_model,
        output=workload.output,
        max_grad_norm=workload.max_grad_norm,
        samples=workload.samples,
        tokens=workload.tokens,
        model=describe_model(model),
        structure=structure_hash(model),
        parameters=sum(p.numel() for p in model.parameters()),
        options={k: str(v) for k, v in workload.options.items()},
        flops=flops,
    )


def quick_facts(workload: Workload, step: Step, device: Device) -> Facts:
    """What can be said of a step before it runs."""
    weights = list(step.model.parameters())
    repeated = blocks(step.model)
    peaks, optimizer = peaks_of(device), step.optimizer
    given = workload.inputs(0)
    measured = batch_of(given)
    return Facts(
        gpu=device.is_gpu,
        vendor=device.vendor,
        torch=str(torch.__version__),
        arch=device.arch,
        mode=workload.mode,
        tokens=workload.tokens,
        named_shapes=len(workload.other_shapes),
        same_size_shapes=sum(elements(make(0)) == measured.elements for make in workload.other_shapes),
        blocks=len(repeated),
        kinds_of_blocks=kinds(repeated),
        contiguous_convolutions=len(contiguous_weights(step.model)),
        cudnn_benchmark=bool(torch.backends.cudnn.benchmark),
        amp=str(workload.amp) if workload.amp else None,
        dtype=_dtype(weights or pytree.tree_leaves(given)),
        matmul_precision=matmul_precision_name(),
        optimizer=type(optimizer).__name__ if optimizer else None,
        optimizer_is_fused=bool(optimizer and is_fused(optimizer)),
        optimizer_not_fused=why_not_fused(optimizer, step.model) if optimizer else "",
        optimizer_not_captured=why_not_capturable(optimizer) if optimizer else "",
        rates=rates(peaks) if peaks else {},
        bandwidth=peaks.bandwidth if peaks else None,
        dropout=workload.mode == "train" and active(step.model),
        hooked=ModelGuards(step.model).hooked,
        shapes=[measured],
        own_precision=own_precision(workload, step.model, device),
        ranks=Ranks.here.world,
        parallel=_parallel(workload, step.model),
    )


def _parallel(workload: Workload, model: torch.nn.Module) -> str:
    """How ranks train together."""
    if workload.mode != "train":
        return "none"
    return "tensor" if workload.parallel == "own" and all_tensor_parallel(model) else workload.parallel


def _dtype(found: list[Any]) -> str:
    """torch's name of the dtype of a model's weights, or of its inputs where it has none, a floating-point one where there is one."""
    tensors = sorted((t for t in found if isinstance(t, torch.Tensor)), key=lambda t: not t.is_floating_point())
    return str(tensors[0].dtype) if tensors else "none"


def survey(workload: Workload, device: Device) -> Surveyed:
    """All facts of a workload that can be verified (`rung.verify.audit`)."""
    model = seeded_model(workload).to(device.torch_name)
    step = Step(workload, model, Plan(), device)
    facts = quick_facts(workload, step, device)  # before the first step leaves state in the optimizer

    def once() -> Any:
        return step(to_device(workload.inputs(0), device))

    work = flops(workload, step, device)
    take(facts, memory_read(list(model.parameters()), once, step.optimizer))
    facts.shapes = [batch_of(make(0)) for make in shapes(workload)]
    facts.linears = len(suitable(model))
    facts.products_widen = widening(device)
    facts.attention_choices = chosen_backends(device)
    facts.switches = switches(model)
    facts.takes_sdpa = takes_sdpa(model)
    facts.generates = generates(once, model)
    facts.inductor = inductor_settings(names())
    facts.variables = dict(in_effect(Machine(), Here(device.vendor if device.is_gpu else "", 1, [device.arch])))
    take(facts, captured_graphs(workload, device))
    return Surveyed(workload=described(workload, model, work), facts=facts)


def widening(device: Device) -> bool:
    """Whether products that read bfloat16 and write float32 exist on this device, and Inductor takes them."""
    square = torch.ones(16, 16, dtype=torch.bfloat16, device=device.torch_name)
    try:
        torch.mm(square, square, out_dtype=torch.float32)
    except (RuntimeError, TypeError):  # not on this device; not in this torch
        return False
    return products_widen()


def batch_of(inputs: Any) -> Batch:
    """The shapes of a batch in words, and how many elements its tensors have together."""
    return Batch(shape=shapes_of([inputs])[0], elements=elements(inputs))


def captured_graphs(workload: Workload, device: Device) -> Graphs:
    """What Dynamo captures, where and why it breaks the graph or captures again, and what the rewrites would find,
    without compiling. Two batches of one shape are run: whatever is captured again for the second is captured for
    every batch."""
    from rung.rewrites import PASSES, hidden

    model = seeded_model(workload).to(device.torch_name)
    passes = tuple(name for name in PASSES if name != EXPERTS)
    try:
        step, logged, failed = _run_by_rewrites(workload, model, device, passes)
        assert step.backend is not None
        found, skipped = dict(step.backend.matches), [*failed, *step.backend.skipped]
        if others := hidden(found):
            alone = Step(workload, model, Plan(passes=others), device)
            alone(to_device(workload.inputs(0), device))
            assert alone.backend is not None
            found |= alone.backend.matches
            skipped = list(dict.fromkeys([*skipped, *alone.backend.skipped]))
        if step.breaks:
            step.backend.undo()  # weights that lie next to one another already are not laid otherwise
            grouped, left = loops_over_experts(workload, model, device)
            found, skipped = {**found, **grouped}, [*skipped, *left]
        breaks = [*logged.uncompiled, *step.breaks]
    except Exception as error:
        return Graphs(matches={}, skipped=[f"capture failed: {type(error).__name__}: {first_line(error)}"])
    return Graphs(
        matches=found,
        skipped=skipped,
        captured=dict(step.backend.before),
        rewritten=dict(step.backend.after),
        written_out=dict(step.backend.written_out),
        graphs=step.backend.graphs,
        graph_breaks=[sentence(found) for found in breaks],
        breaks=breaks,
        recompilations=logged.again,
        aiter=looked_up(device, step.backend.products),
    )


def _run_by_rewrites(
    workload: Workload, model: torch.nn.Module, device: Device, passes: tuple[str, ...]
) -> tuple[Step, DynamoLog, list[str]]:
    """A step that ran two batches of one shape under these passes; what Dynamo logged meanwhile; and which passes were left out, and why.

    Code that a pass rewrote may raise an error. Then it is looked for by leaving out one pass at a time. Raises what the workload raises
    without any of them.
    """

    def run(names: Iterable[str]) -> tuple[Step, DynamoLog]:
        step = Step(workload, model, Plan(passes=tuple(names)), device)
        try:
            with record_dynamo_log() as logged:
                for seed in (0, 1):
                    step(to_device(workload.inputs(seed), device))
        except Exception:
            if step.backend:
                step.backend.undo()
                rewritten.extend(name for name in step.backend.rewritten if name not in rewritten)
            raise
        return step, logged

    rewritten: list[str] = []
    try:
        return *run(passes), []
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if not rewritten:
            raise
        why, first = f"what it rewrites raises an error here ({type(error).__name__}: {first_line(error)})", error
    run(())
    left_out: list[tuple[str, ...]] = [*((name,) for name in rewritten), tuple(rewritten)]
    for blamed in left_out:
        before = len(rewritten)
        try:
            return *run(name for name in passes if name not in blamed), [f"{name}: {why}" for name in blamed]
        except torch.OutOfMemoryError:
            raise
        except Exception:
            if blamed is left_out[-1] and len(rewritten) > before:  # those that another one was before found something
                left_out.append(tuple(rewritten))
    raise first  # Dynamo's own


def loops_over_experts(workload: Workload, model: torch.nn.Module, device: Device) -> tuple[dict[str, int], list[str]]:
    """What the rewrite finds that has Dynamo go on where sizes depend on values; nothing, where Dynamo cannot."""
    alone = Step(workload, model, Plan(passes=(EXPERTS,)), device)
    try:
        alone(to_device(workload.inputs(0), device))
    except Exception:  # a size that is not a loop's over experts
        return {}, []
    return (dict(alone.backend.matches), alone.backend.skipped) if alone.backend else ({}, [])


def sentence(found: Break) -> str:
    """A graph break in words: where, what stands there, why, and what to do."""
    text = f"{found.where}: `{found.line}`: {found.why.rstrip('.')} (x{found.count})"
    return text + (f". {found.hint}" if found.hint else "")


def flops(workload: Workload, step: Step, device: Device) -> float | None:
    """Floating-point operations of one step's matrix products and attention, as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    try:
        with FlopCounterMode(display=False) as counter:
            step(to_device(workload.inputs(0), device))
        return float(counter.get_total_flops())
    except Exception:  # a workload that the counter cannot follow is still a workload
        return None
