"""Functions on inputs under the clock, and afterwards: are they believed? What is verified need not be what was timed.

After the timing each function is called once more by the same calls, half of the inputs with new content in the same memory. A function
that keeps answers by its inputs' identity, or computes only where it is verified, gives old ones there.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from rung.hardware.device import Device, synchronize, to_device
from rung.measure.clock import launch, repeat, time_block
from rung.measure.without_launch import Graph, recorded
from rung.timing.function import Function
from rung.workload import call_model

BATCHES = 4  # of inputs, which take turns
SLOWER = 1.25  # times as long on new inputs, beside the function that it is compared with: data alone does less
ELSEWHERE = 2.0  # times as long until all of a GPU's streams are done, beside the function that it is compared with
WAITING = 20_000  # ns that waiting itself may take
CALLS, LONG, TRIES = 50, 2e8, 3  # back to back, and in so many nanoseconds; the fastest of a few tries counts


class OnInputs:
    """Functions on a few batches, which take turns: what remembers its last arguments gains nothing by that. calls: by letter; the first is
    the one that the others are compared with."""

    def __init__(self, calls: Mapping[str, Callable[..., Any]], inputs: Callable[[int], Any], device: Device) -> None:
        self._calls, self._inputs, self._device = calls, inputs, device
        self._batches = [to_device(inputs(seed), device) for seed in range(1, BATCHES + 1)]

    def of(self, letter: str) -> Callable[[], object]:
        """The function without arguments, for the timing."""
        call, turns = self._calls[letter], itertools.cycle(self._batches)
        return lambda: call_model(call, next(turns))

    def distrusted(self, sides: Mapping[str, Function], taken: Mapping[str, Sequence[float]]) -> tuple[str, str]:
        """The first side that is not believed, and why, as a sentence; two empty texts where there is none. taken: samples, nanoseconds of a
        call. Raises torch.OutOfMemoryError where copies of the results find no room."""
        from rung.verify.timed_functions import TimedFunctions

        first = next(iter(self._calls))
        judge = TimedFunctions(first, self._calls[first], self._inputs, self._device)
        on_new: dict[str, float] = {}
        hidden: dict[str, float] = {}
        for letter, side in sides.items():
            cases = self._cases(judge, letter) if judge.renew(self._batches) else []
            if isinstance(side._timer, Graph):
                cases.append(self._replayed(judge, letter))
            if wrong := judge.wrong(cases):
                return letter, f"{wrong[0]}: it is another result than where it was verified"
            if self._device.is_gpu:
                hidden[letter] = excess(side, statistics.median(taken[letter]))
                if hidden[letter] > ELSEWHERE * max(1.0, hidden[first]):
                    return letter, (
                        f"until all streams of the GPU are done, its calls take {hidden[letter]:.1f}× as long as they report: work on "
                        "another stream, or work that is put off"
                    )
            on_new[letter] = judge.on_new_inputs(self._calls[letter], self._batches)
            longer = on_new[letter] / max(1.0, on_new[first])  # below 1 is chance
            faster = min(taken[first]) / min(taken[letter])  # of calls that nothing interrupted, as `longer` is
            if longer > SLOWER and faster > 1 and math.log(faster / longer) < 0.5 * math.log(faster):
                return letter, (
                    f"on inputs that it has not seen before, a call takes {on_new[letter]:.1f}× as long: what it gained is "
                    "work that was not done again"
                )
        return "", ""

    def _cases(self, judge: Any, letter: str) -> list[Any]:
        """What a function gives on each batch, called as it was timed."""
        call, turns = self._calls[letter], itertools.cycle(self._batches)
        cases: list[Any] = []

        def watched() -> object:
            batch = next(turns)
            result = call_model(call, batch)
            cases.append(judge.case(batch, result))
            return result

        time_block(watched, len(self._batches), self._device)
        return cases

    def _replayed(self, judge: Any, letter: str) -> Any:
        """The same of a graph, as those that were timed: what is recorded has to compute, too. Of one call: several may write to one place.
        Where inputs of other seeds have other shapes, and so cannot be renewed, the results are erased before it is replayed, but for those
        that do not depend on the inputs."""
        call, batch = self._calls[letter], self._batches[1]
        results: list[Any] = []
        graph = recorded(lambda: call_model(call, batch), lambda: results.append(call_model(call, batch)), self._device)
        held = [] if judge.renew(self._batches) else erased(results[0], batch, judge.constants(self._batches))
        graph.replay()
        case = judge.case(batch, results[0])
        give_back(held)
        return case


def erased(results: Any, batch: Any, spared: Collection[int] = ()) -> list[tuple[Any, Any]]:
    """Overwrites the tensors among these results that do not lie in the batch's memory, but for those at the places `spared`. Gives them with
    what they held."""
    import torch
    from torch.utils import _pytree as pytree

    from rung.engine.parts import parts
    from rung.verify.perturb import distinct

    theirs = {t.untyped_storage().data_ptr() for t in filter(_is_dense, pytree.tree_leaves(batch))}
    held = []
    with torch.inference_mode():  # in which tensors that were made in it can be written, and all others, too
        tensors = [part for _, part in parts(results)[0] if isinstance(part, torch.Tensor)]
        for place, result in enumerate(tensors):
            if place in spared or not _is_dense(result):
                continue
            tensor = distinct(result.detach())
            if tensor.untyped_storage().data_ptr() in theirs:
                continue
            held.append((tensor, tensor.clone()))
            if tensor.is_floating_point() or tensor.is_complex():
                tensor.fill_(math.nan)
            else:
                tensor.copy_(tensor == 0)
    return held


def give_back(held: Sequence[tuple[Any, Any]]) -> None:
    """Writes into these tensors what they held: they may be the function's own, which a later call reads."""
    import torch

    with torch.inference_mode():
        for tensor, content in held:
            tensor.copy_(content)


def _is_dense(value: object) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_nested


def excess(side: Function, reported: float) -> float:
    """How many times as long calls take by a clock that waits for all streams of the GPU as they report, or as the host needs to launch
    them, whichever is longer. reported: nanoseconds of a call."""
    count = int(min(CALLS, max(1, LONG / max(reported, 1.0))))
    explained = max(reported, launch(side.call, side.device)) + WAITING / count
    return min(_waited(side, count) for _ in range(TRIES)) / explained


def _waited(side: Function, count: int) -> float:
    synchronize(side.device)
    begin = time.perf_counter_ns()
    repeat(count, side.call)
    synchronize(side.device)
    return (time.perf_counter_ns() - begin) / count
