"""A step of several ranks on the terminal: what each did, what their exchange costs, and how a job scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import UNSET

from rung.records.bench import Bench, Failed, OverRanks
from rung.records.measured import Environment
from rung.report import units
from rung.report.tables import markdown

T = TypeVar("T")
MOST = 8  # ranks that are shown; of more, the slowest and the fastest
PARALLEL = {
    "ddp": "DDP: each rank has all weights",
    "fsdp2": "FSDP2: weights are sharded",
    "own": "as the workload does it",
    "none": "side by side, without exchange",
}


def ranks_line(seen: OverRanks) -> str:
    """How many there are, where, and how they work together."""
    hosts = len({rank.host for rank in seen.ranks})
    where = f"on {hosts} hosts" if hosts > 1 else "on one host"
    return f"{len(seen.ranks)} {where}, {PARALLEL.get(seen.parallel, units.clean(seen.parallel))}"


def threads_line(environment: Environment) -> str:
    """How many threads each rank has on a CPU, seldom as many as one process has alone; empty on a GPU."""
    if environment.device.kind != "cpu" or environment.threads is UNSET:
        return ""
    return f"{environment.threads} in each rank (set OMP_NUM_THREADS for others; torchrun sets 1 where it is not set)"


def over_ranks_lines(seen: OverRanks) -> list[str]:
    """A row a rank, and below what the exchange costs."""
    lines = ["", *aligned(rank_rows(seen)), *ranks_left_out(seen.ranks)]
    lines += ["", "alone: a step without exchange; last: the share of the steps that this rank ended last"]
    watts = [rank.power for rank in seen.ranks if rank.power is not None]
    if len(watts) == len(seen.ranks):
        lines.append(f"power {units.digits(sum(watts))} W over all ranks, while steps were timed")
    if seen.exposed:
        lines.append(f"exposed exchange {_signed(seen)}: what a step takes longer than the slowest rank's alone")
    if seen.imbalance is not None:
        slowest = max(
            (rank for rank in seen.ranks if rank.alone), key=lambda rank: rank.alone.value if rank.alone else 0.0
        )
        lines.append(
            f"imbalance {units.percent(seen.imbalance)}: rank {slowest.rank} alone takes so much longer than the mean rank"
        )
    return lines


def rank_rows(seen: OverRanks) -> list[tuple[str, ...]]:
    """A heading, and a row a rank. Power and clock have a column where a sensor said them."""
    powered = any(rank.power is not None for rank in seen.ranks)
    clocked = any(rank.clock is not None for rank in seen.ranks)
    heads = [*(["power"] if powered else []), *(["clock"] if clocked else [])]
    rows = [("rank", "host", "step", "alone", "last", "memory", *heads)]
    for rank in extremes(seen.ranks, lambda rank: (rank.alone or rank.time).value):
        watts = units.NONE if rank.power is None else f"{units.digits(rank.power)} W"
        clock = units.NONE if rank.clock is None else f"{rank.clock:.0f} MHz"
        rows.append(
            (
                str(rank.rank),
                units.clean(rank.host),
                units.duration(rank.time.value),
                units.duration(rank.alone.value) if rank.alone else units.NONE,
                units.percent(rank.last),
                units.data_size(units.peak(rank.memory)),
                *([watts] if powered else []),
                *([clock] if clocked else []),
            )
        )
    return rows


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of a table of ranks, a line each: the host, in the second column, is text, and the rest are figures."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{cell:<{wide}}" if k == 1 else f"{cell:>{wide}}"
            for k, (cell, wide) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _signed(seen: OverRanks) -> str:
    exposed = seen.exposed
    assert exposed
    if exposed.value <= 0:
        return "none that shows"
    low = max(0.0, units.number(exposed.low) or 0.0)
    return f"{units.duration(exposed.value)} ({units.duration(low)} – {units.duration(exposed.high)})"


def extremes(ranks: Sequence[T], by: Callable[[T], float]) -> list[T]:
    """The ranks that are shown, in their order: of many, those with the lowest and the highest values."""
    if len(ranks) <= MOST:
        return list(ranks)
    order = sorted(range(len(ranks)), key=lambda k: by(ranks[k]))
    return [ranks[k] for k in sorted([*order[: MOST // 2], *order[-MOST // 2 :]])]


def ranks_left_out(ranks: Sequence[object]) -> list[str]:
    """A line about ranks that are not shown, where there are such."""
    left = len(ranks) - MOST
    return [f"({left} ranks between these are not shown; --json has all)"] if left > 0 else []


def scaling_lines(results: Sequence[Bench | Failed]) -> list[str]:
    """A Markdown table of one workload on several numbers of ranks, with samples a second where they are known. Efficiency: the throughput
    a rank, over that of the first row; and where the rest went."""
    done = [result for result in results if isinstance(result, Bench)]
    counted = ["samples/s"] if any(result.samples_per_step for result in done) else []
    after = ("efficiency", "alone, slowest rank", "exposed exchange", "peak memory")
    heads = ["ranks", "median step", *counted, *after]
    rows = [heads]
    first = done[0] if done else None
    for result in results:
        ranks = (result.point or {}).get("ranks", units.NONE)
        if isinstance(result, Failed) or not first:
            rows.append([ranks, result.status, *[""] * (len(heads) - 2)])
            continue
        seen = result.over_ranks
        alone = [rank.alone.value for rank in seen.ranks if rank.alone] if seen else []
        rate = result.samples_per_step / result.time.value * 1e9 if result.samples_per_step else None
        rows.append(
            [
                ranks,
                units.duration_interval(result.time),
                *(units.digits(rate) if rate else units.NONE for _ in counted),
                units.percent(efficiency(first, result)),
                units.duration(max(alone)) if alone else units.NONE,
                _signed(seen) if seen and seen.exposed else units.NONE,
                units.data_size(units.peak(result.memory)),
            ]
        )
    return markdown(rows)


def efficiency(first: Bench, result: Bench) -> float:
    """Work a second and rank, over that of the first. Every rank has a batch of the same size, so that is the ratio of the steps."""
    return first.time.value / result.time.value
