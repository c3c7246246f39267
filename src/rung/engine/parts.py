"""What inputs and outputs are made of: tensors and plain values, in whatever torch's pytree knows and in dataclasses; the shapes of their
tensors, and which dimensions vary between two calls."""

from __future__ import annotations

import dataclasses
from collections import UserDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree


def parts(output: Any, name: str = "", inside: tuple[int, ...] = ()) -> tuple[list[tuple[str, Any]], list[str]]:
    """Every part that holds no other, by where it lies (`['hidden'].logits`), and the structure of what holds them, a line for
    each. Fields of a dataclass are parts like items of a dict, and so are the rows of a nested tensor; no other object is looked into. inside: the dataclasses around it."""
    leaves, spec = pytree.tree_flatten(output)
    found: list[tuple[str, Any]] = []
    # A TreeSpec of a type that torch does not know by itself has more to say than fits in a sentence, on several lines.
    form = [f"structure {_spelled(output) or ' '.join(str(spec).split())}{f' in {name}' if name else ''}"]
    for where, leaf in zip(_names(output, len(leaves)), leaves, strict=True):
        if isinstance(leaf, torch.Tensor) and leaf.is_nested:  # its rows are of different shapes
            found += [(f"{name}{where}[{k}]", row) for k, row in enumerate(leaf.unbind())]
            form.append(
                f"nested tensor of {leaf.size(0)} rows, {leaf.layout}{f' in {name + where}' if name + where else ''}"
            )
            continue
        fields = _fields(leaf) if id(leaf) not in inside else []
        if not fields:
            found.append((name + where, leaf))
            continue
        form.append(f"fields {', '.join(fields)}{f' in {name + where}' if name + where else ''}")
        for field in fields:
            held, structure = parts(getattr(leaf, field), f"{name}{where}.{field}", (*inside, id(leaf)))
            found += held
            form += structure if structure != [f"structure * in {name}{where}.{field}"] else []
    return found, form


def _spelled(output: Any) -> str:
    """Its containers as Python writes them, with a star for each part; empty where one is no tuple, list or dict."""
    kind = type(output)
    if kind is dict:
        items = {key: _spelled(value) for key, value in output.items()}
        return "{" + ", ".join(f"{key!r}: {text}" for key, text in items.items()) + "}" if all(items.values()) else ""
    if kind is tuple or kind is list:
        texts = [_spelled(one) for one in output]
        if not all(texts):
            return ""
        inner = ", ".join(texts)
        return f"[{inner}]" if kind is list else f"({inner}{',' if len(texts) == 1 else ''})"
    return "*" if pytree.tree_structure(output) == PLAIN else ""


def on_tensors(change: Callable[[torch.Tensor], torch.Tensor], output: Any) -> Any:
    """The output with `change` done to its tensors, in containers of its own; dataclasses that hold any are copied. The common containers by
    hand: this is done in every step, and the pytree takes as long as a small model."""
    kind = type(output)
    if isinstance(output, torch.Tensor):
        return change(output)
    if kind is tuple or kind is list:
        return kind([on_tensors(change, one) for one in output])
    if kind is dict:
        return {name: on_tensors(change, one) for name, one in output.items()}
    if isinstance(output, tuple) and hasattr(output, "_fields"):
        return kind(*[on_tensors(change, one) for one in output])
    if kind in pytree.SUPPORTED_NODES:
        return pytree.tree_map(lambda leaf: on_tensors(change, leaf), output)
    fields = _fields(output)
    if not fields:
        return output
    other = object.__new__(kind)  # Dynamo goes through this, and not through `copy.copy` of every dataclass
    for field in fields:
        object.__setattr__(other, field, on_tensors(change, getattr(output, field)))  # it may be frozen
    if kind.__dictoffset__:  # else it has slots alone; Dynamo of torch 2.11 fails on asking it for its `__dict__`
        for name, more in output.__dict__.items():
            if name not in fields:
                object.__setattr__(other, name, more)
    return other


def _fields(leaf: Any) -> list[str]:
    """The names of a dataclass's fields that are set; none of anything else."""
    if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
        return []
    return [field.name for field in dataclasses.fields(leaf) if hasattr(leaf, field.name)]


def _names(output: Any, count: int) -> list[str]:
    try:
        return [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(output)[0]]
    except ValueError:  # a class was registered without names for what it holds
        return [f"[{k}]" for k in range(count)]


PLAIN = pytree.tree_structure(0)


Shapes = Any  # nested tuples of torch.Size, one a tensor; None for whatever holds no tensor


def shapes_of(item: Any) -> Shapes:
    """The shapes of all tensors in nested tuples, lists, dicts and dataclasses, as a key of a dict. A call asks it every time:
    no pytree, which takes several microseconds."""
    if isinstance(item, torch.Tensor):
        return None if item.is_nested else item.shape
    if isinstance(item, (tuple, list)):
        return tuple([shapes_of(one) for one in item])
    if isinstance(item, (dict, UserDict)):
        return tuple([(name, shapes_of(one)) for name, one in item.items()])
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return shapes_of(vars(item)) if hasattr(item, "__dict__") else None
    return None


def tensors_of(item: Any) -> Iterator[torch.Tensor]:
    """The tensors whose shapes `shapes_of` names, in its order."""
    if isinstance(item, torch.Tensor):
        if not item.is_nested:
            yield item
    elif isinstance(item, (tuple, list)):
        for one in item:
            yield from tensors_of(one)
    elif isinstance(item, (dict, UserDict)):
        yield from tensors_of(list(item.values()))
    elif dataclasses.is_dataclass(item) and not isinstance(item, type) and hasattr(item, "__dict__"):
        yield from tensors_of(vars(item))


def ranks(shapes: Shapes) -> Any:
    """What stays when only sizes change: the structure of the inputs, and the number of dimensions of each tensor."""
    if isinstance(shapes, torch.Size):
        return len(shapes)
    return tuple(map(ranks, shapes)) if isinstance(shapes, tuple) else shapes


def sizes(shapes: Shapes) -> list[torch.Size]:
    """Of each tensor."""
    if isinstance(shapes, torch.Size):
        return [shapes]
    return [size for one in shapes for size in sizes(one)] if isinstance(shapes, tuple) else []
