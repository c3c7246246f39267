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
from typing import Any, Generic, TypeVar

import msgspec

from rung.errors import UsageError, need_torch
from rung.measure.stats import Interval
from rung.recipes.recipe import side_of
from rung.records import compare as records
from rung.records.bench import Bench
from rung.records.measured import Compared
from rung.records.record import plain
from rung.renamed import current_name
from rung.side import Side, named
from rung.timing.work import Told

__all__ = ["Comparison", "Measurement", "bench", "compare"]

Call = Callable[[], object]


R = TypeVar("R", bound=msgspec.Struct)


class _Result(Generic[R]):
    """What was measured: `document` is the record (`rung.records`). As the command's `--json` prints it: read a key by `result["key"]`,
    take all by `to_dict()`."""

    def __init__(self, document: R) -> None:
        self.document = document
        self._record = plain(document)

    def __getitem__(self, key: str) -> Any:
        return self._record[key]

    def to_dict(self) -> dict[str, Any]:
        """The whole record in plain values, ready for JSON."""
        return self._record

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        from rung.report.notebook import panel

        return panel(repr(self).strip("<>"), str(self).splitlines())

    @property
    def notes(self) -> list[str]:
        """What disturbed it, and what it cannot say."""
        return list(self._record.get("notes", self._record.get("warnings", [])))

    @property
    def environment(self) -> dict[str, Any]:
        """Device, versions and settings that it ran with."""
        return dict(self._record.get("environment", {}))


class Measurement(_Result[Bench]):
    """One workload or callable, measured; printing it shows what `rung bench` shows. Times are nanoseconds."""

    @property
    def median(self) -> float:
        return self.document.time.value

    @property
    def interval(self) -> Interval:
        """The median with its 95 % interval."""
        time = self.document.time
        return Interval(time.value, time.low, time.high)

    @property
    def samples(self) -> list[float]:
        """Every sample that was kept, in the order in which they were taken."""
        return list(self.document.samples)

    def rows(self) -> list[dict[str, Any]]:
        """One row a sample (`workload`, `step`, `ns`), for `polars.DataFrame` or `pandas.DataFrame`."""
        return [{"workload": self.document.workload, "step": k, "ns": ns} for k, ns in enumerate(self.samples)]

    def __str__(self) -> str:
        from rung.report.bench import bench_lines

        return "\n".join(bench_lines(self.document))

    def __repr__(self) -> str:
        from rung.report.units import duration_interval

        return f"<Measurement of {self.document.workload}: {duration_interval(self.document.time)}>"


class Comparison(_Result[records.Comparison | records.Ranking]):
    """Two or more, compared; printing it shows what `rung compare` shows. Sides are A, B and so on, as given."""

    @property
    def verdict(self) -> str:
        """Of B: faster, slower, same, inconclusive or not equal; of more than two sides: ranked, inconclusive or not
        equal."""
        return self.document.verdict

    @property
    def results_compared(self) -> bool:
        """Whether it was checked that all sides compute the same (`verify=True`). A verdict without that is of the times alone:
        what computes something else may well be faster."""
        return self.document.results_compared

    @property
    def speedup(self) -> Interval | None:
        """Time of A over time of B with its interval: above 1 where B is faster. None for more than two sides."""
        found = self._compared
        return Interval(**plain(found.speedup)) if found else None

    @property
    def _compared(self) -> Compared | None:
        """B against A, where there are two and they were timed."""
        return (self.document.comparison or None) if isinstance(self.document, records.Comparison) else None

    @property
    def ranks(self) -> dict[str, int]:
        """Of more than two sides: the place of each, shared by those that could not be told apart."""
        document = self.document
        return dict(document.ranking.ranks) if isinstance(document, records.Ranking) and document.ranking else {}

    @property
    def samples(self) -> dict[str, list[list[float]]]:
        """Nanoseconds a step, by side and restart."""
        restarts = self.document.restarts or []
        return {side.upper(): [r[side] for r in restarts] for side in (restarts[0] if restarts else ())}

    def rows(self) -> list[dict[str, Any]]:
        """One row a sample (`side`, `restart`, `step`, `ns`), for `polars.DataFrame` or `pandas.DataFrame`."""
        return [
            {"side": side, "restart": r, "step": k, "ns": ns}
            for side, restarts in self.samples.items()
            for r, samples in enumerate(restarts)
            for k, ns in enumerate(samples)
        ]

    def __str__(self) -> str:
        from rung.report.compare import compare_lines

        return "\n".join(compare_lines(self.document))

    def __repr__(self) -> str:
        from rung.report.units import interval

        found = self._compared
        unknown = "" if self.results_compared else "; results not compared"
        return f"<Comparison: {self.verdict}{', ' + interval(found.speedup) if found else ''}{unknown}>"


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

    _not_in_a_worker("rung.bench")
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

    _not_in_a_worker("rung.compare")
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


def _not_in_a_worker(name: str) -> None:
    """A file that measures whenever it is imported would start workers that import it, and so on."""
    from rung.launch import in_process_of_ours

    if in_process_of_ours():
        raise UsageError(f'{name} is called as this file is imported; put the call under `if __name__ == "__main__":`.')
