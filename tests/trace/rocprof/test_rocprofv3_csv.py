"""rocprofv3's CSVs: every generation of titles, one process or many, and a sentence for whatever is wrong."""

import contextlib
import gzip
import random
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocprof_files import KERNEL_TITLES, NO_THREAD, agent_info, csv_files, csv_text, events, write

from rung.errors import InputError
from rung.trace.rocprof import v3_csv as rocprofv3_csv
from rung.trace.table import COUNTERS, SCHEMA

COLUMNS = ("ts", "dur", "kind", "name", "tid", "device", "stream", "correlation", "bytes")
EVENT = {
    "kind": "kernel",
    "name": "void add<float>(float*, int)",
    "ts": 1550151853029637,
    "dur": 12800,
    "tid": 834304,
    "device": 1,
    "stream": 0,
    "correlation": 5,
    "bytes": 64,
}


def expected(found, version):
    """What the files of this version can say of the events."""
    rows = []
    for event in found:
        kind = event["kind"]
        row = {column: event[column] for column in COLUMNS} | {"tid": str(event["tid"])}
        if kind in ("memcpy", "allocation") or (kind == "kernel" and version in NO_THREAD):
            row["tid"] = ""
        if kind in ("runtime", "annotation"):
            row["device"] = None
        if kind in ("runtime", "annotation", "allocation") or (kind == "memcpy" and version[0] == "6"):
            row["stream"] = None
        if kind != "allocation":
            row["bytes"] = None
        rows.append(tuple(row[column] for column in COLUMNS))
    return sorted(rows, key=str)


def rows_of(trace):
    return sorted(trace.events.select(COLUMNS).rows(), key=str)


@given(events(), st.sampled_from(list(KERNEL_TITLES)))
def test_random_events_read_back_equal_in_every_version(found, version):
    with tempfile.TemporaryDirectory() as folder:
        trace = rocprofv3_csv.read(write(Path(folder), csv_files(version, found)))
    assert rows_of(trace) == expected(found, version)
    assert trace.unread == {}
    assert dict(trace.events.schema) == SCHEMA
    assert set(trace.events["pid"]) == {"77"}


def counter_text(version, rows):
    """rows: (correlation, agent, kernel, counter, value, start)."""
    short = ["Correlation_Id", "Dispatch_Id", "Agent_Id", "Queue_Id", "Process_Id", "Thread_Id", "Grid_Size"]
    titles = {
        "6.2": [*short, "Kernel_Name", "Workgroup_Size", "Counter_Name", "Counter_Value"],
        "earliest": [*short, "Kernel-Name", "Workgroup_Size", "Counter_Name", "Counter_Value"],
        "6.3": [*short, "Kernel_Name", "Counter_Name", "Counter_Value", "Start_Timestamp", "End_Timestamp"],
        "6.4": [*short, "Kernel_Id", "Kernel_Name", "Accum_VGPR_Count", "Counter_Name", "Counter_Value", "Start_Timestamp", "End_Timestamp"],
        "7.0 converted": ["Pid", *short, "Kernel_Id", "Kernel_Name", "Counter_Name", "Counter_Value", "Start_Timestamp", "End_Timestamp"],
    }[version]  # fmt: skip
    made = []
    for correlation, agent, kernel, counter, value, start in rows:
        known = {
            "Correlation_Id": correlation,
            "Agent_Id": agent,
            "Queue_Id": 1,
            "Process_Id": 9,
            "Counter_Name": counter,
        }
        known |= {"Kernel_Name": kernel, "Kernel-Name": kernel, "Counter_Value": value, "Pid": "0000-guid"}
        known |= {"Start_Timestamp": start, "End_Timestamp": start + 10, "Thread_Id": 3, "Dispatch_Id": correlation}
        made.append([known.get(title, 0) for title in titles])
    return csv_text(titles, made)


@pytest.mark.parametrize("version", ["earliest", "6.2", "6.3", "6.4", "7.0 converted"])
def test_counters_of_every_version(tmp_path, version):
    agent = "Agent 3" if version[0] == "7" else 3
    rows = [(7, agent, "k(int, int)", "SQ_WAVES", 16384.0, 100), (7, agent, "k(int, int)", "GRBM_COUNT", 0.5, 100)]
    files = {"1_counter_collection.csv": counter_text(version, rows), "1_agent_info.csv": agent_info()}
    trace = rocprofv3_csv.read(write(tmp_path, files))
    assert dict(trace.counters.schema) == COUNTERS
    assert trace.counters.rows() == [
        (7, 1, "k(int, int)", "SQ_WAVES", 16384.0, None),
        (7, 1, "k(int, int)", "GRBM_COUNT", 0.5, None),
    ]
    timed = version not in ("earliest", "6.2")
    # Without a kernel trace, the dispatch is known from its counters, once.
    assert trace.events.select("ts", "dur", "device", "correlation").rows() == ([(100, 10, 1, 7)] if timed else [])


def test_a_kernel_trace_beside_the_counters_is_not_counted_twice(tmp_path):
    files = csv_files("7.0", [EVENT])
    files["77_counter_collection.csv"] = counter_text("6.4", [(5, "Agent 3", EVENT["name"], "SQ_WAVES", 1, 7)])
    trace = rocprofv3_csv.read(write(tmp_path, files))
    assert trace.events["correlation"].to_list() == trace.counters["correlation"].to_list() == [5]


def test_a_counter_that_is_no_number_is_counted(tmp_path):
    text = counter_text("6.4", [(7, 3, "k", "SQ_WAVES", "nan", 1), (7, 3, "k", "X", "n/a", 1), (7, 3, "k", "Y", 2, 1)])
    trace = rocprofv3_csv.read(write(tmp_path, {"1_counter_collection.csv": text}))
    assert trace.counters["counter"].to_list() == ["Y"]
    assert trace.unread == {"counter value that is not a number": 2}


def test_processes_of_a_folder_are_ranks_and_keep_their_pids(tmp_path):
    for pid in (9, 10):
        write(tmp_path / "node1", csv_files("7.0", [EVENT], pid))
    write(
        tmp_path / "node1",
        {"8_hip_api_trace.csv": csv_files("7.0", [EVENT | {"kind": "runtime"}], 8)["8_hip_api_trace.csv"]},
    )
    trace = rocprofv3_csv.read(tmp_path)
    assert trace.events.select("pid", "rank").rows() == [("8", None), ("9", 0), ("10", 1)]
    assert [process["host"] for process in trace.meta["processes"]] == ["node1"] * 3
    assert [gpu["cu_count"] for gpu in trace.devices] == [304] * 3


def test_a_rank_in_a_name_is_the_rank(tmp_path):
    for rank in (3, 1):
        write(tmp_path, {f"run_rank{rank}_kernel_trace.csv": csv_files("7.0", [EVENT])["77_kernel_trace.csv"]})
    assert rocprofv3_csv.read(tmp_path).events["rank"].to_list() == [1, 3]
    assert rocprofv3_csv.read(tmp_path / "run_rank3_kernel_trace.csv").events["rank"].to_list() == [3]


def test_other_passes_of_a_counter_run_give_counters_and_their_events_are_counted(tmp_path):
    for number in (1, 2):
        files = {"7_counter_collection.csv": counter_text("6.4", [(7, 3, "k", f"C{number}", number, 5)])}
        write(tmp_path / f"pmc_{number}" / "node1", files)
    trace = rocprofv3_csv.read(tmp_path)
    assert trace.counters["counter"].to_list() == ["C1", "C2"]
    assert trace.events.height == 1
    assert trace.unread == {"event of another counter pass of the same program": 1}


@pytest.mark.parametrize(
    ("agent", "device"),
    [("Agent 3", 1), ("Agent-4", 2), ("GPU 2", 2), ("CPU 0", None), (2, 0), ("", None), ("Agent 99", None)],
)
def test_agents_are_written_in_many_ways(tmp_path, agent, device):
    files = csv_files("7.0", [EVENT])
    files["77_kernel_trace.csv"] = files["77_kernel_trace.csv"].replace('"Agent 3"', f'"{agent}"')
    assert rocprofv3_csv.read(write(tmp_path, files)).events["device"].to_list() == [device]


def test_agents_by_logical_or_by_absolute_number(tmp_path):
    # A container that hides a node: nodes 0, 5, 6 are logically 0, 1, 2.
    titles = ["Node_Id", "Logical_Node_Id", "Agent_Type"]
    info = csv_text(titles, [[0, 0, "CPU"], [5, 1, "GPU"], [6, 2, "GPU"]])
    for agent, device in (("Agent 2", 1), ("Agent 5", 0), ("Agent 6", 1)):
        files = csv_files("7.0", [EVENT]) | {"77_agent_info.csv": info}
        files["77_kernel_trace.csv"] = files["77_kernel_trace.csv"].replace('"Agent 3"', f'"{agent}"')
        assert rocprofv3_csv.read(write(tmp_path, files)).events["device"].to_list() == [device], agent


def test_a_bare_number_is_the_node_and_a_named_one_the_logical_node(tmp_path):
    info = csv_text(["Node_Id", "Logical_Node_Id", "Agent_Type"], [[0, 0, "CPU"], [2, 1, "GPU"], [3, 2, "GPU"]])
    for agent, device in (("2", 0), ('"Agent 2"', 1)):
        files = csv_files("7.0", [EVENT]) | {"77_agent_info.csv": info}
        files["77_kernel_trace.csv"] = files["77_kernel_trace.csv"].replace('"Agent 3"', agent)
        assert rocprofv3_csv.read(write(tmp_path, files)).events["device"].to_list() == [device], agent


def test_a_missing_file_and_a_doubled_title(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        rocprofv3_csv.read(tmp_path / "none.csv")
    text = KERNELS.replace('"LDS_Block_Size"', '"Start_Timestamp"')
    trace = rocprofv3_csv.read(write(tmp_path, {"1_kernel_trace.csv": text}) / "1_kernel_trace.csv")
    assert trace.events["ts"].to_list() == [EVENT["ts"], 7]
    assert trace.unread == {"column whose title occurs twice": 1}


def test_one_file_finds_the_agents_beside_it_or_counts_those_it_sees(tmp_path):
    write(tmp_path, csv_files("7.0", [EVENT]))
    assert rocprofv3_csv.read(tmp_path / "77_kernel_trace.csv").events["device"].to_list() == [1]
    (tmp_path / "77_agent_info.csv").unlink()
    assert rocprofv3_csv.read(tmp_path / "77_kernel_trace.csv").events["device"].to_list() == [0]


def test_domains_of_calls(tmp_path):
    titles = ["Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id", "Start_Timestamp", "End_Timestamp"]
    domains = ["HIP_COMPILER_API_EXT", "HSA_AMD_EXT_API", "RCCL_API", "ROCDECODE_API", "MARKER_CORE_RANGE_API", "OMPT"]
    rows = [[domain, "f\nof two lines, quoted", 1, 2, 3, 10, 10] for domain in domains]
    trace = rocprofv3_csv.read(write(tmp_path, {"x_regions.csv": csv_text(titles, rows)}))
    assert trace.events["kind"].to_list() == ["runtime"] * 4 + ["annotation", "other"]
    assert set(trace.events["name"]) == {"f\nof two lines, quoted"}
    assert trace.events["pid"].to_list() == ["1"] * 6


@pytest.mark.parametrize("flags", ["Alloc_Flags", "Alloc_flags"])
def test_scratch_memory(tmp_path, flags):
    titles = [
        "Kind",
        "Operation",
        "Agent_Id",
        "Queue_Id",
        "Thread_Id",
        flags,
        "Start_Timestamp",
        "End_Timestamp",
        "Allocation_Size",
    ]
    rows = [["SCRATCH_MEMORY", "SCRATCH_MEMORY_ALLOC", "Agent 1", 4, 5007, 1, 10, 30, 173015040]]
    for width, size in ((9, 173015040), (8, None)):
        text = csv_text(titles[:width], [row[:width] for row in rows])
        row = rocprofv3_csv.read(write(tmp_path, {"1_scratch_memory_trace.csv": text})).events.row(0, named=True)
        assert (row["kind"], row["name"], row["stream"], row["bytes"], row["dur"]) == (
            "allocation", "SCRATCH_MEMORY_ALLOC", 4, size, 20,
        )  # fmt: skip


@pytest.mark.parametrize("title", ["Address", "Starting_Address"])
@pytest.mark.parametrize("swapped", [False, True])
def test_allocations_of_builds_with_other_titles_or_swapped_columns(tmp_path, title, swapped):
    pair = ["Allocation_Size", title]
    titles = ["Kind", "Operation", "Agent_Id", *pair, "Correlation_Id", "Start_Timestamp", "End_Timestamp"]
    cells = [1024, "0x00007ffb26354000"][:: -1 if swapped else 1]
    rows = [["MEMORY_ALLOCATION", "MEMORY_ALLOCATION_ALLOCATE", "Agent 0", *cells, 1, 10, 30]]
    rows += [["MEMORY_ALLOCATION", "MEMORY_ALLOCATION_FREE", "", 0, "0x00007ffb26354000", 1, 40, 50]]
    trace = rocprofv3_csv.read(write(tmp_path, {"1_memory_allocation_trace.csv": csv_text(titles, rows)}))
    assert trace.events["bytes"].to_list() == [1024, 0]
    assert trace.events["name"].to_list() == ["MEMORY_ALLOCATION_ALLOCATE", "MEMORY_ALLOCATION_FREE"]


def test_statistics_and_pc_samples_are_no_events(tmp_path):
    titles = ["Name", "Calls", "TotalDurationNs", "AverageNs", "Percentage", "MinNs", "MaxNs", "StdDev"]
    samples = ["Sample_Timestamp", "Exec_Mask", "Dispatch_Id", "Instruction", "Instruction_Comment", "Correlation_Id"]
    files = {
        "1_kernel_stats.csv": csv_text(titles, [["k", 3, 30, 10.0, 100.0, 9, 11, 1.0]]),
        "1_pc_sampling_host_trap.csv": csv_text(samples, [[1, 2**64 - 1, 1, "v_add", "", 1]] * 4),
    }
    trace = rocprofv3_csv.read(write(tmp_path, files))
    assert trace.events.height == 0
    assert trace.unread == {"PC sample": 4}
    assert trace.meta["statistics"]["1_kernel_stats.csv"][0]["totaldurationns"] == "30"


def test_times_that_are_none_are_counted_by_reason(tmp_path):
    start = str(EVENT["ts"])
    text = csv_files("7.0", [EVENT] * 7)["77_kernel_trace.csv"].splitlines()
    for line, value in enumerate(["1.55015E+15", "soon", "", str(2**80), str(EVENT["ts"] + 12801), f"{start}.4"], 1):
        text[line] = text[line].replace(start, value)
    trace = rocprofv3_csv.read(write(tmp_path, {"77_kernel_trace.csv": "\r\n".join(text) + "\r\n"}))
    assert trace.events["ts"].to_list() == [EVENT["ts"]] * 2  # 0.4 ns are rounded
    assert trace.unread == {
        "time rounded by a spreadsheet": 1,
        "no readable start or duration": 3,
        "negative duration": 1,
    }
    assert trace.unread_ns == {"negative duration": 1}


KERNELS = csv_files("7.0", [EVENT, EVENT | {"ts": 7}])["77_kernel_trace.csv"]


def test_compressed_with_a_byte_order_mark_and_invalid_text(tmp_path):
    path = tmp_path / "any name"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + KERNELS.encode().replace(b"float", b"fl\xffat")))
    trace = rocprofv3_csv.read(path)
    assert trace.events["name"].to_list() == ["void add<fl\ufffdat>(fl\ufffdat*, int)"] * 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (KERNELS.splitlines()[0].encode() + b"\n", "no rows"),
        (KERNELS[:-60].encode(), "cut-off or damaged"),
        (KERNELS[: KERNELS.index("float*") + 2].encode(), "cut-off or damaged"),
        (b"a,b\n1,2\n", "titles are others"),
        (b"\x00\x01\x02\xff" * 50, "titles are others"),
        (gzip.compress(KERNELS.encode())[:-9], "cut-off gzip"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path, content, words):
    path = tmp_path / "1_kernel_trace.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        rocprofv3_csv.read(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cut", [60, 190, 210])
def test_partial_reads_what_is_whole_and_counts_the_rest(tmp_path, cut):
    path = tmp_path / "1_kernel_trace.csv"
    path.write_text(KERNELS[:-cut])
    trace = rocprofv3_csv.read(path, partial=True)
    assert trace.events.height == KERNELS[:-cut].count("\n") - 1
    assert trace.unread == {"row cut off at the end of the file": 1}


def test_partial_drops_only_the_line_with_a_broken_quote(tmp_path):
    lines = KERNELS.splitlines()
    path = tmp_path / "1_kernel_trace.csv"
    path.write_text("\n".join([lines[0], lines[1].replace('int)"', "int)"), lines[2]]) + "\n")
    trace = rocprofv3_csv.read(path, partial=True)
    assert trace.events["ts"].to_list() == [7]
    assert trace.unread == {"row with an unclosed quote": 1}


def test_a_header_alone_is_an_empty_trace_with_partial_and_counted_in_a_folder(tmp_path):
    files = csv_files("7.0", [EVENT]) | {
        "77_memory_copy_trace.csv": "Kind,Direction,Source_Agent_Id,Destination_Agent_Id,Start_Timestamp,End_Timestamp\n"
    }
    trace = rocprofv3_csv.read(write(tmp_path, files))
    assert trace.events.height == 1
    assert trace.unread == {"file with a header and no rows": 1}
    assert rocprofv3_csv.read(tmp_path / "77_memory_copy_trace.csv", partial=True).events.height == 0


def test_a_file_beyond_the_limit_is_refused(tmp_path):
    path = tmp_path / "bomb.csv"
    path.write_bytes(gzip.compress(KERNELS.encode() + b"\n" * 50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="more than 1,000,000 bytes"):
            rocprofv3_csv.read(path, max_bytes=1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000  # refused while it unfolds, not after
    finally:
        tracemalloc.stop()


def test_sniffing_is_by_content(tmp_path):
    assert rocprofv3_csv.sniff(KERNELS.encode(), Path("x"))
    for other in (b"", b"{", b"Name,Calls,TotalDurationNs,AverageNs,Percentage\n", b"Dispatch_ID,GPU_ID,Kernel_Name\n"):
        assert not rocprofv3_csv.sniff(other, Path("x_kernel_trace.csv"))
    assert not rocprofv3_csv.sniff(b"", tmp_path)
    with pytest.raises(InputError, match="holds no CSV"):
        rocprofv3_csv.read(tmp_path)
    write(tmp_path / "deep" / "er", {"77_kernel_trace.csv": KERNELS})
    assert rocprofv3_csv.sniff(b"", tmp_path)


def test_mutated_files_give_a_trace_or_a_sentence(tmp_path):
    rng = random.Random(4)
    texts = [csv_files(version, [EVENT] * 3)["77_kernel_trace.csv"] for version in KERNEL_TITLES]
    counters = counter_text("6.4", [(7, 3, "k", "A", 1.0, 5)] * 3)
    for whole in (text.encode() for text in [*texts, counters, counters, agent_info()]):
        for _ in range(60):
            data = bytearray(whole)
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(len(data))] = rng.choice(b'",\n\r\x00\xff0Ee-{')
            path = tmp_path / "f.csv"
            path.write_bytes(data[: rng.choice([len(data), rng.randrange(len(data))])])
            with contextlib.suppress(InputError):
                rocprofv3_csv.read(path, partial=rng.random() < 0.5)
