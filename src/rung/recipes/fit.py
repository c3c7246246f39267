"""Does a recipe fit what it is applied to? What it was made for, beside what is here. No torch is loaded."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dis import get_instructions
from functools import cache
from itertools import filterfalse
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING

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
READS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
OPTIONAL = ("ranks",)  # a recipe of one process does not tell of them
NO_LINEAR = "no linear layer that it can take (plain ones, without hooks, whose sizes are multiples of 16)"

USUAL_BUCKETS = "DistributedDataParallel made its buckets for the usual layout; call model.to(memory_format=torch.channels_last) before you wrap it"


def described(model: torch.nn.Module) -> str:
    """A model in words, equal for equal architectures: its class, parameters and tensors."""
    model = _bare(model)
    sizes = [p.numel() for p in model.parameters()]
    return f"{type(model).__name__} with {sum(sizes)} parameters in {len(sizes)} tensors"


def structure(model: torch.nn.Module) -> str:
    """A fingerprint of a model, equal for equal names, kinds, shapes and dtypes of all its modules, parameters and buffers.

    The kind of a module is its class: one that is installed by its name, and one of your own by its code, because a script, a notebook
    and `rung climb model.py:make` import one file under different names.
    """
    model = _bare(model)
    tensors = [*model.named_parameters(), *model.named_buffers()]
    kinds = {kind: _kind(kind) for kind in {type(module) for module in model.modules()}}
    lines = [f"{name} {kinds[type(module)]}" for name, module in model.named_modules()]
    lines += [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _bare(model: torch.nn.Module) -> torch.nn.Module:
    """What DistributedDataParallel wraps, where it does."""
    inner: torch.nn.Module = model.module if type(model).__name__ == "DistributedDataParallel" else model
    return inner


def _kind(kind: type) -> str:
    if _installed(kind):
        return f"{kind.__module__}.{kind.__qualname__}"
    code, seen = hashlib.sha256(), set[int]()
    for base in filterfalse(_installed, kind.__mro__):
        for name, value in sorted(vars(base).items()):
            # Of a static or class method, a property, or a cached one.
            function = getattr(value, "__func__", getattr(value, "fget", getattr(value, "func", value)))
            if isinstance(getattr(function, "__code__", None), CodeType):
                code.update(name.encode() + b"".join(_function(function, seen)))
            elif isinstance(value, (int, float, str)) and not name.startswith("__"):
                code.update(f"{name}={value!r}".encode())
    return f"{kind.__qualname__} {code.hexdigest()}"


def _installed(kind: type) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "builtins" or bool(file and _is_installed(file))


@cache
def _is_installed(file: str) -> bool:
    folders = (sysconfig.get_path(place) for place in ("stdlib", "platlib", "purelib"))
    return file.startswith("<frozen") or any(Path(file).is_relative_to(folder) for folder in folders)


def _function(function: FunctionType, seen: set[int]) -> Iterator[bytes]:
    """What a function does: its code and defaults, what it decorates, and the functions of your own that it calls by a name of its module or
    of another one. Each of them once: seen has their ids."""
    waiting = [function]
    while waiting:
        one = waiting.pop()
        seen.add(id(one))
        yield _code(one.__code__)
        for default in (one.__defaults__, one.__kwdefaults__):
            if default:
                yield _stable(default).encode()
        for other in _called(one):
            if id(other) not in seen:
                seen.add(id(other))
                waiting.append(other)


def _called(function: FunctionType) -> list[FunctionType]:
    """The function that it decorates, and those of your own in its closure, its module, and other modules of your own."""
    decorated = getattr(function, "__wrapped__", None)
    found: list[object] = []
    if _own(function):
        found += [cell.cell_contents for cell in function.__closure__ or () if _is_set(cell)]
        code = list(_codes(function.__code__))
        names = [name for one in code for name in one.co_names]
        # Not by each name: an attribute may be called like a function, which a class that is pickled by value is sent without.
        globals_ = [step.argval for one in code for step in get_instructions(one) if step.opname in READS_GLOBAL]
        read = [function.__globals__[name] for name in globals_ if name in function.__globals__]
        modules = [vars(one) for one in read if isinstance(one, ModuleType) and not _is_installed(_file(one))]
        found += [*read, *(module[name] for module in modules for name in names if name in module)]
    called = [one for one in found if isinstance(one, FunctionType) and (_own(one) or hasattr(one, "__wrapped__"))]
    return [decorated, *called] if isinstance(decorated, FunctionType) else called


def _own(function: FunctionType) -> bool:
    """By its file: a decorator's function has the name and the module of what it decorates."""
    return not _is_installed(function.__code__.co_filename)


def _is_set(cell: CellType) -> bool:
    """Whether the variable that it holds has a value yet."""
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _file(module: ModuleType) -> str:
    """Of what is built into Python, a place within it."""
    return getattr(module, "__file__", None) or "<frozen>"


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code, and that of the functions within it."""
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _codes(value)


def _stable(value: object) -> str:
    """A default as text that is the same in each process: without addresses, and sets in order."""
    if value is None or isinstance(value, (int, float, complex, str, bytes)):
        return repr(value)
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_stable, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_stable, value)))}}}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_stable(key)}: {_stable(held)}' for key, held in value.items())}}}"
    if type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device", "layout", "memory_format"):
        return repr(value)
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _code(code: CodeType) -> bytes:
    """What a function does: its instructions with the names and constants that they read, and not where it was written."""
    constants = (
        _code(value)
        if isinstance(value, CodeType)
        else repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value).encode()
        for value in code.co_consts
    )
    return b"\0".join([code.co_code, *constants, *(name.encode() for name in (*code.co_names, *code.co_varnames))])


def differences(made_for: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """A sentence for each of mode, device, torch, model and the number of ranks that is another one than a recipe was made for."""
    return [
        f"the recipe was made {'for' if key == 'mode' else 'on'} {key} {made_for[key]!r}, and this is {here[key]!r}: {why}; climb again to be sure."
        for key, why in WHY.items()
        if made_for.get(key) and here.get(key) and made_for[key] != here[key]
    ]


def untold(made_for: Mapping[str, str]) -> list[str]:
    """Which of mode, device, torch and model a recipe does not tell that it was made for, as one written by hand."""
    return [key for key in WHY if key not in OPTIONAL and not made_for.get(key)]


def impossible(
    names: Iterable[str],
    device: Device,
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | None = None,
    mode: str = "",
) -> dict[str, str]:
    """By name, a sentence for each rung that cannot be in effect on this device, or for this model, optimizer or mode where
    they are known."""
    found = {}
    for name in names:
        plan, why = plan_of([name]), ""
        if plan.capture and not device.is_gpu:
            why = "a CPU has no graphs to launch"
        elif plan.capture and model is not None and (hooked := _hooked(model)):
            why = f"{hooked} has a hook, whose Python no replay would run"
        if plan.attention and not device.is_gpu:
            why = "a CPU has no choice of attention kernels"
        if plan.cudnn_benchmark and not device.is_gpu:
            why = "convolutions on a CPU are not searched for"
        if plan.fused_optimizer and mode == "infer":
            why = "inference has no optimizer"
        if "bf16-weights" in plan.passes and (mode == "train" or optimizer is not None):
            why = "it is for inference: in training the weights are others at every step"
        if optimizer is not None:
            from rung.engine.optimizer import why_not_capturable, why_not_fused

            if plan.fused_optimizer:
                why = why_not_fused(optimizer, model)
            if plan.capture:
                why = why or why_not_capturable(optimizer)
        if plan.linears == "fp8" and not fp8_format(device.arch):
            why = f"{device.arch} has no units for products in FP8"
        if plan.linears and model is not None:
            from rung.engine.linears import suitable  # whoever has a model has torch

            if not suitable(model):
                why = f"{type(model).__name__} has {NO_LINEAR}"
        if not made_for(name, device.arch):
            why = f"{device.arch} has nothing of the kind"
        if plan.channels_last and model is not None:
            from rung.engine.channels_last import bucketed_weights  # whoever has a model has torch

            why = USUAL_BUCKETS if bucketed_weights(model) else why
        if plan.inductor and model is not None:
            from rung.engine.dynamo import inductor_settings  # whoever has a model has torch

            lacks = sorted(dict(plan.inductor).keys() - inductor_settings(tuple(dict(plan.inductor))).keys())
            why = f"this torch's Inductor has no setting {lacks[0]}" if lacks else why
        if plan != plan.of_one:
            from rung.engine.parallel import lacking  # an exchange is asked about where there is torch

            why = lacking(plan, model)
        if plan.switches and model is not None:
            from rung.engine.switches import switches

            has = switches(model)
            lacks = [switch for switch, _ in plan.switches if switch not in has]
            why = f"{type(model).__name__} has no switch of its own for its {lacks[0]}" if lacks else ""
        if why:
            found[name] = f"{name} is not in effect: {why}."
    return found


def _hooked(model: torch.nn.Module) -> str:
    from rung.engine.guards import ModelGuards  # whoever has a model has torch

    return ModelGuards(model).hooked


def found_nothing(name: str, skipped: Iterable[str]) -> str:
    """What to say of a rewrite that found nothing in the graph; skipped: what was left alone, and why, as the backend tells it."""
    why = next((f": {s[len(name) + 2 :]}" for s in skipped if s.startswith(f"{name}: ")), "")
    return f"{name} rewrote nothing{why}"


def of_other_shapes(recipe: Recipe) -> str:
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
