"""The Python face of `rung bench` and `rung compare`: the same functions, on targets and on callables.

print(rung.bench(lambda: model(x)))
result = rung.compare(old, new)
if result.verdict == "slower": ...
polars.DataFrame(result.rows())
"""

from __future__ import annotations

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
from rung.timing.work import Told

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
    """How long a target (`model.py:make`, in a fresh process) or a callable without arguments (in this one) takes.

    Runs until the 95 % interval of the median lies within `precision` (a share) of it, or for `seconds`. options,
    rungs, recipe: of a target, as on the command line; call: the target names a plain function, to be timed itself;
    name: what a callable is called in reports; preset: sanity, quick, proper or compile; device: cpu, cuda or cuda:N
    (default: the best for a workload, and for a callable the one that it is seen to use); deadline: seconds that a
    target may take for compiling; timer: on a GPU, `events` (as launched), `graph` or `batch` (launches hidden), or
    `auto`, which hides them for calls under 100 us; cold: the caches are written over before every call;
    flops, nbytes: what one step computes, and reads and writes, where you know it: FLOP/s and bytes/s are then reported with
    their shares of the chip's peaks; flops_in: the precision of the FLOP (fp64, fp32, tf32, fp16, bf16, fp8). The matrix
    products of a workload are counted unless flops are given.

    A GPU is drained before and after what is timed. Raises UsageError where it was asked for wrongly; WorkloadError
    where a target fails, with the `samples` taken until then; what a callable raises is raised as it is.
    """
    from rung.timing.bench import bench as target_bench
    from rung.timing.bench import bench_here

    not_in_a_worker("rung.bench")
    how: dict[str, Any] = {"preset": preset, "precision": precision, "seconds": seconds, "device": device,
                           "timer": timer, "cold": cold, "work": Told(flops, flops_in, nbytes)}  # fmt: skip
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
    """Which of two or more is faster: targets, `rung.Side`s (a target with options, rungs, variables) or callables.

    Targets run in fresh processes of each, restarted together until the answer is clear. Callables alternate in this
    process, which is quick but leaves out what differs between processes; fresh=True runs them as targets do, which
    needs functions that a fresh process can import. inputs: callables take arguments, which this makes from a seed (a tensor; a tuple
    or list, by position; a dict, by name), and it is verified first that all compute what the first does, against float64 and
    within a few times its own error; with gradients=True, those of all floating-point inputs, too.
    options: of every target; call: the targets name plain functions;
    margin: the share within which two count as the same; verify: first show that all compute what the first does;
    seconds: the most to spend (callables: 20 by default; targets: until it is clear, and the restart under way ends).
    """
    from rung.timing.compare import compare as compare_sides
    from rung.timing.compare_here import by_name, compare_here

    not_in_a_worker("rung.compare")
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
