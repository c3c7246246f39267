"""The blocks of a model that repeat."""

from __future__ import annotations

import functools
import inspect
import types
from collections import Counter
from collections.abc import Iterator, Sequence

from torch import nn

from rung.engine.guards import PLAIN

LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
# Methods that no forward calls.
MAKING = ("__init__", "__repr__", "__setstate__", "extra_repr", "reset_parameters", "init_weights", "_init_weights")


def blocks(model: nn.Module) -> list[nn.Module]:
    """Of each list, or dictionary, of modules, the members of its most frequent class, if any two are of one kind; of nested ones the
    outermost: the layers of each tower, or of each stage where the stages differ. A list of torch's own layers has none: one product
    compiled by itself gains nothing."""
    found: list[nn.Module] = []
    seen: set[int] = set()

    def walk(module: nn.Module) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        alike = _alike(list(module.children())) if isinstance(module, LISTS) else []
        found.extend(alike)
        seen.update(map(id, alike))
        for child in module.children():
            walk(child)

    walk(model)
    return found


def kinds(found: Sequence[nn.Module]) -> int:
    """How many different ones there are: so often a block is compiled. By their classes and the shapes of their tensors, and by those of their
    attributes of which Dynamo keeps the value: how likely a block is dropped, say, or by how much a window is shifted."""
    return len(set(map(_kind, found)))


def layout(block: nn.Module) -> tuple[object, ...]:
    """Its class, and the shapes of its parameters."""
    return (type(block), *((name, tuple(p.shape)) for name, p in block.named_parameters()))


def _kind(block: nn.Module) -> tuple[object, ...]:
    buffers = ((name, tuple(b.shape)) for name, b in block.named_buffers())
    return (*layout(block), *buffers, *((name, type(m), *_settings(m)) for name, m in block.named_modules()))


def _settings(module: nn.Module) -> Iterator[tuple[str, object]]:
    """Plain attributes of a module that its forward may read. Whole numbers are left out: they number a model's layers, or give the sizes of
    its tensors."""
    read = _names(type(module))  # type: ignore[arg-type]  # a class has a hash, whatever mypy makes of its metaclass
    for name, value in vars(module).items():
        plain = value is None or isinstance(value, (bool, float, str))
        if name in read and (plain or (isinstance(value, tuple) and all(type(item) in PLAIN for item in value))):
            yield name, value


@functools.cache
def _names(kind: type[nn.Module]) -> frozenset[str]:
    """What the methods of a class name, those left out that make or describe a module."""
    own = [each for each in kind.__mro__ if each not in (nn.Module, object)]
    values = [getattr(value, "fget", value) for each in own for name, value in vars(each).items() if name not in MAKING]
    methods = [inspect.unwrap(value) for value in values if isinstance(value, types.FunctionType)]
    codes = [method.__code__ for method in methods if isinstance(method, types.FunctionType)]
    for code in codes:  # which grows: functions within functions
        codes += [inner for inner in code.co_consts if isinstance(inner, types.CodeType)]
    return frozenset({"training", *(name for code in codes for name in code.co_names)})


def _alike(members: Sequence[nn.Module]) -> list[nn.Module]:
    candidates = [m for m in members if _is_block(m)]
    if not candidates:
        return []
    most = Counter(map(type, candidates)).most_common(1)[0][0]
    alike = [m for m in candidates if type(m) is most]
    return alike if kinds(alike) < len(alike) else []


def _is_block(module: nn.Module) -> bool:
    composed = next(module.children(), None) is not None or not type(module).__module__.startswith("torch.nn.")
    return composed and not isinstance(module, LISTS) and next(module.parameters(), None) is not None
