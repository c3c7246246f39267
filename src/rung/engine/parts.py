"""What an output is made of: tensors and plain values, in whatever torch's pytree knows and in dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree


def parts(output: Any, name: str = "", inside: tuple[int, ...] = ()) -> tuple[list[tuple[str, Any]], list[str]]:
    """Every part that holds no other, by where it lies (`['hidden'].logits`), and the structure of what holds them, a line for
    each. Fields of a dataclass are parts like items of a dict; no other object is looked into. inside: the dataclasses around it."""
    leaves, spec = pytree.tree_flatten(output)
    found: list[tuple[str, Any]] = []
    form = [f"structure {spec}{f' in {name}' if name else ''}"]
    for where, leaf in zip(_names(output, len(leaves)), leaves, strict=True):
        fields = _fields(leaf) if id(leaf) not in inside else []
        if not fields:
            found.append((name + where, leaf))
            continue
        form.append(f"fields {', '.join(fields)}{f' in {name + where}' if name + where else ''}")
        for field in fields:
            held, structure = parts(getattr(leaf, field), f"{name}{where}.{field}", (*inside, id(leaf)))
            found += held
            form += structure if structure != [f"structure {PLAIN} in {name}{where}.{field}"] else []
    return found, form


def on_tensors(change: Callable[[torch.Tensor], torch.Tensor], output: Any) -> Any:
    """The output with `change` done to its tensors; dataclasses that hold any are copied."""

    def changed(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return change(leaf)
        fields = _fields(leaf)
        if not fields:
            return leaf
        other = object.__new__(type(leaf))  # Dynamo goes through this, and not through `copy.copy` of every dataclass
        for field in fields:
            object.__setattr__(other, field, on_tensors(change, getattr(leaf, field)))  # it may be frozen
        for name, more in getattr(leaf, "__dict__", {}).items():
            if name not in fields:
                object.__setattr__(other, name, more)
        return other

    return pytree.tree_map(changed, output)


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
