"""The user's optimizer, remade with other switches."""

from __future__ import annotations

import inspect
import traceback
from functools import partial
from typing import Any

import torch

from rung.errors import WorkloadError
from rung.workload import Workload

BEFORE_STEPS = "a hook before each step"
# What may hang on an optimizer object: the attribute of torch's own that holds it, and what it is in words.
STEP_HOOKS = {
    "_optimizer_step_pre_hooks": BEFORE_STEPS,
    "_optimizer_step_post_hooks": "a hook after each step",
}
STATE_HOOKS = dict.fromkeys(
    (f"_optimizer_{which}_{when}_hooks" for which in ("state_dict", "load_state_dict") for when in ("pre", "post")),
    "a hook on its state dict",
)
TABLES = (torch.nn.Embedding, torch.nn.EmbeddingBag)
# torch's marks of a step that a scheduler counts; the second is an older torch's.
COUNTS = ("_wrapped_by_lr_sched", "_with_counter")


def make_optimizer(workload: Workload, model: torch.nn.Module) -> torch.optim.Optimizer | None:
    """The workload's own, of what is trained of a model; None in inference. Any object that steps and clears gradients will do."""
    if workload.mode != "train" or workload.optimizer is None:
        return None
    made = workload.optimizer([p for p in model.parameters() if p.requires_grad])
    kind = type(made).__name__
    if not callable(getattr(made, "step", None)) or not callable(getattr(made, "zero_grad", None)):
        raise WorkloadError(
            f"{workload.label}: optimizer(parameters) returned {kind}, which has no step() and zero_grad(); "
            "return a torch.optim.Optimizer, or an object that has both."
        )
    if _asks_for_more(type(made)):
        raise WorkloadError(f"{workload.label}: {_needs_a_closure(kind)}")
    return made


def _needs_a_closure(kind: str) -> str:
    return (
        f"{kind}.step() needs a closure, and optimizers of that kind cannot be driven: a step is one forward, one backward and step(); give an "
        "optimizer whose step needs no closure. With torch.optim.SGD you get a recipe for the forward and backward pass, which "
        f"rung.apply(model, recipe) gives to your loop with {kind}."
    )


def _asks_for_more(kind: type) -> bool:
    """Whether `step` of a class cannot be called without an argument."""
    try:
        _, *others = inspect.signature(kind.step).parameters.values()  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError):  # set on the object; a builtin without a signature
        return False
    return any(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in others)


def parameters_of(optimizer: Any) -> list[torch.nn.Parameter]:
    """What an optimizer holds, in the order of its groups; nothing where an object of another class has none, or there is no optimizer."""
    return [p for group in getattr(optimizer, "param_groups", ()) for p in group["params"]]


def own_step(optimizer: torch.optim.Optimizer) -> str:
    """What of an optimizer's step is the user's Python, in words: hooks, or a `step` that was put on the object. A scheduler
    puts one there, too, that only counts."""
    if found := _hooks(optimizer, STEP_HOOKS):
        return found
    step = vars(optimizer).get("step")
    return "" if step is None or any(hasattr(step, mark) for mark in COUNTS) else "a step() of its own"


def custom_state(optimizer: torch.optim.Optimizer) -> str:
    """What hangs on an optimizer object beside its groups, in words, and one made anew would not have; empty where nothing does."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return ""
    if found := own_step(optimizer) or _hooks(optimizer, STATE_HOOKS):
        return found
    if own := [name for name in vars(optimizer) if name != "step" and callable(getattr(type(optimizer), name, None))]:
        return f"a {own[0]}() of its own"
    if "step" in vars(optimizer):
        return "a learning-rate scheduler"
    # Adagrad makes its state before the first step.
    if any(float(state.get("step", 1)) > 0 for state in optimizer.state.values()):
        return "state of earlier steps"
    return ""


def _hooks(optimizer: torch.optim.Optimizer, kinds: dict[str, str]) -> str:
    return next((words for name, words in kinds.items() if getattr(optimizer, name, None)), "")


def accepts(optimizer: torch.optim.Optimizer, switch: str) -> bool:
    """Whether the optimizer's class is torch's own and takes the switch. A subclass may override `step`."""
    kind = type(optimizer)
    return kind.__module__.startswith("torch.optim") and switch in inspect.signature(kind).parameters


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    groups = getattr(optimizer, "param_groups", ())
    return bool(groups) and all(group.get("fused") for group in groups)


def why_not_fused(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None = None) -> str:
    """Why an optimizer cannot be had in its fused form, in words; empty where it can, or is. model: what it steps, where that is known."""
    if is_fused(optimizer):
        return ""
    if not accepts(optimizer, "fused"):
        return f"{type(optimizer).__name__} has no fused form"
    why = _would_lose(optimizer) or _unfused(optimizer)
    if not why and model is not None and _sparse_gradients(model):
        return "fused steps take no sparse gradients, and an embedding of the model has them"
    return why


def why_not_capturable(optimizer: torch.optim.Optimizer) -> str:
    """Why an optimizer's steps cannot be in a graph, in words; empty where they can."""
    if not can_be_captured(optimizer):
        return f"{type(optimizer).__name__} cannot be captured in a graph"
    return _would_lose(optimizer) or (_unfused(optimizer) if type(optimizer) is torch.optim.SGD else "")


def can_be_captured(optimizer: torch.optim.Optimizer) -> bool:
    """Capturable by a switch, or (plain SGD) without any step counter on the host."""
    return accepts(optimizer, "capturable") or type(optimizer) is torch.optim.SGD


def _sparse_gradients(model: torch.nn.Module) -> bool:
    """Whether a layer of the model gives its weight a sparse gradient."""
    return any(
        getattr(m, "sparse", False) is True and m.weight.requires_grad for m in model.modules() if isinstance(m, TABLES)
    )


def _would_lose(optimizer: torch.optim.Optimizer) -> str:
    found = custom_state(optimizer)
    if not found:
        return ""
    instead = " (if it clips gradients, give max_grad_norm= instead)" if found == BEFORE_STEPS else ""
    return f"its optimizer has {found}, which an optimizer made anew would lose{instead}"


def _unfused(optimizer: torch.optim.Optimizer) -> str:
    """Fused kernels take floating-point numbers alone, and have no gradient of their own."""
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return "fused steps are not differentiable, and it is asked to be"
    dtypes = (p.dtype for p in parameters_of(optimizer))
    other = next((dtype for dtype in dtypes if not dtype.is_floating_point), None)
    return f"fused steps take floating-point parameters alone, and one is {str(other)[6:]}" if other else ""


def rebuild(optimizer: torch.optim.Optimizer, *, fused: bool, capturable: bool) -> torch.optim.Optimizer:
    """The same optimizer, its groups and hyper-parameters kept, with the switches set where they are asked for.

    capturable: it reads its learning rate from memory, too, where that is a tensor. SGD does so in its fused form alone;
    those without a fused form do in the one for many tensors, which is torch's choice on a GPU by itself.
    """
    if fused and (why := why_not_fused(optimizer)):
        raise WorkloadError(f"{why}; leave fused-optimizer out.")
    if capturable and (why := why_not_capturable(optimizer)):
        raise WorkloadError(f"{why}; leave capture out.")
    switches: dict[str, Any] = {}
    if (fused or (capturable and type(optimizer) is torch.optim.SGD)) and not is_fused(optimizer):
        switches |= {"fused": True, "foreach": False if accepts(optimizer, "foreach") else None}
    if capturable and accepts(optimizer, "capturable"):
        switches["capturable"] = True
        if not accepts(optimizer, "fused"):
            switches["foreach"] = True
    if not switches:
        return optimizer
    known = inspect.signature(type(optimizer)).parameters
    groups = [{**group, **switches} for group in optimizer.param_groups]
    defaults = {k: v for k, v in {**optimizer.defaults, **switches}.items() if k in known}
    made = type(optimizer)(groups, **defaults)
    made.register_load_state_dict_pre_hook(partial(_switched, switches))
    return made


def update(optimizer: Any, model: torch.nn.Module, max_grad_norm: float | None) -> torch.Tensor | None:
    """Steps an optimizer on the gradients that a model has. max_grad_norm: as of a Workload; then it returns the norm that they had. Nothing
    waits for the GPU, so all of it may be recorded in a graph."""
    norm = None
    if max_grad_norm is not None:
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of weights that ranks share out
    start_momenta(optimizer)
    try:
        optimizer.step()
    except Exception as error:
        raised_at = traceback.extract_tb(error.__traceback__)[-1].line or ""
        if "closure" in f"{error} {raised_at}":  # sharpness-aware minimization asserts that it has one
            raise WorkloadError(_needs_a_closure(type(optimizer).__name__)) from error
        raise
    return norm


def start_momenta(optimizer: torch.optim.Optimizer) -> None:
    """Before a step: torch's fused SGD takes momenta for all parameters of a group that have a gradient, or for none, and stops where one
    has its first gradient later than others (a layer that is unfrozen, an expert). It is given the momentum that makes this its first."""
    if not isinstance(optimizer, torch.optim.SGD):
        return
    for group in optimizer.param_groups:
        if not (group["fused"] and group["momentum"]):
            continue
        stepped = [p for p in group["params"] if p.grad is not None]
        late = [p for p in stepped if optimizer.state.get(p, {}).get("momentum_buffer") is None]
        for p in late if len(late) < len(stepped) else ():
            slope = -p.grad if group["maximize"] else p.grad
            first = slope.add(p.detach(), alpha=group["weight_decay"])
            optimizer.state[p]["momentum_buffer"] = first.mul_(group["dampening"] / group["momentum"])


def _switched(switches: dict[str, Any], optimizer: torch.optim.Optimizer, given: dict[str, Any]) -> dict[str, Any]:
    """A state dict that is to be loaded, with the switches of the optimizer that takes it: of one without them, say from a run without the
    recipe, torch takes their absence, too. It says where counters of steps go, on the host or in the GPU's memory."""
    return {**given, "param_groups": [{**group, **switches} for group in given["param_groups"]]}
