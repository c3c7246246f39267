"""Counter figures against rocprof-compute's own definitions, worked out by hand; verdicts on made kernels.

The recorded workloads are `vcopy -n 1048576 -b 256 -i 3`: three dispatches that copy 1048576 doubles, 16384 waves each.
What rocprof-compute 3.3 answers for them is the mean over dispatches of each one's ratio; ours per kernel divides sums.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rung.analysis.analyses import table
from rung.analysis.counters.formulas import compiled, formulas
from rung.analysis.counters.gpu import gpu_of
from rung.trace import read
from rung.trace.table import COUNTERS, SCHEMA, Trace

SHARED = Path(__file__).parents[3] / "shared" / "data" / "rocprof_compute"
recorded = pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/data/rocprof_compute")


@lru_cache(maxsize=8)
def of(folder: str, name: str) -> pl.DataFrame:
    return table(name, read(SHARED / folder))


def mean(folder: str, figure: str) -> float:
    found = of(folder, "dispatch_counters")[figure].mean()
    assert isinstance(found, float)
    return found


# Of the tool's speed-of-light panel, in its units; `scale` turns our figure into them.
ANSWERS = [
    # 100 * SQ_ACTIVE_INST_VALU / (GRBM_GUI_ACTIVE / num_xcd * cu_per_gpu)
    #   MI200, 1 XCD, 104 CUs: 163840 / (29465 * 104) = 5.3467 %, / (41616 * 104) = 3.7855 %, / (41603 * 104) = 3.7867 %
    #   MI300X, 8 XCDs, 304 CUs: 98304 / (2635424 / 8 * 304) = 0.09816 %, and 0.10091 %, 0.10188 %
    #   MI350, 8 XCDs, 128 CUs as its sysinfo says: 98304 / (78383 / 8 * 128) = 7.8385 %, 9.4939 %, 9.7716 %
    ("valu_busy_share", 100, 4.306289, 0.100315, 9.03456),
    # 100 * SQ_ACTIVE_INST_SCA / the same: 114688 / (29465 * 104) = 3.7427 %, 2.6499 %, 2.6507 %
    ("salu_busy_share", 100, 3.014402, 0.117034, 10.54032),
    # SQ_INSTS / SQ_BUSY_CU_CYCLES: 393216 / 1594430 = 0.24662, / 2808219 = 0.14002, / 2706223 = 0.14530
    ("ipc", 1, 0.177314, 0.069286, 0.40146),
    # 100 - 100 * (131072 read + 131072 write requests to the L2) / 524288 accesses = 50; CDNA 3 and 4 have lines of
    # 128 bytes and ask half as often to read: 100 - 100 * (65536 + 131072) / 524288 = 62.5
    ("l1_hit_share", 100, 50.0, 62.5, 62.5),
    # 524288 accesses * 64 bytes / 20480 ns = 1638.4 GB/s, / 16320 = 2056.03, / 15520 = 2162.0; 128 bytes on the others:
    # 524288 * 128 / 16879 = 3975.9, / 14280 = 4699.5, / 45159 = 1486.0
    ("l1_gb_per_s", 1, 1952.147915, 3387.145591, 3676.494235),
    # 100 * TCC_HIT / (TCC_HIT + TCC_MISS): 72935 / 204016 = 35.750 %, 69652 / 200735 = 34.698 %, 70029 / 201111 = 34.821 %
    ("l2_hit_share", 100, 35.089733, 33.361829, 33.771858),
    # TCC_REQ * 128 / ns: 204016 * 128 / 20480 = 1275.1, 200735 * 128 / 16320 = 1574.4, 201111 * 128 / 15520 = 1658.6
    ("l2_gb_per_s", 1, 1502.713193, 1273.352449, 1388.349391),
    # TCC_EA_RDREQ_LEVEL / TCC_EA_RDREQ: 39527436 / 131086 = 301.54, 116463987 / 131086 = 888.45, 119691070 / 131087 = 913.06
    ("hbm_read_latency", 1, 701.02, 830.866, 235.58),
    # TCC_EA_WRREQ_LEVEL / TCC_EA_WRREQ: 35354785 / 131072 = 269.74, 59127715 / 91072 = 649.24, 60044646 / 91113 = 659.01
    ("hbm_write_latency", 1, 526.00, 363.800, 77.29),
]  # fmt: skip


@recorded
@pytest.mark.parametrize(("figure", "scale", "mi200", "mi300x", "mi350"), ANSWERS, ids=[a[0] for a in ANSWERS])
def test_a_figure_is_what_rocprof_compute_answers(
    figure: str, scale: float, mi200: float, mi300x: float, mi350: float
) -> None:
    assert mean("vcopy_MI200", figure) * scale == pytest.approx(mi200, rel=1e-4)
    assert mean("kernel_MI300X", figure) * scale == pytest.approx(mi300x, rel=1e-4)
    assert mean("vcopy_MI350", figure) * scale == pytest.approx(mi350, rel=1e-4)


@recorded
@pytest.mark.parametrize(
    ("folder", "waves", "most"),
    [
        # SQ_ACCUM_PREV_HIRES of the SQ_LEVEL_WAVES run / cycles of an XCD: 44799316 / 29465 = 1520.4 waves,
        # 77475332 / 41616 = 1861.7, 79703012 / 41603 = 1915.8: mean 1765.97 of 104 CUs * 32
        ("vcopy_MI200", 1765.97, 104 * 32),
        # 144167720 / (2635424 / 8) = 437.6, 126559376 / (2563708 / 8) = 394.9, 121255136 / (2539263 / 8) = 382.0
        ("kernel_MI300X", 404.858, 304 * 32),
    ],
)
def test_occupancy_is_the_waves_in_flight_of_the_most_that_fit(folder: str, waves: float, most: int) -> None:
    assert mean(folder, "occupancy_share") * most == pytest.approx(waves, rel=1e-4)


@recorded
def test_bytes_to_the_fabric_follow_the_request_sizes_of_each_architecture() -> None:
    # MI200, first dispatch: 131086 reads of 64 bytes, none of 32; 131072 writes, all of 64 bytes
    first = of("vcopy_MI200", "dispatch_counters").row(0, named=True)
    assert (first["hbm_read_bytes"], first["hbm_write_bytes"]) == (131086 * 64, 131072 * 64)
    assert first["hbm_gb_per_s"] == pytest.approx((131086 + 131072) * 64 / 20480)
    # MI300X: 65536 of the 65778 reads are of 128 bytes (TCC_BUBBLE), the other 242 of 64: 8404096 bytes, an array's 8388608
    # and a few more. The tool answers 424.169 GB/s, the mean of 497.90, 588.5, 186.1
    first = of("kernel_MI300X", "dispatch_counters").row(0, named=True)
    assert first["hbm_read_bytes"] == 65536 * 128 + 242 * 64
    reads = of("kernel_MI300X", "dispatch_counters").select(pl.col("hbm_read_bytes") / pl.col("time_ns")).to_series()
    assert reads.mean() == pytest.approx(424.169247, rel=1e-6)


@recorded
def test_integer_operations_are_64_to_a_wave_and_instruction() -> None:
    # 64 * 114688 INT32 instructions / 20480, 16320, 15520 ns = 358.4, 449.76, 472.94: the tool answers their mean
    rates = of("vcopy_MI200", "dispatch_counters").select(pl.col("valu_int_ops") / pl.col("time_ns")).to_series()
    assert rates.mean() == pytest.approx(427.032, rel=1e-5)


@recorded
def test_a_kernel_divides_sums_over_its_dispatches() -> None:
    kernel = of("vcopy_MI200", "counters").row(0, named=True)
    assert (kernel["dispatches"], kernel["time_ns"], kernel["waves"]) == (3, 20480 + 16320 + 15520, 3 * 16384)
    hits, misses = 72935 + 69652 + 70029, 131081 + 131083 + 131082
    assert kernel["l2_hit_share"] == pytest.approx(hits / (hits + misses))
    assert kernel["wait_share"] == pytest.approx((9564806 + 18326981 + 17567758) / (10620646 + 19460332 + 18674882))


@recorded
def test_the_roofline_has_the_peaks_of_the_clock_and_those_that_were_measured() -> None:
    rows = {row["roof"]: row for row in of("vcopy_MI200", "counter_roofline").iter_rows(named=True)}
    # 1700 MHz * 64 bytes * 104 CUs; 1700 MHz * 128 bytes * 32 channels; roofline.csv of the folder, device 0
    assert (rows["L1"]["peak"], rows["L1"]["measured_peak"]) == pytest.approx((11315.2, 9226.7266))
    assert (rows["L2"]["peak"], rows["L2"]["measured_peak"]) == pytest.approx((6963.2, 5018.2891))
    assert (rows["HBM"]["peak"], rows["HBM"]["measured_peak"]) == pytest.approx((1638.4, 1388.9302))
    moved = (131086 + 131086 + 131087 + 131072 + 91072 + 91113) * 64
    assert rows["HBM"]["used_share"] == pytest.approx(moved / 52320 / 1638.4)
    assert rows["HBM"]["intensity"] == 0  # a copy computes nothing
    assert {row["roof"] for row in of("kernel_MI300X", "counter_roofline").iter_rows(named=True)} >= {"Infinity Cache"}


@recorded
@pytest.mark.parametrize("folder", ["vcopy_MI200", "kernel_MI300X", "vcopy_MI350"])
def test_a_copy_of_8_mb_waits_for_memory_and_fills_nothing(folder: str) -> None:
    kernel = of(folder, "counters").row(0, named=True)
    assert kernel["bound"] == "latency"
    assert kernel["because"].startswith("waves wait ")


# ---- made kernels --------------------------------------------------------------------------------------

MI300X = {"gpu_model": "MI300X", "gpu_arch": "gfx942", "cu_per_gpu": 304, "num_xcd": 8, "max_waves_per_cu": 32,
          "max_sclk": 2100, "simd_per_cu": 4, "wave_size": 64, "lds_banks_per_cu": 32, "total_l2_chan": 128}  # fmt: skip
NS = 1_000_000
CYCLES = 2100 * NS // 1000  # of one XCD in that time


def made(counters: dict[str, float], *, device: dict[str, Any] | None = None, numbered: bool = True) -> Trace:
    """A kernel of 1 ms, dispatched once."""
    values = {"GRBM_GUI_ACTIVE": 8.0 * CYCLES} | counters
    rows = [{"correlation": 7 if numbered else None, "device": 0, "kernel": "k", "counter": name, "value": value}
            for name, value in values.items()]  # fmt: skip
    event = {"ts": 5, "dur": NS, "kind": "kernel", "name": "k", "pid": "1", "tid": "1", "device": 0, "correlation": 7}
    return Trace(
        events=pl.DataFrame([event], schema=SCHEMA),
        devices=[MI300X if device is None else device],
        counters=pl.DataFrame(rows, schema=COUNTERS),
    )


@pytest.mark.parametrize(("arch", "width"), [("gfx942", 128), ("gfx950", 256)])
def test_the_lds_of_cdna_4_reads_twice_as_much_a_clock(arch: str, width: int) -> None:
    device = MI300X | {"gpu_arch": arch, "gpu_model": arch}
    rows = table("counter_roofline", made({"SQ_LDS_IDX_ACTIVE": 1e6, "SQ_LDS_BANK_CONFLICT": 0}, device=device))
    assert rows.filter(roof="LDS")["peak"].item() == pytest.approx(2.1 * width * 304)


def kernel(counters: dict[str, float], **more: Any) -> dict[str, Any]:
    return table("counters", made(counters, **more)).row(0, named=True)


COMPUTE = {"SQ_ACTIVE_INST_VALU": 0.1 * CYCLES * 304, "SQ_VALU_MFMA_BUSY_CYCLES": 0.1 * CYCLES * 304 * 4}
MEMORY = {"TCC_EA0_WRREQ": 1e6, "TCC_EA0_WRREQ_64B": 1e6, "TCC_EA0_RDREQ": 1e6, "TCC_EA0_RDREQ_32B": 0, "TCC_BUBBLE": 0}
WAVES = {"SQ_WAVE_CYCLES": 0.5 * CYCLES * 304 * 32 / 4, "SQ_WAIT_ANY": 0.8 * 0.5 * CYCLES * 304 * 32 / 4}


@pytest.mark.parametrize(
    ("counters", "bound", "because"),
    [
        # 90 % of 5324.8 GB/s: 4.79e9 bytes in 1 ms, written in requests of 64 bytes
        (MEMORY | {"TCC_EA0_WRREQ": 73.9e6, "TCC_EA0_WRREQ_64B": 73.9e6}, "memory", "HBM 90%"),
        # three times what the memory can: it came from the Infinity Cache, 93 % of whose 17.2 TB/s are used
        (MEMORY | {"TCC_EA0_WRREQ": 249e6, "TCC_EA0_WRREQ_64B": 249e6}, "memory", "Infinity Cache 93%"),
        (MEMORY | {"SQ_VALU_MFMA_BUSY_CYCLES": 0.85 * CYCLES * 304 * 4}, "compute", "MFMA busy 85%"),
        # 75 % of 1307.4 TFLOP/s: 9.81e11 FLOP in 1 ms, 512 to a count
        (MEMORY | {"SQ_INSTS_VALU_MFMA_MOPS_BF16": 1.915e9}, "compute", "MFMA FLOP/s 75%"),
        (MEMORY, "latency", "waves wait 80%, occupancy 50%"),
        (MEMORY | {"SQ_WAVE_CYCLES": WAVES["SQ_WAVE_CYCLES"] / 5, "SQ_WAIT_ANY": 1}, "occupancy", "occupancy 10%"),
        (MEMORY | {"SQ_WAIT_ANY": 1}, None, "nothing stands out"),
        ({"SQ_LDS_BANK_CONFLICT": 0.7 * CYCLES * 304}, "memory", "LDS conflicts 70%"),
        ({}, None, "no counters of the memory side"),
    ],
    ids=["hbm", "infinity-cache", "mfma-busy", "mfma-flops", "latency", "occupancy", "nothing", "lds", "one-side"],
)
def test_a_verdict_names_the_counters_that_say_so(counters: dict[str, float], bound: str | None, because: str) -> None:
    found = kernel(COMPUTE | WAVES | counters)
    assert found["bound"] == bound
    assert because in found["because"]


def test_a_kernel_of_two_ranks_has_a_point_of_each_in_the_roofline() -> None:
    """Rank 1 writes twice as much in the same millisecond."""
    one, two = (made(MEMORY | {"TCC_EA0_WRREQ": n, "TCC_EA0_WRREQ_64B": n}) for n in (1e6, 2e6))
    events, counted = (
        pl.concat([getattr(t, part).with_columns(rank=pl.lit(r, pl.Int32)) for r, t in enumerate((one, two))])
        for part in ("events", "counters")
    )
    both = Trace(events=events, devices=one.devices, counters=counted)
    amounts = {}
    for name, trace in (("one", one), ("two", two), ("both", both)):
        rows = table("counter_roofline", trace).filter(roof="HBM")
        amounts[name] = sorted(rows.select("rank", "rate").rows())
    assert amounts["both"] == [(0, amounts["one"][0][1]), (1, amounts["two"][0][1])]


def test_flops_of_each_type_add_up_and_what_was_not_counted_is_left_out() -> None:
    add = {f"SQ_INSTS_VALU_{op}_F32": 1000.0 for op in ("ADD", "MUL", "TRANS", "FMA")}
    found = kernel(add | {"SQ_INSTS_VALU_MFMA_MOPS_F16": 10.0, "SQ_INSTS_VALU_MFMA_MOPS_I8": 3.0})
    assert found["valu_fp32_flops"] == 64 * (1000 + 1000 + 1000 + 2 * 1000)  # an FMA is two
    assert found["mfma_fp16_flops"] == 512 * 10
    assert found["flops"] == 64 * 5000 + 5120  # integer operations are no FLOPs
    assert found["mfma_int8_ops"] == 512 * 3
    assert found["valu_fp64_flops"] is None
    assert found["tflop_per_s"] == pytest.approx((64 * 5000 + 5120) / NS / 1000)


def test_a_counter_of_many_instances_is_their_sum_and_counts_once() -> None:
    channels = {f"TCC_HIT[{i}]": 1.0 for i in range(4)} | {f"TCC_MISS[{i}]": 3.0 for i in range(4)}
    assert kernel(channels)["l2_hit_share"] == 0.25
    assert kernel(channels | {"TCC_HIT_sum": 12.0})["l2_hit_share"] == 0.5
    assert kernel(channels | {"TCC_HIT": 12.0})["l2_hit_share"] == 0.5


def test_a_counter_that_two_passes_have_counts_once() -> None:
    trace = made({"SQ_WAVES": 64.0})
    again = trace.counters.with_columns(value=pl.col("value") + 2)
    both = Trace(events=trace.events, devices=trace.devices, counters=pl.concat([trace.counters, again]))
    assert table("counters", both)["waves"].to_list() == [65]


def test_a_derived_counter_stands_in_where_its_parts_were_not_collected() -> None:
    found = kernel({"VALUBusy": 42.0, "OccupancyPercent": 30.0, "FETCH_SIZE": 100.0, "L2CacheHit": 75.0})
    assert found["valu_busy_share"] == pytest.approx(0.42)
    assert found["occupancy_share"] == pytest.approx(0.30)
    assert found["hbm_read_bytes"] == 102400  # FETCH_SIZE is in KiB
    assert found["l2_hit_share"] == pytest.approx(0.75)


def test_rdna_counts_single_cycles_and_waves_of_32() -> None:
    navi = {"gpu_arch": "gfx1100", "cu_count": 96, "max_waves_per_cu": 32}
    counters = {"GRBM_GUI_ACTIVE": 1000.0, "SQ_WAVE_CYCLES": 1000.0 * 96 * 8, "GL2C_HIT": 1.0, "GL2C_MISS": 1.0}
    found = kernel(counters, device=navi)
    assert (found["occupancy_share"], found["l2_hit_share"]) == (0.25, 0.5)


def test_dispatches_without_a_number_are_joined_in_the_order_of_their_kernel() -> None:
    found = kernel({"SQ_WAVES": 64.0}, numbered=False)
    assert (found["time_ns"], found["waves"]) == (NS, 64)


def test_a_dispatch_of_no_duration_has_no_rate() -> None:
    trace = made(MEMORY)
    still = Trace(events=trace.events.with_columns(dur=pl.lit(0)), devices=trace.devices, counters=trace.counters)
    row = table("counters", still).row(0, named=True)
    assert (row["hbm_gb_per_s"], row["hbm_write_bytes"]) == (None, 64e6)


@pytest.mark.parametrize("name", ["counters", "dispatch_counters", "counter_roofline"])
def test_a_trace_without_counters_has_the_same_columns_and_no_rows(name: str) -> None:
    empty = Trace(events=pl.DataFrame(schema=SCHEMA))
    found = table(name, empty)
    assert found.is_empty()
    assert found.schema == table(name, made(MEMORY)).schema


def test_the_table_of_formulas_says_what_a_figure_lacks() -> None:
    rows = {row["figure"]: row for row in table("counter_formulas", made(MEMORY)).iter_rows(named=True)}
    assert rows["hbm_read_bytes"]["known"] == 1
    assert rows["l1_hit_share"]["known"] == 0
    assert rows["l1_hit_share"]["missing"].startswith("TCP_TOTAL_CACHE_ACCESSES")
    assert rows["occupancy_share"]["missing"] == "SQ_LEVEL_WAVES/SQ_ACCUM_PREV_HIRES"
    assert all(row["source"] for row in rows.values())


def test_every_formula_is_arithmetic_over_names() -> None:
    for metric in formulas().metrics.values():
        assert metric.forms or all(part in formulas().metrics for part in metric.total)
        for form in metric.forms:
            re.compile(form.arch)
            for text in (form.over, form.under or "1"):
                assert compiled(text, lambda _: 2.0) is not None
    with pytest.raises(ValueError, match="not arithmetic"):
        compiled("__import__('os')", lambda _: 1.0)


def test_two_passes_of_rocprofv3_are_one_kernel_with_the_facts_of_its_agent(tmp_path: Path) -> None:
    head = ("Correlation_Id,Dispatch_Id,Agent_Id,Queue_Id,Process_Id,Thread_Id,Grid_Size,Kernel_Id,Kernel_Name,Workgroup_Size,"
            "LDS_Block_Size,Scratch_Size,VGPR_Count,Accum_VGPR_Count,SGPR_Count,Counter_Name,Counter_Value,Start_Timestamp,End_Timestamp")  # fmt: skip
    row = '1,1,"Agent 4",1,{pid},{pid},1024,10,"gemm",256,0,0,8,0,16,"{name}",{value},1000,{end}'
    agent = '"Node_Id","Logical_Node_Id","Agent_Type","Cu_Count","Simd_Per_Cu","Max_Waves_Per_Cu","Wave_Front_Size","Num_Xcc","Max_Engine_Clk_Fcompute","Gfx_Target_Version","Name","Product_Name"\n4,4,"GPU",304,4,32,64,8,2100,90402,"gfx942","AMD Instinct MI300X"\n'
    passes = {1: {"GRBM_GUI_ACTIVE": 8 * 21000, "SQ_VALU_MFMA_BUSY_CYCLES": 0.75 * 21000 * 304 * 4},
              2: {"TCC_HIT_sum": 30, "TCC_MISS_sum": 10, "GRBM_GUI_ACTIVE": 8 * 21000}}  # fmt: skip
    for number, values in passes.items():
        folder = tmp_path / f"pmc_{number}" / "host"
        folder.mkdir(parents=True)
        rows = [row.format(pid=number, name=name, value=value, end=11000) for name, value in values.items()]
        (folder / f"{number}_counter_collection.csv").write_text("\n".join([head, *rows]) + "\n")
        (folder / f"{number}_agent_info.csv").write_text(agent)
    found = table("counters", read(tmp_path)).row(0, named=True)
    assert (found["kernel"], found["dispatches"], found["time_ns"]) == ("gemm", 1, 10000)
    assert found["mfma_busy_share"] == pytest.approx(0.75)
    assert found["l2_hit_share"] == pytest.approx(0.75)
    assert found["clock_mhz"] == pytest.approx(2100)
    assert found["bound"] == "compute"


@pytest.mark.parametrize(("gib", "name"), [(256, "MI325X"), (192, "MI300X"), (0, "MI300X or MI325X")])
def test_a_gpu_without_a_name_is_told_by_its_memory(gib: int, name: str) -> None:
    agent = {
        "name": "gfx942",
        "product_name": "",
        "cu_count": 304,
        "mem_banks": [{"heap_type": 1, "size_in_bytes": gib << 30}],
    }
    peaks = gpu_of(Trace(pl.DataFrame(schema=SCHEMA), devices=[agent]), 0).peaks
    assert peaks is not None
    assert peaks.name == name
