"""One measurement at every point of a grid of options, or with every number of ranks; a point that fails is a record too."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from msgspec.structs import replace as with_fields

from rung.errors import RungError
from rung.launch import WorkerFailed
from rung.measure.summary import summarize
from rung.records.bench import Bench, Failed
from rung.side import Side


def sweep(side: Side, grid: Mapping[str, Sequence[str]], measure: Callable[[Side], Bench]) -> Iterator[Bench | Failed]:
    """`measure(side)` at every point of a grid of options, the last name varying fastest; once for no grid.

    Where the workload fails (the largest batch does not fit, say) the point's record has `status`, `error` and the
    `samples` until then, and the next point is measured. What is refused (an option that the target does not have) or
    stopped by Ctrl-C is raised after its record, and so is what fails without a grid.
    """
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        at = replace(side, options={**side.options, **point})
        yield from _tried(at, point, measure, alone=not grid)


def over_ranks(side: Side, counts: Sequence[int], measure: Callable[[Side, int], Bench]) -> Iterator[Bench | Failed]:
    """`measure(side, count)` for every number of ranks; what fails is recorded as by `sweep`."""
    for count in counts:
        yield from _tried(side, {"ranks": str(count)}, partial(measure, count=count), alone=False)  # type: ignore[call-arg]


def _tried(
    side: Side, point: dict[str, str], measure: Callable[[Side], Bench], alone: bool
) -> Iterator[Bench | Failed]:
    """alone: no other measurement follows, so that what fails is raised."""
    try:
        record = measure(side)
    except (RungError, KeyboardInterrupt) as error:
        yield with_fields(_failed(side.target, error), point=point)
        if alone or not isinstance(error, WorkerFailed) or error.kind == "refused":
            raise
    else:
        yield with_fields(record, point=point)


def _failed(target: str, error: BaseException) -> Failed:
    """What there is of a measurement that did not end: an error as every command tells it, and its samples, warm-up included."""
    samples = getattr(error, "samples", [])
    stopped = isinstance(error, KeyboardInterrupt)
    return Failed(
        target=target,
        status="interrupted" if stopped else "failed",
        error="stopped by Ctrl-C or a kill" if stopped else str(error),
        exit_code=error.exit_code if isinstance(error, RungError) else 130,
        samples=samples,
        summary=summarize(samples) if samples else None,
    )
