"""The facts of a workload that decide which rungs apply. Runs in a worker."""

from __future__ import annotations

from typing import Any

import torch

from rung.engine.attention import choices
from rung.engine.channels_last import contiguous_weights
from rung.engine.disturbed import elements, shapes_of
from rung.engine.dynamo import inductor_settings, products_widen, recompilations
from rung.engine.guards import ModelGuards
from rung.engine.linears import suitable
from rung.engine.optimizer import is_fused, not_captured, not_fused
from rung.engine.regions import blocks, kinds
from rung.engine.step import Step
from rung.engine.switches import generates, switches, takes_sdpa
from rung.errors import first_line
from rung.hardware import environment, peaks_of
from rung.hardware.aiter import looked_up
from rung.hardware.device import Device, matmul_precision_name, to_device
from rung.hardware.doctor.gpus import Here
from rung.hardware.doctor.machine import Machine
from rung.hardware.doctor.variables import in_effect
from rung.ladder.reads import memory_read
from rung.plan import Plan
from rung.recipes import fit
from rung.rungs.inductor import names
from rung.timing.work import rates
from rung.verify.reference import own_precision
from rung.workload import Workload, seeded_model, shapes

EXPERTS = "grouped-experts"


def quick_facts(workload: Workload, step: Step, device: Device) -> dict[str, Any]:
    """What can be said of a step before it runs."""
    weights = list(step.model.parameters())
    repeated = blocks(step.model)
    peaks = peaks_of(device)
    return {
        "workload": {
            "name": workload.name,
            "mode": workload.mode,
            "samples": workload.samples,
            "tokens": workload.tokens,
            "model": fit.described(step.model),
            "structure": fit.structure(step.model),
            "parameters": sum(p.numel() for p in weights),
            "options": {k: str(v) for k, v in workload.options.items()},
        },
        "gpu": device.is_gpu,
        "vendor": device.vendor,
        "torch": str(torch.__version__),
        "arch": device.arch,
        "mode": workload.mode,
        "tokens": workload.tokens,
        "named_shapes": len(workload.other_shapes),
        "blocks": len(repeated),
        "kinds_of_blocks": kinds(repeated),
        "contiguous_convolutions": len(contiguous_weights(step.model)),
        "amp": str(workload.amp) if workload.amp else None,
        "dtype": str(weights[0].dtype) if weights else "none",
        "matmul_precision": matmul_precision_name(),
        **of_optimizer(step.optimizer),
        "rates": rates(peaks) if peaks else {},
        "bandwidth": peaks.bandwidth if peaks else None,
        "hooked": ModelGuards(step.model).hooked,
        "shapes": [described(workload.inputs(0))],
        "own_precision": own_precision(workload, step.model, device),
    }


def survey(workload: Workload, device: Device) -> dict[str, Any]:
    """All facts of a workload that can be verified (`rung.verify.audit`)."""
    model = seeded_model(workload).to(device.torch_name)
    step = Step(workload, model, Plan(), device)
    quick = quick_facts(workload, step, device)  # before the first step leaves state in the optimizer

    def once() -> Any:
        return step(to_device(workload.inputs(0), device))

    return {
        **quick,
        "workload": {**quick["workload"], "flops": flops(workload, step, device)},
        **memory_read(list(model.parameters()), once, step.optimizer),
        "shapes": [described(make(0)) for make in shapes(workload)],
        "linears": len(suitable(model)),
        "products_widen": widening(device),
        "attention_choices": choices(device),
        "switches": switches(model),
        "takes_sdpa": takes_sdpa(model),
        "generates": generates(once, model),
        "inductor": inductor_settings(names()),
        "variables": in_effect(Machine(), Here(device.vendor if device.is_gpu else "", 1, [device.arch])),
        "environment": environment(device),
        **captured_graphs(workload, device),
    }


def of_optimizer(optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """Its name, and why it cannot be had in other forms."""
    return {
        "optimizer": type(optimizer).__name__ if optimizer else None,
        "optimizer_is_fused": bool(optimizer and is_fused(optimizer)),
        "optimizer_not_fused": not_fused(optimizer) if optimizer else "",
        "optimizer_not_captured": not_captured(optimizer) if optimizer else "",
    }


def widening(device: Device) -> bool:
    """Whether products that read bfloat16 and write float32 exist on this device, and Inductor takes them."""
    square = torch.ones(16, 16, dtype=torch.bfloat16, device=device.torch_name)
    try:
        torch.mm(square, square, out_dtype=torch.float32)
    except (RuntimeError, TypeError):  # not on this device; not in this torch
        return False
    return products_widen()


def described(batch: Any) -> dict[str, Any]:
    """The shapes of a batch in words, and how many elements its tensors have together."""
    return {"shape": shapes_of([batch])[0], "elements": elements(batch)}


def captured_graphs(workload: Workload, device: Device) -> dict[str, Any]:
    """What Dynamo captures, where and why it breaks the graph or captures again, and what the rewrites would find,
    without compiling. Two batches of one shape are run: whatever is captured again for the second is captured for
    every batch."""
    from rung.rewrites import PASSES, hidden

    model = seeded_model(workload).to(device.torch_name)
    step = Step(workload, model, Plan(passes=tuple(name for name in PASSES if name != EXPERTS)), device)
    try:
        with recompilations() as again:
            for seed in (0, 1):
                step(to_device(workload.inputs(seed), device))
        assert step.surgeon is not None
        found, skipped = dict(step.surgeon.matches), list(step.surgeon.skipped)
        if others := hidden(found):
            alone = Step(workload, model, Plan(passes=others), device)
            alone(to_device(workload.inputs(0), device))
            assert alone.surgeon is not None
            found |= alone.surgeon.matches
            skipped = list(dict.fromkeys([*skipped, *alone.surgeon.skipped]))
        if step.breaks:
            step.surgeon.undo()  # weights that lie next to one another already are not laid otherwise
            grouped, left = loops_over_experts(workload, model, device)
            found, skipped = {**found, **grouped}, [*skipped, *left]
    except Exception as error:
        return {"matches": {}, "skipped": [f"capture failed: {type(error).__name__}: {first_line(error)}"],
                "graphs": 0, "graph_breaks": [], "breaks": [], "recompilations": []}  # fmt: skip
    return {
        "matches": found,
        "skipped": skipped,
        "captured": step.surgeon.before,
        "rewritten": step.surgeon.after,
        "written_out": step.surgeon.written_out,
        "graphs": step.surgeon.graphs,
        "graph_breaks": [sentence(found) for found in step.breaks],
        "breaks": step.breaks,
        "recompilations": again,
        "aiter": looked_up(device, step.surgeon.products),
    }


def loops_over_experts(workload: Workload, model: torch.nn.Module, device: Device) -> tuple[dict[str, int], list[str]]:
    """What the rewrite finds that has Dynamo go on where sizes depend on values; nothing, where Dynamo cannot."""
    alone = Step(workload, model, Plan(passes=(EXPERTS,)), device)
    try:
        alone(to_device(workload.inputs(0), device))
    except Exception:  # a size that is not a loop's over experts
        return {}, []
    return (dict(alone.surgeon.matches), alone.surgeon.skipped) if alone.surgeon else ({}, [])


def sentence(found: dict[str, Any]) -> str:
    """A graph break in words: where, what stands there, why, and what to do."""
    text = f"{found['where']}: `{found['line']}`: {found['why'].rstrip('.')} (x{found['count']})"
    return text + (f". {found['hint']}" if found["hint"] else "")


def flops(workload: Workload, step: Step, device: Device) -> float | None:
    """Floating-point operations of one step's matrix products and attention, as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    try:
        with FlopCounterMode(display=False) as counter:
            step(to_device(workload.inputs(0), device))
        return float(counter.get_total_flops())
    except Exception:  # a workload that the counter cannot follow is still a workload
        return None
