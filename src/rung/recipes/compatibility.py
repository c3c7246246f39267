"""Whether a recipe fits the model, the device and the torch that it is applied to. No torch is loaded until a model is given."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rung.plan import Plan
from rung.recipes.recipe import Recipe
from rung.records.recipe import Change
from rung.rungs import BY_NAME, plan_of
from rung.rungs.eight_bits import fp8_format
from rung.rungs.environment import FILES
from rung.rungs.inductor import made_for

if TYPE_CHECKING:
    import torch

    from rung.hardware.device import Device

WHY = {
    "mode": "its rungs were verified on steps of that kind",
    "device": "which rungs pay depends on the chip",
    "torch": "what its compiler does by itself changes between versions",
    "model": "its rungs were verified on another model",
    "ranks": "what the exchange between them costs depends on how many there are",
}
OPTIONAL = ("ranks",)  # a recipe of one process does not tell of them
NO_LINEAR = "no linear layer that it can take (plain ones, without hooks, whose sizes are multiples of 16)"

USUAL_BUCKETS = "DistributedDataParallel made its buckets for the usual layout; call model.to(memory_format=torch.channels_last) before you wrap it"


def differences(made_for: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """A sentence for each of mode, device, torch, model and the number of ranks that is another one than a recipe was made for."""
    return [
        f"the recipe was made {'for' if key == 'mode' else 'on'} {key} {made_for[key]!r}, and this is {here[key]!r}: {why}; climb again to be sure."
        for key, why in WHY.items()
        if made_for.get(key) and here.get(key) and made_for[key] != here[key]
    ]


def unspecified(made_for: Mapping[str, str]) -> list[str]:
    """Which of mode, device, torch and model a recipe does not tell that it was made for, as one written by hand."""
    return [key for key in WHY if key not in OPTIONAL and not made_for.get(key)]


def unsupported_rungs(
    names: Iterable[str],
    device: Device,
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | None = None,
    mode: str = "",
) -> dict[str, str]:
    """By name, a sentence for each rung that cannot be in effect on this device, or for this model, optimizer or mode where
    they are known."""
    reasons = {}
    for name in names:
        plan = plan_of([name])
        if plan != plan.of_one:
            from rung.engine.parallel import lacking  # an exchange is asked about where there is torch

            why = lacking(plan, model)
        else:
            why = (
                ("" if device.is_gpu else _why_not_on_a_cpu(plan))
                or (_why_not_for_model(plan, model) if model is not None else "")
                or _why_not_in_steps(plan, optimizer, model, mode)
                or _why_not_on_chip(name, plan, device.arch)
            )
        if why:
            reasons[name] = f"{name} is not in effect: {why}."
    return reasons


def _why_not_on_a_cpu(plan: Plan) -> str:
    """Why a CPU cannot run this; empty where it can."""
    if plan.capture:
        return "a CPU has no graphs to launch"
    if plan.attention:
        return "a CPU has no choice of attention kernels"
    return "convolutions on a CPU are not searched for" if plan.cudnn_benchmark else ""


def _why_not_on_chip(name: str, plan: Plan, arch: str) -> str:
    """What an architecture lacks for a rung; empty where nothing is missing."""
    if plan.linears == "fp8" and not fp8_format(arch):
        return f"{arch} has no units for products in FP8"
    return "" if made_for(name, arch) else f"{arch} has nothing of the kind"


def _why_not_in_steps(
    plan: Plan, optimizer: torch.optim.Optimizer | None, model: torch.nn.Module | None, mode: str
) -> str:
    """Why a rung cannot be in effect in steps of this mode with this optimizer; empty where it can."""
    if "bf16-weights" in plan.passes and (mode == "train" or optimizer is not None):
        return "it is for inference: in training the weights are others at every step"
    if optimizer is None:
        return "inference has no optimizer" if plan.fused_optimizer and mode == "infer" else ""
    from rung.engine.optimizer import why_not_capturable, why_not_fused  # whoever has an optimizer has torch

    if plan.fused_optimizer:
        return why_not_fused(optimizer, model)
    return why_not_capturable(optimizer) if plan.capture else ""


def _why_not_for_model(plan: Plan, model: torch.nn.Module) -> str:
    """What a model lacks for a rung; empty where nothing is missing. Whoever has a model has torch."""
    kind = type(model).__name__
    if plan.switches:
        from rung.engine.switches import switches

        own = switches(model)
        if missing := [switch for switch, _ in plan.switches if switch not in own]:
            return f"{kind} has no switch of its own for its {missing[0]}"
    if plan.inductor:
        from rung.engine.dynamo import inductor_settings

        settings = dict(plan.inductor)
        if unknown := sorted(settings.keys() - inductor_settings(tuple(settings)).keys()):
            return f"this torch's Inductor has no setting {unknown[0]}"
    if plan.channels_last:
        from rung.engine.channels_last import bucketed_weights

        if bucketed_weights(model):
            return USUAL_BUCKETS
    if plan.linears:
        from rung.engine.linears import suitable

        if not suitable(model):
            return f"{kind} has {NO_LINEAR}"
    if plan.capture:
        from rung.engine.guards import ModelGuards

        if hooked := ModelGuards(model).hooked:
            return f"{hooked} has a hook, whose Python no replay would run"
    return ""


def no_match_message(name: str, skipped: Iterable[str]) -> str:
    """What to say of a rewrite that found nothing in the graph; skipped: what was left alone, and why, as the backend tells it."""
    why = next((f": {s[len(name) + 2 :]}" for s in skipped if s.startswith(f"{name}: ")), "")
    return f"{name} rewrote nothing{why}"


def other_shapes_note(recipe: Recipe) -> str:
    """What rung.apply does with input shapes after the first, in a sentence; empty where nothing is compiled."""
    plan = plan_of(recipe.rungs)
    if not plan.compiles:
        return ""
    if plan.dynamic:
        return "input shapes: one graph for all of them"
    if not plan.shares_graphs:
        return "input shapes: each new one is compiled anew, which takes as long as the first call"
    without = f", without {', '.join(plan.sized)} unless dynamic=False" if plan.sized else ""
    return f"input shapes: the first has a graph of its own; all others share one with symbolic sizes{without}"


def missing_variables(recipe: Recipe, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that the process would have had to be started with."""
    planned = {name: value.replace(FILES, str(Path.cwd())) for name, value in plan_of(recipe.rungs).env}
    wanted = recipe.variables or planned
    return {name: value for name, value in wanted.items() if environ.get(name) != value}


def changes(recipe: Recipe) -> list[Change]:
    """What the recipe changes, rung by rung."""
    return [
        Change(rung=r.name, level=r.level, contract=r.contract, changes=r.changes)
        for r in (BY_NAME[name] for name in recipe.rungs)
    ]
