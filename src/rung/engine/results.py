"""What a recorded call gave, as it is handed out at every replay."""

from __future__ import annotations

from typing import Any

from rung.engine.input_guards import Inputs
from rung.engine.objects import rebuilt


class Result:
    """A result in containers and objects of its own at every call: what a caller does to one, such as to a cache that grows, is not done to the
    next. Objects, and tensors in them, that the recorded call was given and handed back are those of the call that is replayed; the graph
    keeps none of them.
    """

    def __init__(self, result: Any, given: Inputs) -> None:
        """result: of a call that was recorded with these inputs."""
        passed = (*given.objects, *given.held)
        self._places = [object() for _ in passed]
        self._recorded = rebuilt(result, {id(one): place for one, place in zip(passed, self._places, strict=True)})

    def handed_out(self, given: Inputs) -> Any:
        passed = (*given.objects, *given.held)
        return rebuilt(self._recorded, {id(place): one for one, place in zip(passed, self._places, strict=True)})
