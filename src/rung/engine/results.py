"""What a recorded call gave, as it is handed out at every replay."""

from __future__ import annotations

from typing import Any

from torch import nn

from rung.engine.guards import INNER, UNREAD
from rung.engine.input_guards import Inputs
from rung.engine.objects import reached, rebuilt


class Result:
    """A result in containers and objects of its own at every call: what a caller does to one, such as to a cache that grows, is not done to the
    next. Objects, and tensors in them, that the recorded call was given and handed back are those of the call that is replayed; the graph
    keeps none of them. What the model had in its attributes is handed out itself.
    """

    def __init__(self, result: Any, given: Inputs, own: dict[int, Any]) -> None:
        """result: of a call that was recorded with these inputs; own: by its `id`, what the model had before."""
        passed = (*given.objects, *given.held)
        self._places = [object() for _ in passed]
        ids = set(map(id, passed))
        self._own = {place: one for place, one in reached([result]).items() if place in own and place not in ids}
        stand_ins = {id(one): place for one, place in zip(passed, self._places, strict=True)}
        self._recorded = rebuilt(result, {**self._own, **stand_ins})

    def handed_out(self, given: Inputs) -> Any:
        passed = (*given.objects, *given.held)
        stood_for = {id(place): one for one, place in zip(passed, self._places, strict=True)}
        return rebuilt(self._recorded, {**self._own, **stood_for})


def own_objects(model: nn.Module) -> dict[int, Any]:
    """By their `id`, the containers and objects in attributes of a model's modules."""
    tables = [vars(module).items() for module in model.modules()]
    return reached(held for table in tables for name, held in table if name not in (*INNER, *UNREAD))
