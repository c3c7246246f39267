"""A step of several ranks on the terminal: what each did, what their exchange costs, and how a job scales."""

from __future__ import annotations

from collections.abc import Sequence

from rung.records.bench import Bench, Failed, OverRanks, RankTime
from rung.report import units

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


def over_ranks_lines(seen: OverRanks) -> list[str]:
    """A row a rank, and below what the exchange costs."""
    shown = _shown(seen.ranks)
    wide = max(4, *(len(units.clean(rank.host)) for rank in shown))
    lines = ["", f"rank  {'host':<{wide}}  {'step':>9}  {'alone':>9}  {'last':>5}  {'memory':>9}"]
    for rank in shown:
        alone = units.duration(rank.alone.value) if rank.alone else units.NONE
        lines.append(
            f"{rank.rank:>4}  {units.clean(rank.host):<{wide}}  {units.duration(rank.time.value):>9}  {alone:>9}  "
            f"{units.percent(rank.last):>5}  {units.data_size(units.peak(rank.memory)):>9}"
        )
    if len(shown) < len(seen.ranks):
        lines.append(f"({len(seen.ranks) - len(shown)} ranks between these are not shown; --json has all)")
    lines += ["", "alone: a step without exchange; last: the share of the steps that this rank ended last"]
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


def _signed(seen: OverRanks) -> str:
    exposed = seen.exposed
    assert exposed
    if exposed.value <= 0:
        return "none that shows"
    low = max(0.0, units.number(exposed.low) or 0.0)
    return f"{units.duration(exposed.value)} ({units.duration(low)} – {units.duration(exposed.high)})"


def _shown(ranks: Sequence[RankTime]) -> list[RankTime]:
    if len(ranks) <= MOST:
        return list(ranks)
    by_time = sorted(ranks, key=lambda rank: (rank.alone or rank.time).value)
    return sorted([*by_time[: MOST // 2], *by_time[-MOST // 2 :]], key=lambda rank: rank.rank)


def scaling_lines(results: Sequence[Bench | Failed]) -> list[str]:
    """A Markdown table of one workload on several numbers of ranks. Efficiency: the throughput over that of the fewest ranks, a rank
    each; and where the rest went."""
    done = [result for result in results if isinstance(result, Bench)]
    lines = [
        "| ranks | median step | samples/s | efficiency | alone, slowest rank | exposed exchange | peak memory |",
        "|" + "---|" * 7,
    ]
    first = done[0] if done else None
    for result in results:
        ranks = (result.point or {}).get("ranks", units.NONE)
        if isinstance(result, Failed) or not first:
            lines.append(f"| {ranks} | {result.status} | | | | | |")
            continue
        seen = result.over_ranks
        alone = [rank.alone.value for rank in seen.ranks if rank.alone] if seen else []
        rate = result.samples_per_step / result.time.value * 1e9 if result.samples_per_step else None
        lines.append(
            f"| {ranks} | {units.duration_interval(result.time)} | {units.digits(rate) if rate else units.NONE} "
            f"| {units.percent(efficiency(first, result))} | {units.duration(max(alone)) if alone else units.NONE} "
            f"| {_signed(seen) if seen and seen.exposed else units.NONE} | {units.data_size(units.peak(result.memory))} |"
        )
    return lines


def efficiency(first: Bench, result: Bench) -> float:
    """Work a second and rank, over that of the first. Every rank has a batch of the same size, so that is the ratio of the steps."""
    return first.time.value / result.time.value
