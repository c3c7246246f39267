"""The blocks of a model that repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from torch import nn

LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)


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


def _kind(block: nn.Module) -> tuple[object, ...]:
    shapes = [(name, tuple(t.shape)) for named in (block.named_parameters, block.named_buffers) for name, t in named()]
    return (*shapes, *((name, type(m), *_settings(m)) for name, m in block.named_modules()))


def _settings(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Plain attributes of a module. Whole numbers are left out: they number a model's layers, and no forward reads that, or give the
    sizes of its tensors."""
    for name, value in vars(module).items():
        plain = value is None or isinstance(value, (bool, float, str))
        if plain or (isinstance(value, tuple) and all(isinstance(item, (int, float, str)) for item in value)):
            yield name, repr(value)


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
