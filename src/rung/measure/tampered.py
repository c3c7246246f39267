"""Are the clocks the real ones? What is timed runs in the process that times it, and could change them for everybody."""

from __future__ import annotations

import os
import sys
import sysconfig
import time
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import rung
from rung.errors import WorkloadError
from rung.measure import as_launched, clock, interleave, timers, without_launch

_CLOCKS = (
    "perf_counter_ns",
    "perf_counter",
    "monotonic_ns",
    "monotonic",
    "process_time_ns",
    "process_time",
    "time_ns",
    "time",
)
# What a GPU is timed with: of torch.cuda, and of classes there.
_OF_TORCH = ("synchronize", "current_stream", "Event", "Stream", "CUDAGraph")
_METHODS = ("record", "wait", "query", "synchronize", "elapsed_time", "replay")
_OURS = (as_launched, clock, interleave, timers, without_launch)
_FOLDERS = os.path.dirname(rung.__file__) + os.sep, sysconfig.get_path("stdlib") + os.sep


def refuse_tampered(name: str) -> None:
    """Raises WorkloadError where a clock, or what asks it, is another than Python's, torch's or Rung's own. name: of what is timed.
    Takes microseconds where nothing has changed since it was asked last."""
    cuda = "torch.cuda" in sys.modules
    if (
        _good.get("cuda") == cuda
        and all(place.get(what) is made for place, what, made in _good["places"])
        and all(len(place) == size for place, size in _good["sizes"])
    ):
        return
    for what in tampered():
        raise WorkloadError(
            f"{name} cannot be timed: {what} is not the real one in this process. A function that is measured, or the file "
            "that it is in, replaced it; leave it as it is."
        )
    places = [(place, what, place[what]) for _, place, names in _asked() for what in names if what in place]
    places += [(place, what, made) for _, place, first in _FIRST for what, made in first.items()]
    _good.update(cuda=cuda, places=places, sizes=[(place, len(place)) for _, place, _ in _FIRST])


_good: dict[str, Any] = {}  # what was found to be the real ones


def tampered() -> list[str]:
    """What of the clocks was replaced, by name."""
    found = []
    for label, place, names in _asked():
        for what in (name for name in names if name in place):
            if not _real(label, what, place[what]):
                found.append(f"{label}.{what}")
    for label, place, first in _FIRST:
        now = _tools(place)
        found += [f"{label}.{what}" for what in {**first, **now} if now.get(what) is not first.get(what)]
    return list(dict.fromkeys(found))


def _tools(place: Mapping[str, Any]) -> dict[str, Any]:
    """What can be called there, and the clock's module: also what stands in the place of a function and is none, such as a partial."""
    return {name: made for name, made in place.items() if name == "time" or callable(made)}


def _ours() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Rung's modules that tell times, and the classes in them."""
    for module in _OURS:
        yield module.__name__, vars(module)
        for name, made in list(vars(module).items()):
            if isinstance(made, type) and made.__module__ == module.__name__:
                yield f"{module.__name__}.{name}", vars(made)


# As they are where `rung.measure` is first imported, before any of its modules can be changed.
_FIRST = [(label, place, _tools(place)) for label, place in _ours()]


def _asked() -> Iterator[tuple[str, Mapping[str, Any], Iterable[str]]]:
    """Python's and torch's modules and classes that tell times, with what in them is looked at."""
    yield "time", vars(time), _CLOCKS
    if cuda := sys.modules.get("torch.cuda"):
        yield "torch.cuda", vars(cuda), _OF_TORCH
        for kind in _OF_TORCH:
            if isinstance(made := vars(cuda).get(kind), type):
                yield f"torch.cuda.{kind}", vars(made), _METHODS


def _real(label: str, name: str, made: Any) -> bool:
    if label == "time":
        return type(made) is types.BuiltinFunctionType and (made.__module__, made.__name__) == ("time", name)
    if isinstance(made, type):
        return made.__module__.startswith("torch.")
    torch = os.path.dirname(os.path.dirname(sys.modules["torch.cuda"].__file__ or "")) + os.sep
    return not isinstance(made, types.FunctionType) or made.__code__.co_filename.startswith((*_FOLDERS, torch))
