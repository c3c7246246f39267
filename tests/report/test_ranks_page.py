"""Several ranks on one page: a row each and one table over all, whatever their number."""

from pathlib import Path

import polars as pl
import pytest

from rung.analysis.across import across
from rung.analysis.analyses import table
from rung.analysis.overview import overview
from rung.records.analyze import Breakdown, Busy, OfRank, Overview
from rung.records.record import record_of
from rung.report.analyze import analyze_lines
from rung.report.distributed import communication_line, scaling_line, slow_groups_line
from rung.report.headlines import headlines
from rung.report.ranks import rank_lines
from rung.trace import read

DDP = Path(__file__).parents[1] / "data" / "ddp"


def part(rank, gemm, waiting, top=()):
    """A rank as `overview` gives it: a step of 100 ns a rank."""
    parts = {"gemm": gemm, "communication": 0.0, "launch_gap": waiting, "idle": 0.0}
    record = {"clock": "gpu", "step_ns": 100.0, "parts": parts, "bottleneck": "gemm", "share": gemm / 100, "notes": ()}
    times = {"total_ns": 100, "busy_ns": gemm, "idle_ns": waiting, "computation_ns": gemm}
    none = dict.fromkeys(
        ("communication_ns", "exposed_communication_ns", "memcpy_ns", "exposed_memcpy_ns", "unlinked", "unlinked_ns"), 0
    )
    counts = {"kernels": 2.0, "launches": 2.0, "gemms": 1.0}
    return OfRank(
        rank=rank,
        launches=True,
        timeline=[Busy(rank=rank, device=0, step=None, kernels=2, **times, **none)],
        breakdown=record_of(Breakdown, {**record, **counts, "top": list(top)}),
    )


def on_the_host(rank, gemm, waiting):
    """The same of a rank without GPU events."""
    found = part(rank, gemm, waiting)
    found.timeline, found.breakdown.clock = [], "cpu"
    return found


def over(*parts):
    return Overview(
        source="runs", steps=1, format="kineto", events=1, counters=0, ranks=len(parts), unread={}, completeness=[], notes=[], gpus=[],
        peaks=None, parts=[*parts], across=across(parts),
    )  # fmt: skip


def test_the_mean_and_the_ranks_that_stand_out():
    found = across(
        [part(0, 90, 10, [("a", "gemm", 90, 1)]), part(3, 30, 70, [("a", "gemm", 20, 1), ("b", "gemm", 10, 4)])]
    )
    rows = {row.part: row for row in found.parts}
    assert (rows["gemm"].mean_ns, rows["gemm"].least_rank, rows["gemm"].most_rank) == (60, 3, 0)
    assert (rows["launch_gap"].least_ns, rows["launch_gap"].most_ns) == (10, 70)
    assert (found.bottleneck, found.share, found.ranks) == ("gemm", 0.6, 2)
    assert [(row.name, row.mean_ns, row.mean_count, row.ranks) for row in found.top] == [
        ("a", 55, 1, 2), ("b", 10, 4, 1),
    ]  # fmt: skip
    assert across([OfRank(rank=0, launches=False, timeline=[], breakdown=None)]) is None


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_recorded_run_fits_and_is_one_table(width):
    found = overview(read(DDP / "ranks2-slow-host"), steps=2)
    lines = analyze_lines(found, width)
    assert all(len(line) <= width for line in lines[1:])
    assert len(lines) < 34
    (row,) = [line for line in lines if line.startswith("  waiting for a launch")]
    assert "(rank 0)" in row.split("5.07 ms")[1]
    assert row.endswith("28.1 ms (rank 1)")


def test_of_many_ranks_those_that_are_idle_most_and_least_are_shown():
    lines = analyze_lines(over(*(part(rank, 100 - rank, rank) for rank in range(40))), 100)
    shown = [int(line.split()[0]) for line in lines if "%" in line and line[:4].strip().isdigit()]
    assert shown == [39, 38, 37, 36, 3, 2, 1, 0]
    assert "... and 32 more ranks: --show timeline" in lines


def test_on_the_hosts_clock_the_time_outside_of_operators_is_no_wait_for_a_launch():
    lines = analyze_lines(over(on_the_host(0, 40, 60), on_the_host(1, 40, 60)), 100)
    assert "Bottleneck: Python and dispatch, 60% of the recording (CPU time, mean of the ranks)." in lines
    assert not [line for line in lines if "launch " in line or line.startswith("rank ")]


def test_a_rank_without_gpu_events_is_in_no_mean_of_the_gpus():
    found = over(part(0, 90, 10), on_the_host(1, 40, 60))
    assert (found.across.ranks, found.across.clock, found.across.share) == (1, "gpu", 0.9)
    assert found.across.notes == ["Rank 1 has no GPU events; the figures are of the other ranks."]
    assert not [line for line in analyze_lines(found, 100) if "more ranks" in line]


def test_a_sentence_of_several_ranks_is_of_one_of_them_and_fits_the_step():
    trace = read(DDP / "ranks2-slow-host")  # a step of 42.8 ms, 40.6% of it idle
    said = headlines(lambda name: table(name, trace, steps=2), 2)
    assert said["idle"].startswith("17.4 ms a step and GPU: host 95%")
    assert said["launches"].startswith(
        "714 GPU events a step and GPU in 714 launches, the GPU waits for the host 39% of"
    )
    assert said["syncs"].startswith("19.9 µs of host time a step and rank in 8 calls that wait")
    assert said["streams"].startswith("stream 7 of rank 0 waits 52%")
    share = table("targets", trace, steps=2).filter(metric="GPU waits for launches")["share"].item()
    assert f"{share:.0%}" == "39%"


def communication_row(group: str, ranks: int) -> dict[str, object]:
    return {"collective": "all_reduce", "size_bytes": 1 << 20, "transfer_ns": 1000, "waiting_ns": 3000, "exposed_ns": 2000,
            "bus_gb_per_s": 100.0, "ranks": ranks, "group_size": ranks, "group": group}  # fmt: skip


def test_what_a_rank_spends_is_that_of_its_own_groups_and_not_of_all() -> None:
    rows = pl.DataFrame([communication_row("0", 8), *(communication_row(str(1 + node), 2) for node in range(4))])
    said = communication_line(rows, " a step and rank", 8)
    assert "transfer 2.00 µs a step and rank, waiting for other ranks 6.00 µs; 4.00 µs exposed (50%)" in said


def test_a_slow_group_is_said_with_its_ranks_and_how_much_slower_it_is() -> None:
    row = {"group": "2", "group_ranks": "[8, 9]", "times": 3.0, "collective": "all_reduce", "size_bytes": 1 << 20,
           "bus_gb_per_s": 79.4, "others_bus_gb_per_s": 238.0, "groups": 8}  # fmt: skip
    assert slow_groups_line(pl.DataFrame([row])) == (
        "group 2 (ranks 8, 9) takes 3.00× as long as others for all_reduce of 1.0 MiB: 79.4 GB/s, the median of 8 groups is 238"
    )
    assert slow_groups_line(pl.DataFrame([row, row | {"group": "5"}])).endswith("; 1 more group")
    assert slow_groups_line(pl.DataFrame([row | {"group_ranks": "", "bus_gb_per_s": None}])) == (
        "group 2 takes 3.00× as long as others for all_reduce of 1.0 MiB"
    )


def test_what_ranks_lose_is_said_of_several_alone() -> None:
    row = {"ranks": 4, "efficiency_share": 0.36, "balance_share": 0.9, "communication_share": 0.8, "host_share": 0.5}
    said = scaling_line(pl.DataFrame([row]))
    assert said == "36% of the GPUs' time computes, the product of even work 90%, links and waiting for ranks 80%, work for the GPU 50%"  # fmt: skip
    assert scaling_line(pl.DataFrame([row | {"ranks": 1}])) == ""


def test_numbers_of_many_ranks_stand_below_each_other() -> None:
    lines = rank_lines(over(part(7, 50, 50), part(16384, 50, 50)), 100)
    assert len({line.index("%") for line in lines[2:]}) == 1
    assert lines[1].index("rank") + len("rank") == lines[2].index("7") + 1
