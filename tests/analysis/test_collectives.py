import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_ranks import STEP_US, Rank
from test_diff import traces

from rung.analysis.collective_calls import collective_calls, plain
from rung.analysis.collectives import collectives
from rung.analysis.communication import communication
from rung.analysis.skew import clock_offsets, skew
from rung.analysis.stragglers import stragglers
from rung.report import distributed
from rung.trace import read
from rung.trace.table import Trace

DDP = Path(__file__).parents[1] / "data" / "ddp"
SHARED = Path(__file__).parents[3] / "shared" / "data" / "traces"


def two_ranks(folder: Path, shift: float = 0.0, seq: bool = True, late_us: float = 3000.0) -> Trace:
    """Two steps of two ranks; in the second, rank 1 computes `late_us` longer before the all-reduce of 1 ms."""
    for rank in (0, 1):
        made = Rank(rank, 2, shift if rank else 0.0)
        for step in (0, 1):
            begin = step * STEP_US
            busy = 1000 + (late_us if rank == 1 and step == 1 else 0)
            made.step(step)
            made.kernel("aten::mm", begin + 10, begin + 20, busy)
            meet = begin + 20 + 1000 + (late_us if step == 1 else 0)
            said = {"Seq": 7 + step} if seq else {}
            made.all_reduce(begin + 30, begin + 20 + busy, meet + 1000, **said)
            made.kernel("aten::relu", begin + 60, begin + 20 + busy, 500)
        made.write(folder)
    return read(folder)


@pytest.mark.parametrize("seq", [True, False])
def test_transfer_is_told_from_waiting(tmp_path: Path, seq: bool) -> None:
    found = collectives(two_ranks(tmp_path, seq=seq))
    assert found["matched"].to_list() == ["seq" if seq else "order"] * 2
    assert found["transfer_ns"].to_list() == [1_000_000, 1_000_000]
    assert found["waiting_ns"].to_list() == [0, 3_000_000]
    assert found["skew_ns"].to_list() == [0, 3_000_000]
    assert found["last_rank"].to_list()[1] == 1
    # 4 MB in 1 ms among two ranks: 4 GB/s, and a ring of two sends each byte once
    assert found["algorithm_gb_per_s"].to_list() == [4.0, 4.0]
    assert found["bus_gb_per_s"].to_list() == [4.0, 4.0]
    # the relu runs beside the collective: half a millisecond on each rank
    assert found["exposed_ns"].to_list() == [1_000_000, 4_000_000]


@given(shift=st.integers(-50_000, 50_000), late=st.integers(0, 4000))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_clocks_need_not_agree(tmp_path: Path, shift: int, late: int) -> None:
    trace = two_ranks(tmp_path, shift=shift, late_us=late)
    found = collectives(trace)
    assert (found["spent_ns"] == found["ranks"] * found["transfer_ns"] + found["waiting_ns"]).all()
    assert found["skew_ns"].to_list() == [0, late * 1000]
    assert clock_offsets(trace) == {0: 0, 1: shift * 1000}


def test_a_straggler_has_its_step_and_what_it_did_before(tmp_path: Path) -> None:
    (row,) = stragglers(two_ranks(tmp_path)).to_dicts()
    assert (row["rank"], row["step"], row["cause"], row["op"]) == (1, 1, "computation", "aten::mm")
    assert (row["late_ns"], row["op_ns"], row["others_op_ns"]) == (3_000_000, 4_000_000, 1_000_000)


def test_ranks_that_start_recording_later_are_matched_by_sequence_number(tmp_path: Path) -> None:
    for rank, first in ((0, 0), (1, 2)):
        made = Rank(rank, 2)
        for number in range(first, 5):
            made.all_reduce(number * 100, number * 100 + 10, number * 100 + 50, Seq=number)
        made.write(tmp_path)
    found = collectives(read(tmp_path))
    assert dict(found.select("seq", "ranks").iter_rows()) == {0: 1, 1: 1, 2: 2, 3: 2, 4: 2}
    assert found.filter(pl.col("ranks") == 1)["matched"].to_list() == ["alone", "alone"]


def test_groups_of_one_name_with_other_ranks_are_not_one(tmp_path: Path) -> None:
    for rank in range(4):
        made = Rank(rank, 4)
        pair = [rank // 2 * 2, rank // 2 * 2 + 1]
        said = {"Process Group Ranks": str(pair), "Group size": 2, "Seq": 3}
        made.all_reduce(10, 20, 60 + 100 * (rank // 2), **said)
        made.all_reduce(300, 310, 350, **said)  # coalesced with the first: the same number
        made.write(tmp_path)
    found = collectives(read(tmp_path))
    assert found["ranks"].to_list() == [2, 2, 2, 2]
    assert sorted(found["transfer_ns"].to_list()) == [40_000, 40_000, 40_000, 140_000]


def test_sends_and_receives_are_no_collectives(tmp_path: Path) -> None:
    for rank in (0, 1):
        made = Rank(rank, 2)
        made.all_reduce(10, 20, 60 + 500 * rank, **{"Collective name": "send" if rank else "recv", "Seq": 1})
        made.all_reduce(100, 900, 960, **{"Collective name": "send", "Seq": 2})
        made.write(tmp_path)
    found = collectives(read(tmp_path))
    assert found["matched"].to_list() == ["alone"] * 4
    assert stragglers(read(tmp_path)).is_empty()


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    for rank in (0, 2):
        made = Rank(rank, 4)
        made.all_reduce(10, 20, 60, Seq=1)
        made.write(tmp_path)
    trace = read(tmp_path)
    table = skew(trace)
    assert table.filter(~pl.col("recorded"))["rank"].to_list() == [1, 3]
    assert "no trace of rank 1, 3 (of 4 ranks)" in distributed.skew_line(table)
    # four ranks of the group, though two are there: 2 * 3 / 4 of 4 MB in 40 us
    assert collectives(trace)["bus_gb_per_s"].to_list() == [pytest.approx(150.0)]
    assert "at least 150 GB/s" in distributed.communication_line(communication(trace))


def test_a_trace_without_collectives_has_empty_tables(tmp_path: Path) -> None:
    made = Rank(0, 1)
    made.kernel("aten::mm", 1, 5, 10)
    made.write(tmp_path)
    trace = read(tmp_path)
    for analysis in (collectives, communication, stragglers):
        assert analysis(trace).is_empty()
    assert distributed.communication_line(communication(trace)) == ""
    assert distributed.stragglers_line(stragglers(trace)) == ""


def test_rccl_kernels_are_named_by_the_library_call_that_launched_them(tmp_path: Path) -> None:
    """rocprofv3 records RCCL's API and kernels of one name; only the call around the launch says what it was."""
    made = Rank(0, 2)
    for number, name in enumerate(("ncclAllGather", "ncclReduceScatter")):
        at = 100 * number
        made.add("cuda_runtime", name, at, 20)
        made.add("cuda_runtime", "hipExtLaunchKernel", at + 5, 5, correlation=number)
        made.add("kernel", "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", at + 30, 40, device=0, stream=3, correlation=number)  # fmt: skip
    made.write(tmp_path)
    assert collective_calls(read(tmp_path / "rank0.json"))["collective"].to_list() == ["all_gather", "reduce_scatter"]


def test_gloo_on_the_host_is_measured_too(tmp_path: Path) -> None:
    """Without a GPU the collectives are annotations on gloo's own threads, and operators are what computes."""
    for index in (0, 1):
        made = Rank(index, 2)
        for step in (0, 1):
            begin = step * STEP_US
            busy = 1000 + (3000 if index == 1 and step == 1 else 0)
            made.step(step)
            made.add("cpu_op", "aten::linear", begin + 10, busy)
            made.add("cpu_op", "aten::addmm", begin + 20, busy - 20)
            end = begin + 2000 + (3000 if step == 1 else 0)
            made.add("user_annotation", "gloo:all_reduce", begin + 10 + busy, end - begin - 10 - busy, tid=5)
        made.write(tmp_path)
    trace = read(tmp_path)
    assert collectives(trace)["skew_ns"].to_list() == [0, 3_000_000]
    (row,) = stragglers(trace).to_dicts()
    assert (row["rank"], row["step"], row["cause"], row["op"], row["op_ns"]) == (
        1,
        1,
        "computation",
        "aten::linear",
        4_000_000,
    )


@pytest.mark.parametrize(
    ("recorded", "kind"),
    [("_allgather_base", "all_gather"), ("reduce_scatter_tensor_coalesced", "reduce_scatter"), ("AllReduce", "all_reduce"),
     ("alltoall_base", "all_to_all"), ("something_new", "something_new")],
)  # fmt: skip
def test_one_name_for_what_libraries_call_differently(recorded: str, kind: str) -> None:
    assert plain(recorded) == kind


@given(traces)
def test_identities_on_whatever_traces(trace):
    table = collectives(trace)
    assert (table["spent_ns"] == table["ranks"] * table["transfer_ns"] + table["waiting_ns"]).all()
    assert (table["exposed_ns"] <= table["spent_ns"]).all()
    assert (table["skew_ns"] <= table["waiting_ns"].clip(0)).all()
    kernels = trace.events.filter(pl.col("kind") == "kernel", pl.col("name").str.contains("nccl"))
    assert table["spent_ns"].sum() == kernels["dur"].sum()
    sums = communication(trace)
    assert sums["count"].sum() == table.height
    assert set(stragglers(trace)["rank"]) <= set(skew(trace)["rank"])


# ---- recorded on H200s (tests/data/ddp/README.md) -------------------------------------------------------------------


def test_injected_gpu_work_is_found_on_its_rank_in_every_step() -> None:
    found = stragglers(read(DDP / "ranks2-slow-gpu"))
    assert found["step"].to_list() == [1, 2]
    assert set(found["rank"]) == {1}
    assert set(found["cause"]) == {"computation"}
    assert set(found["op"]) == {"aten::mm"}
    assert (found["op_ns"] - found["others_op_ns"] > 3_000_000).all()  # 24 products of 137 GFLOP at most 1 PFLOP/s


@pytest.mark.parametrize(("folder", "rank"), [("ranks2-slow-host", 1), ("ranks4-slow-host", 3)])
def test_an_injected_sleep_of_the_host_is_found_with_its_length(folder: str, rank: int) -> None:
    (row,) = stragglers(read(DDP / folder)).to_dicts()
    assert (row["rank"], row["step"], row["cause"], row["op"]) == (rank, 2, "host", "aten::pow")
    assert row["op_ns"] - row["others_op_ns"] == pytest.approx(40e6, rel=0.1)
    assert row["last_in"] == row["of"] == 7


def test_recorded_collectives_exposed_and_hidden() -> None:
    one, buckets = (collectives(read(DDP / name)) for name in ("ranks2-one-bucket", "ranks2-slow-gpu"))
    # One bucket is reduced after the backward pass: nothing hides it; many are reduced beside it.
    assert one["hidden_share"].to_list() == [0.0, 0.0]
    assert buckets["hidden_share"].mean() > 0.5
    assert one["size_bytes"].to_list() == [192_868_352] * 2
    assert buckets.filter(pl.col("step") == 1)["size_bytes"].sum() == 192_868_352
    for table in (one, buckets):
        assert set(table["ranks"]) == {2}
        assert (table["spent_ns"] == table["ranks"] * table["transfer_ns"] + table["waiting_ns"]).all()


def test_ranks_of_one_host_share_a_clock_and_that_is_found() -> None:
    for folder in DDP.iterdir():
        if folder.is_dir():
            assert all(abs(offset) < 100_000 for offset in clock_offsets(read(folder)).values()), folder


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared traces are not there")
def test_a_single_rank_on_rocm_checked_by_hand() -> None:
    """mi300_resnet_fsdp_ckpt: 12 of 17 RCCL kernels say what they are, 5 were launched before the recording."""
    trace = read(SHARED / "mi300_resnet_fsdp_ckpt.json.gz")
    table = collectives(trace)
    assert table["matched"].to_list() == ["alone"] * 17
    assert table["step"].null_count() == 5
    assert dict(table.drop_nulls("step").group_by("collective").len().iter_rows()) == {"broadcast": 6, "all_reduce": 6}
    assert table.filter(pl.col("collective") == "all_reduce")["size_bytes"].unique().sort().to_list() == [
        5_746_640,
        17_632_384,
    ]
    assert skew(trace).filter(pl.col("recorded"))["rank"].to_list() == [0]


def test_recorded_collectives_give_the_table_that_was_checked_by_hand():
    """On 21 November 2026, row by row from the two files: size is `In msg nelems` times 4 bytes, transfer the shorter of
    the two kernels' durations, skew their difference, last the rank with the shorter one.
    """
    expected = pl.read_csv(Path(__file__).parent / "golden" / "collectives_ranks2_slow_host.csv")
    found = collectives(read(DDP / "ranks2-slow-host"))
    assert found.select(expected.columns).rows() == expected.rows()
    rate = expected["size_bytes"] / expected["transfer_ns"]  # 2 (n - 1) / n is 1 for two ranks
    assert found["bus_gb_per_s"].to_list() == pytest.approx(rate.to_list())


def test_the_size_of_a_group_that_is_not_recorded_is_that_of_the_own_ranks_groups(tmp_path: Path) -> None:
    for rank, size in enumerate((8, 4)):
        one = Rank(rank, 2)
        one.kernel("aten::add", 100, 110, 20, "ncclDevKernel_AllReduce_Sum_f32_RING_LL")
        one.write(tmp_path)
        file = tmp_path / f"rank{rank}.json"
        document = json.loads(file.read_text())
        document["distributedInfo"]["pg_config"] = [{"pg_size": size}]
        file.write_text(json.dumps(document))
    assert collective_calls(read(tmp_path))["group_size"].to_list() == [8, 4]
