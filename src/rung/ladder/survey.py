"""The facts of a workload that decide which rungs apply. Runs in a worker."""

from __future__ import annotations

from typing import Any

from rung.hardware import environment, peaks_of
from rung.hardware.device import Device, matmul_precision_name, to_device
from rung.ladder.audit import audit
from rung.ladder.optimizer import accepts, can_be_captured
from rung.ladder.plan import Plan
from rung.ladder.reference import own_precision
from rung.ladder.step import Step
from rung.workload import Workload, seeded_model


def survey(workload: Workload, device: Device) -> dict[str, Any]:
    """The facts, after the audit that decides whether to climb at all (`rung.ladder.audit`)."""
    without_gradient = audit(workload, device)
    model = seeded_model(workload).to(device.torch_name)
    step = Step(workload, model, Plan(), device)
    optimizer = step.optimizer
    weights = list(model.parameters())
    peaks = peaks_of(device)
    return {
        "workload": {
            "name": workload.name,
            "mode": workload.mode,
            "samples": workload.samples,
            "tokens": workload.tokens,
            "parameters": sum(p.numel() for p in weights),
            "flops": flops(workload, step, device),
            "options": {k: str(v) for k, v in workload.options.items()},
        },
        "gpu": device.is_gpu,
        "vendor": device.vendor,
        "arch": device.arch,
        "mode": workload.mode,
        "amp": str(workload.amp) if workload.amp else None,
        "dtype": str(weights[0].dtype) if weights else "none",
        "matmul_precision": matmul_precision_name(),
        "optimizer": type(optimizer).__name__ if optimizer else None,
        "optimizer_can_fuse": bool(optimizer and accepts(optimizer, "fused")),
        "optimizer_is_fused": bool(optimizer and optimizer.defaults.get("fused")),
        "optimizer_can_be_captured": bool(optimizer and can_be_captured(optimizer)),
        "without_gradient": without_gradient,
        "own_precision": own_precision(workload, model, device),
        "rates": peaks.flops if peaks else {},
        "environment": environment(device),
        **captured_graphs(workload, device),
    }


def captured_graphs(workload: Workload, device: Device) -> dict[str, Any]:
    """What Dynamo captures, how often it breaks, and what the rewrites would find, without compiling."""
    from torch._dynamo.utils import counters

    from rung.ladder.surgery import PASSES

    counters.clear()
    model = seeded_model(workload).to(device.torch_name)
    step = Step(workload, model, Plan(passes=tuple(PASSES)), device)
    try:
        step(to_device(workload.inputs(0), device))
    except Exception as error:
        return {"matches": {}, "skipped": [f"capture failed: {type(error).__name__}: {str(error)[:300]}"],
                "graphs": 0, "graph_breaks": []}  # fmt: skip
    assert step.surgeon is not None
    breaks = [f"{reason.strip().splitlines()[0]} (x{n})" for reason, n in counters["graph_break"].items()]
    return {
        "matches": dict(step.surgeon.matches),
        "skipped": list(step.surgeon.skipped),
        "captured": step.surgeon.before,
        "rewritten": step.surgeon.after,
        "graphs": step.surgeon.graphs,
        "graph_breaks": breaks,
    }


def flops(workload: Workload, step: Step, device: Device) -> float | None:
    """Floating-point operations of one step's matrix products and attention, as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    try:
        with FlopCounterMode(display=False) as counter:
            step(to_device(workload.inputs(0), device))
        return float(counter.get_total_flops())
    except Exception:  # a workload that the counter cannot follow is still a workload
        return None
