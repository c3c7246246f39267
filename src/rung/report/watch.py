"""A job that trains, on the terminal: what is wrong with it first, then a row a rank."""

from __future__ import annotations

from collections.abc import Sequence

from rung.records.watch import Watched, WatchedRank
from rung.report import units
from rung.report.benchmarks import columns

MOST = 12  # ranks that are shown; of more, those of findings and the slowest
HEADS = ("rank", "host", "step", "alone", "waits", "slower", "memory", "power", "clock", "seen")


def watch_lines(found: Watched, width: int) -> list[str]:
    """The state of a job, in lines of at most `width` where words allow it."""
    lines = [_head(found)]
    for finding in found.findings:
        lines += units.wrapped(f"! {units.clean(finding.text)}", width, rest="  ")
    if not found.findings and found.state == "running":
        lines.append("no straggler, no throttled GPU, no silent rank")
    for note in found.notes:
        lines += units.wrapped(f"note: {units.clean(note)}", width, rest="  ")
    shown = _shown(found)
    lines += ["", *columns([HEADS, *(_row(rank, found) for rank in shown)])]
    if len(shown) < len(found.ranks):
        lines.append(f"({len(found.ranks) - len(shown)} more ranks are not shown; --json has all)")
    return lines


def _head(found: Watched) -> str:
    """As in: train-12: 8 ranks on 2 hosts, running; step 1041, 412 ms; exposed exchange 31 ms (7.5%), of it 27 ms waiting for slower ranks."""
    hosts = len({rank.host for rank in found.ranks})
    name = units.one_line(found.folder.rstrip("/").rpartition("/")[2])
    ranks = f"{found.world} rank{'s' if found.world != 1 else ''} on {hosts} host{'s' if hosts != 1 else ''}"
    parts = [
        f"{name}: {ranks}, {found.state}",
        f"step {found.step}" + (f", {units.duration(found.step_ns)}" if found.step_ns else ""),
    ]
    if found.exposed_ns is not None and found.step_ns:
        share = units.percent(round(found.exposed_ns / found.step_ns, 3))
        waiting = found.exposed_ns - (found.least_exposed_ns or 0.0)
        parts.append(
            f"exposed exchange {units.duration(found.exposed_ns)} ({share}), of it {units.duration(waiting)} waiting for slower ranks"
        )
    return "; ".join(parts)


def _shown(found: Watched) -> Sequence[WatchedRank]:
    if len(found.ranks) <= MOST:
        return found.ranks
    named = {rank for finding in found.findings for rank in finding.ranks}
    worst = sorted(found.ranks, key=lambda rank: (rank.rank not in named, -(rank.slower or 0.0), rank.rank))
    return sorted(worst[:MOST], key=lambda rank: rank.rank)


def _row(rank: WatchedRank, found: Watched) -> tuple[str, ...]:
    memory = rank.resident if rank.reserved is None else rank.reserved
    power = units.NONE if rank.power is None else f"{rank.power:.0f} W"
    clock = units.NONE if rank.core is None else f"{rank.core:.0f} MHz"
    return (
        str(rank.rank),
        units.one_line(rank.host),
        units.duration(rank.step_ns),
        units.duration(rank.own_ns),
        units.duration(rank.exchange_ns) if found.world > 1 else units.NONE,
        units.NONE if rank.slower is None else f"{rank.slower * 100:+.1f}%",
        units.data_size(memory),
        power,
        clock,
        "ended" if rank.ended else f"{rank.seen:.0f} s ago" if rank.seen >= 1 else "now",
    )
