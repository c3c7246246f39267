"""The Python face of `rung bench` and `rung compare`: the same functions, on targets and on callables.

print(rung.bench(lambda: model(x)))
result = rung.compare(old, new)
if result.verdict == "slower": ...
polars.DataFrame(result.rows())
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rung.errors import UsageError, need_torch
from rung.launch import not_in_a_worker
from rung.recipes.recipe import side_of
from rung.renamed import current_name
from rung.results import Comparison, Measurement
from rung.side import Side, named
from rung.timing.work import SuppliedWork

__all__ = ["Comparison", "Measurement", "bench", "compare"]

Call = Callable[[], object]


def bench(
    what: str | Call,
    options: Mapping[str, Any] | None = None,
    *,
    rungs: Sequence[str] = (),
    recipe: str | Path | None = None,
    call: bool = False,
    name: str | None = None,
    preset: str = "proper",
    precision: float = 0.005,
    seconds: float = 30.0,
    device: str | None = None,
    deadline: float | None = None,
    timer: str = "auto",
    cold: bool = False,
    flops: float | None = None,
    flops_in: str | None = None,
    nbytes: float | None = None,
) -> Measurement:
    """How long one step or call takes::

        print(rung.bench(lambda: model(x)))

    It measures until the 95 % interval of the median lies within `precision` of the median, or until `seconds` are spent. A GPU is
    drained before and after what is timed.

    Args:
        what: a target, as `"model.py:make"`, which runs in a fresh process; or a callable without arguments, which runs in this one.
        options: of a target: values of the options that its function takes.
        rungs, recipe: of a target: it is measured under these rungs, or under the recipe of this file.
        call: the target names a plain function. That function is timed, not a workload.
        name: of a callable, in reports.
        preset: sanity, quick, proper or compile.
        precision: half the width of the interval to reach, as a share of the median.
        seconds: the most to spend.
        device: cpu, cuda or cuda:N. By default the best there is for a workload, and the one that a callable is seen to use.
        deadline: seconds that a target may take to compile.
        timer: on a GPU. `events` times calls as they are launched; `graph` and `batch` hide the launches; `auto` hides them for calls
            below 100 µs.
        cold: the caches are overwritten before each call.
        flops: floating-point operations of one step, where you know them. Those in matrix products of a workload are counted otherwise.
        flops_in: the precision of these: fp64, fp32, tf32, fp16, bf16 or fp8.
        nbytes: bytes that one step reads and writes, where you know them.

    Returns:
        Times in nanoseconds; with FLOP or bytes, their rates and shares of the peaks of the device.

    Raises:
        UsageError: where it was asked for wrongly.
        WorkloadError: where a target fails; its `samples` are those that were taken until then.

    What a callable raises is raised as it is.
    """
    from rung.timing.bench import bench as target_bench
    from rung.timing.bench import bench_here

    not_in_a_worker("rung.bench")
    _check_times(seconds=seconds, deadline=deadline)
    _check_share("precision", precision)
    how: dict[str, Any] = {"preset": preset, "precision": precision, "seconds": seconds, "device": device,
                           "timer": timer, "cold": cold, "work": SuppliedWork(flops, flops_in, nbytes)}  # fmt: skip
    if callable(what):
        if options or rungs or recipe or call:
            raise UsageError("a callable takes no options, rungs or recipe; pass it as `lambda: f(x)`.")
        return Measurement(bench_here(what, name, **how))
    if not call:  # a plain function may need none
        need_torch()
    side = _side(what, options, rungs, recipe, call)
    return Measurement(target_bench(side, deadline=deadline, recipe=Path(recipe) if recipe else None, **how))


def compare(
    *what: str | Side | Call,
    options: Mapping[str, Any] | None = None,
    call: bool = False,
    fresh: bool = False,
    inputs: Callable[[int], Any] | None = None,
    gradients: bool = False,
    margin: float = 0.01,
    verify: bool = False,
    seconds: float | None = None,
    device: str | None = None,
    deadline: float = 900.0,
    say: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Which of two or more is faster::

        result = rung.compare(old, new, inputs=make)
        assert result.verdict != "slower"

    Targets run in fresh processes, which are restarted together until the answer is clear. Callables alternate in this process. That is
    quick, but it leaves out how much one process differs from another.

    Args:
        what: all callables; or all targets, each as text or as a `rung.Side` (a target with options, rungs and variables).
        options: of every target.
        call: the targets name plain functions.
        fresh: runs callables as targets are run. A fresh process must be able to import them.
        inputs: makes the arguments of the callables from a seed: a tensor, a tuple or list (by position) or a dict (by name). It is
            verified first that all compute what the first does: against float64, within a few times the error of the first.
        gradients: with `inputs`: those of all floating-point arguments are verified, too.
        margin: the share of a time within which two count as the same.
        verify: of targets: shows first that all compute what the first does.
        seconds: the most to spend. By default 20 for callables; targets run until the answer is clear. A restart that was begun ends.
        device: cpu, cuda or cuda:N; by default the best there is.
        deadline: seconds that a target may take to compile.
        say: is called with a line for each step of the comparison.

    Returns:
        The verdict with its evidence. What computes something else than the first has the verdict "not equal".

    Raises:
        UsageError: where it was asked for wrongly.
        WorkloadError: where a target fails.
    """
    from rung.timing.compare import compare as compare_sides
    from rung.timing.compare_here import by_name, compare_here

    not_in_a_worker("rung.compare")
    _check_times(seconds=seconds, deadline=deadline)
    _check_share("margin", margin)
    calls = [w for w in what if callable(w)]
    if calls and len(calls) < len(what):
        raise UsageError("callables and targets cannot be compared with each other; give one kind.")
    if calls and not fresh:
        if options:
            raise UsageError("callables take no options: leave `options` out.")
        if verify and not inputs:
            raise UsageError("to verify callables, give inputs=, a function that makes their arguments from a seed.")
        if inputs:
            need_torch()
        return Comparison(
            compare_here(
                by_name(tuple(calls)),
                margin=margin,
                seconds=seconds or 20.0,
                device=device,
                inputs=inputs,
                gradients=gradients,
            )
        )
    if inputs or gradients:
        raise UsageError(
            "inputs= and gradients= are for callables in this process; targets say themselves what they run on."
        )
    sides = [_importable(w) if callable(w) else _as_side(w, options, call) for w in what]
    if not all(side.call for side in sides):
        need_torch()
    found = compare_sides(
        *sides, device=device, margin=margin, verify=verify, budget=seconds, deadline=deadline, say=say
    )
    return Comparison(found)


def _check_times(**times: float | None) -> None:
    """What is a time for the command line has to be one here."""
    for name, value in times.items():
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{name}={value} is not a time; give a number of seconds above 0.")


def _check_share(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise UsageError(f"{name}={value} is not a share between 0 and 1; 0.01 is 1%.")


def _side(target: str, options: Mapping[str, Any] | None, rungs: Sequence[str], recipe: Any, call: bool) -> Side:
    typed = {name.replace("_", "-"): str(value) for name, value in (options or {}).items()}
    if recipe and rungs:
        raise UsageError("give a recipe or rungs, not both.")
    return side_of(named(target), typed, rungs, Path(recipe) if recipe else None, call=call)


def _as_side(what: str | Side, options: Mapping[str, Any] | None, call: bool) -> Side:
    if isinstance(what, Side):
        return replace(what, rungs=tuple(map(current_name, what.rungs)))
    return _side(what, options, (), None, call)


def _importable(call: Call) -> Side:
    """A function as a target that a fresh process can import."""
    name, module = getattr(call, "__qualname__", ""), getattr(call, "__module__", "")
    if getattr(sys.modules.get(module), name, None) is not call:
        shown = name or type(call).__name__
        raise UsageError(
            f"{shown} cannot be imported by a fresh process; define it at the top of a file, or leave out fresh=True."
        )
    where = str(getattr(sys.modules["__main__"], "__file__", "")) if module == "__main__" else module
    if not where.endswith(".py") and module == "__main__":
        raise UsageError(
            f"{name} was typed into an interpreter, which a fresh process cannot import; put it in a file."
        )
    return replace(Side(f"{where}:{name}", call=True), env={"PYTHONPATH": ":".join(p or "." for p in sys.path)})
