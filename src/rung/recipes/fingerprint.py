"""Which model a recipe was made for: the model in words, and a fingerprint of its structure. No torch is loaded."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Iterator
from dis import get_instructions
from functools import cache
from itertools import filterfalse
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

READS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")


def describe_model(model: torch.nn.Module) -> str:
    """A model in words, equal for equal architectures: its class, parameters and tensors."""
    model = _bare(model)
    sizes = [p.numel() for p in model.parameters()]
    return f"{type(model).__name__} with {sum(sizes)} parameters in {len(sizes)} tensors"


def structure_hash(model: torch.nn.Module) -> str:
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
