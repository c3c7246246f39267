"""The structure of a batch as a key, also where torch's own cannot be hashed (2.6)."""

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from rung.ladder.execution.parts import tree_key

BATCHES: list[Any] = [
    1,
    [1],
    (1,),
    (1, 2),
    {"a": 1, "b": [2, 3]},
    {"a": 1, "c": [2, 3]},
    ({"a": (1, {"b": 2})},),
    {"a": (1, 2), "b": 3},
]


class Unhashable:
    """A spec as torch 2.6 has it."""

    def __init__(self, spec: Any) -> None:
        self.type, self.context = spec.type, spec.context
        self.children_specs = (
            [Unhashable(spec.child(k)) for k in range(spec.num_children)]
            if hasattr(spec, "child")
            else [Unhashable(c) for c in spec.children_specs]
        )

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("wrap", [lambda spec: spec, Unhashable], ids=["torch's own", "one that has no hash"])
def test_equal_structures_have_equal_keys_and_others_have_others(wrap: Any) -> None:
    def key(batch: Any) -> Any:
        return tree_key(wrap(pytree.tree_flatten(batch)[1]))

    assert len({key(batch) for batch in BATCHES}) == len(BATCHES)
    assert key({"x": torch.ones(1)}) == key({"x": torch.ones(2)})
