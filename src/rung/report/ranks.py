"""Several ranks on the page of a trace: a row each, and where the time of a step goes over all of them."""

from __future__ import annotations

from collections.abc import Callable

from rung.analysis.kernel_names import readable
from rung.records.analyze import Across, Breakdown, Busy, OfRank, Overview
from rung.report import breakdowns, units
from rung.report.tables import shortened

TOP = 8
MOST = 8
_COLUMNS: tuple[Callable[[Busy], int], ...] = (
    lambda row: row.computation_ns,
    lambda row: row.exposed_communication_ns,
    lambda row: row.exposed_memcpy_ns,
    lambda row: row.idle_ns,
)
_HEADS = (
    "                         exposed  exposed",
    "rank      step  compute    comm.   copies     idle  bottleneck",
)


def mean_of_ranks(across: Across, steps: int) -> Breakdown:
    """The breakdown of a step in the mean of the ranks."""
    return Breakdown(
        clock=across.clock,
        steps=steps,
        step_ns=across.step_ns,
        parts={row.part: row.mean_ns for row in across.parts},
        kernels=across.kernels,
        launches=across.launches,
        gemms=across.gemms,
        bottleneck=across.bottleneck,
        share=across.share,
    )


def rank_lines(found: Overview, width: int) -> list[str]:
    """A row a rank: its step, what share of it its GPU does what, and its bottleneck; of many ranks those that are idle
    most and least.
    """
    parts = [part for part in found.parts if part.timeline]
    if not parts:
        return []
    ordered = sorted(parts, key=lambda part: -_share(part, _COLUMNS[-1]))
    shown = parts if len(parts) <= MOST else [*ordered[: MOST // 2], *ordered[-MOST // 2 :]]
    wide = max(4, *(len(str(part.rank)) for part in shown))
    lines = [head[:4].rjust(wide) + head[4:] for head in _HEADS]
    for part in shown:
        record = part.breakdown or Breakdown(parts={})
        cells = [f"{_share(part, column) * 100:.1f}%".rjust(7) for column in _COLUMNS]
        step, key = units.duration(record.step_ns), record.bottleneck or ""
        most = f"{breakdowns.part(key, record.clock)} {units.percent(round(record.share or 0.0, 2))}"
        lines.append(f"{part.rank!s:>{wide}}  {step:>8}  {'  '.join(cells)}  {most if key else ''}".rstrip())
    left = len(parts) + max(0, found.ranks - len(found.parts)) - len(shown)
    return [*lines, f"... and {left} more ranks: --show timeline"] if left else lines


def across_lines(record: Across, steps: int, width: int, top: int | None = None) -> list[str]:
    """Where the time of a step goes in the mean of the ranks, the least and the most, and the kernels that take most.

    top: how many kernels, 0 for all that the record has; left out, few.
    """
    what = f"A step, the mean of {steps}," if steps > 1 else "The recording,"
    step_ns = record.step_ns or 1.0
    head = f"{what} over {record.ranks} rank{'s' if record.ranks > 1 else ''}: {units.duration(record.step_ns)}"
    bars = 16 if width >= 100 else 0
    lines = [f"{head:<{39 + bars}}  {'least':<19}  most"]
    for row in record.parts:
        share = row.mean_ns / step_ns
        if share < 0.01 and row.most_ns / step_ns < 0.01:
            continue
        bar = f"{'█' * max(1, round((bars - 2) * min(share, 1.0))):<{bars}}" if bars else ""
        title = breakdowns.part(row.part, record.clock)
        least, most = (
            f"{units.duration(ns)} (rank {rank})"
            for ns, rank in ((row.least_ns, row.least_rank), (row.most_ns, row.most_rank))
        )
        lines.append(f"  {title:<21}{units.duration(row.mean_ns):>8}  {share:>4.0%}  {bar}{least:<19}  {most}")
    if counted := breakdowns.per_step(mean_of_ranks(record, steps)):
        lines.append(f"  {counted}.")
    for note in record.notes:
        lines += units.wrapped(f"Note: {units.clean(note)}", width, "  ", "    ")
    lines.append("  most time:")
    shown = record.top[: TOP if top is None else top or None]
    kinds = breakdowns.kind_column((kernel.category for kernel in shown), record.clock)
    for kind, kernel in zip(kinds, shown, strict=True):
        start = f"  {units.duration(kernel.mean_ns):>9}  {kernel.mean_ns / step_ns:>4.0%}  {kind} {units.count(kernel.mean_count):>6} x  "
        some = f" (on {kernel.ranks} of {record.ranks} ranks)" if kernel.ranks < record.ranks else ""
        lines.append(
            start + shortened(readable(units.one_line(kernel.name)), max(20, width - len(start) - len(some))) + some
        )
    return lines


def _share(part: OfRank, of: Callable[[Busy], int]) -> float:
    """Of all of the rank's GPUs."""
    total: int = sum(row.total_ns for row in part.timeline)
    return float(sum(map(of, part.timeline))) / max(1, total)
