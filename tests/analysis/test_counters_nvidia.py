"""Figures and verdicts of Nsight Compute's counters, on kernels that ncu 2025.3 recorded on an H100 (tests/data/ncu)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rung.analysis.analyses import table
from rung.profilers.counters import named
from rung.trace import read
from rung.trace.table import COUNTERS, SCHEMA, Trace

DATA = Path(__file__).parents[1] / "data" / "ncu"

# By the number of the kernel in its run: what the columns of nsight-counters.csv give, in its percents and bytes.
FEW = {
    # A copy. read 0 + written 72448 bytes / 3616 ns; DRAM 0 + 0.61 %; 1024 blocks are enough for 132 SMs
    45: {"time_ns": 3616, "hbm_gb_per_s": 20.0354, "dram_share": 0.0061, "l2_share": 0.0910, "issue_share": 0.5220,
         "tensor_busy_share": 0.0249, "occupancy_share": 0.4028, "sm_share": 1.0, "waves_per_sm": 0.48},
    # A product with a scalar. (27904 + 15879424) / 9152 = 1738.13 GB/s: 51.9 % of the data sheet's 3350, ncu says 0.09 + 52.07
    47: {"time_ns": 9152, "hbm_gb_per_s": 1738.13, "dram_share": 0.5216, "l2_share": 0.4046, "issue_share": 0.0776,
         "tensor_busy_share": 0.0, "occupancy_share": 0.7631, "sm_share": 1.0, "waves_per_sm": 1.94},
    # The loss: one block on one SM of 132, 1 / 132 = 0.00758
    77: {"time_ns": 14976, "hbm_gb_per_s": 8.8718, "dram_share": 0.0027, "l2_share": 0.0080, "issue_share": 0.0284,
         "tensor_busy_share": 0.0, "occupancy_share": 0.0621, "sm_share": 0.0075758, "waves_per_sm": 0.0},
    # A product of matrices in fp32, without the tensor pipe. (556032 + 1348096) / 17536 = 108.58
    84: {"time_ns": 17536, "hbm_gb_per_s": 108.584, "dram_share": 0.0325, "l2_share": 0.1701, "issue_share": 0.7987,
         "tensor_busy_share": 0.0004, "occupancy_share": 0.1742, "sm_share": 1.0, "waves_per_sm": 0.73},
    # A softmax backward. (17951232 + 17046272) / 14880 = 2351.98 GB/s: 70.2 % of 3350, ncu says 36.04 + 34.23
    135: {"time_ns": 14880, "hbm_gb_per_s": 2351.98, "dram_share": 0.7027, "l2_share": 0.3842, "issue_share": 0.1495,
          "tensor_busy_share": 0.0, "occupancy_share": 0.7358, "sm_share": 1.0, "waves_per_sm": 1.94},
}  # fmt: skip
VERDICTS = {
    45: (None, "issue slots 52%, L2 throughput 9%, no warp ready 48%, occupancy 40%, the grid fills 48%; nothing stands out"),
    47: ("latency", "no warp ready 92%, occupancy 76%, DRAM throughput 52%, issue slots 8%"),
    # Of the one SM 6.21 % of its warps and 2.84 % of its issue slots are used: of the GPU that is next to nothing.
    77: ("occupancy", "occupancy 0%, the grid fills 0%, no warp ready 97%, L2 throughput 1%, issue slots 0%"),
    84: ("compute", "issue slots 80%, L2 throughput 17%"),
    135: ("memory", "DRAM throughput 70%, issue slots 15%"),
}  # fmt: skip
MANY = {
    # 2139392 + 91392 bytes / 12832 ns = 173.85 GB/s: 5.19 % of 3350, which is what ncu says of the DRAM, too
    3: {"time_ns": 12832, "hbm_gb_per_s": 173.846, "compute_share": 0.4795, "memory_share": 0.3769, "dram_share": 0.0519,
        "l2_hit_share": 0.9403, "l1_hit_share": 0.0, "occupancy_share": 0.2317, "tensor_busy_share": 0.0015,
        "sm_share": 1.0, "waves_per_sm": 1.94},
    # 2126336 / 6816 = 311.96; 128 blocks for 132 SMs
    22: {"time_ns": 6816, "hbm_gb_per_s": 311.962, "compute_share": 0.2660, "memory_share": 0.2589, "dram_share": 0.0934,
         "l2_hit_share": 0.6108, "l1_hit_share": 0.0, "occupancy_share": 0.0619, "tensor_busy_share": 0.0,
         "sm_share": 0.969697, "waves_per_sm": 0.16},
}  # fmt: skip


def rows(name: str) -> dict[int, dict[str, Any]]:
    return {row["place"]: row for row in table("dispatch_counters", read(DATA / name)).iter_rows(named=True)}


@pytest.mark.parametrize(("name", "expected"), [("nsight-counters.csv", FEW), ("nsight-full.csv", MANY)])
def test_the_figures_of_recorded_kernels_are_those_of_their_columns(
    name: str, expected: dict[int, dict[str, float]]
) -> None:
    found = rows(name)
    assert list(found) == list(expected)
    for number, figures in expected.items():
        assert {figure: found[number][figure] for figure in figures} == pytest.approx(figures, rel=2e-5)


@pytest.mark.parametrize("number", VERDICTS)
def test_what_bounds_a_recorded_kernel(number: int) -> None:
    row = rows("nsight-counters.csv")[number]
    assert (row["bound"], row["because"]) == VERDICTS[number]


@pytest.mark.parametrize(("name", "preset"), [("nsight-counters.csv", "ncu"), ("nsight-full.csv", "ncu-full")])
def test_every_counter_of_a_preset_is_read_and_used(name: str, preset: str) -> None:
    trace = read(DATA / name)
    kernels = trace.counters["correlation"].n_unique()
    for counter in named(preset):
        assert trace.counters.filter(counter=counter).height == kernels, counter
        without = Trace(
            events=trace.events, devices=trace.devices, counters=trace.counters.filter(pl.col("counter") != counter)
        )
        assert not table("counters", without).equals(table("counters", trace)), counter
    assert trace.unread == {}


def test_the_gpu_is_known_so_that_there_is_a_roof() -> None:
    trace = read(DATA / "nsight-counters.csv")
    assert trace.devices == [
        {"name": "NVIDIA H100 80GB HBM3", "multiprocessor_count": 132, "total_memory": 85_017_493_504}
    ]
    roof = table("counter_roofline", trace).filter(pl.col("kernel").str.contains("softmax")).row(0, named=True)
    assert (roof["roof"], roof["peak"]) == ("HBM", 3350)
    assert roof["used_share"] == pytest.approx(0.7021, abs=1e-4)  # 2351.98 / 3350


def of_one_kernel(values: dict[str, float]) -> dict[str, Any]:
    made = [{"correlation": 0, "device": 0, "kernel": "k", "counter": n, "value": v} for n, v in values.items()]
    trace = Trace(events=pl.DataFrame(schema=SCHEMA), counters=pl.DataFrame(made, schema=COUNTERS))
    return table("counters", trace).row(0, named=True)


def test_a_busy_sm_among_idle_ones_is_no_busy_gpu() -> None:
    busy = {"sm__inst_issued.avg.pct_of_peak_sustained_active": 90.0, "gpu__time_duration.sum": 2000.0,
            "sm__warps_active.avg.pct_of_peak_sustained_active": 80.0, "launch__sm_count": 132.0,
            "lts__t_sectors.avg.pct_of_peak_sustained_elapsed": 10.0}  # fmt: skip
    assert of_one_kernel(busy | {"launch__grid_size": 264.0})["bound"] == "compute"
    one = of_one_kernel(busy | {"launch__grid_size": 33.0})  # a quarter: 22.5 % of the issue slots, 20 % of the warps
    assert (one["bound"], one["because"]) == (
        "occupancy", "occupancy 20%, no warp ready 10%, issue slots 22%, L2 throughput 10%",
    )  # fmt: skip


def test_nsight_compute_says_what_bounds_a_kernel_of_which_no_timeline_is_known() -> None:
    percent = {"sm__throughput.avg.pct_of_peak_sustained_elapsed": 30.0,
               "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": 85.0,
               "sm__warps_active.avg.pct_of_peak_sustained_active": 40.0, "lts__t_sector_hit_rate.pct": 60.0}  # fmt: skip
    values = percent | {"gpu__time_duration.sum": 2000.0, "dram__bytes_read.sum": 4e6, "dram__bytes_write.sum": 1e6}
    found = of_one_kernel(values)
    assert (found["bound"], found["because"]) == ("memory", "memory throughput 85%, SM throughput 30%")
    assert (found["time_ns"], found["occupancy_share"], found["l2_hit_share"]) == (2000, 0.4, 0.6)
    assert found["hbm_gb_per_s"] == 2500  # 5 MB in 2 µs


@pytest.mark.parametrize(
    ("percent", "because"),
    [
        ((70.0, 5.0, 0.0), "issue slots 70%, L2 throughput 10%"),
        ((20.0, 65.0, 8.0), "DRAM throughput 73%, issue slots 20%"),  # read and written
    ],
)
def test_the_few_counters_of_one_pass_say_it_too(percent: tuple[float, float, float], because: str) -> None:
    issued, read, written = percent
    values = {"sm__inst_issued.avg.pct_of_peak_sustained_active": issued, "gpu__time_duration.sum": 2000.0,
              "lts__t_sectors.avg.pct_of_peak_sustained_elapsed": 10.0,
              "dram__bytes_read.sum.pct_of_peak_sustained_elapsed": read,
              "dram__bytes_write.sum.pct_of_peak_sustained_elapsed": written}  # fmt: skip
    assert of_one_kernel(values)["because"] == because
