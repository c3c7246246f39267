"""rocprof-compute's workload folders: real ones against what the tool answers for them, and made ones."""

import contextlib
import gzip
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocprof_files import DISPATCH_COLUMNS, counter_rows, csv_text, dispatch_rows, events, write

from rung.errors import InputError
from rung.trace.rocprof import compute as rocprof_compute
from rung.trace.table import COUNTERS, SCHEMA

SHARED = Path(__file__).parents[4] / "shared" / "data" / "rocprof_compute"
# Durations, number of counters, and sums that follow from the means which rocprof-compute 3.3 prints (L2 hits, requests).
REAL = {
    "vcopy_MI200": ([20480, 16320, 15520], 982, 3 * 70872, 3 * 201954),
    "kernel_MI300X": ([16879, 14280, 45159], 2675, 3 * 65744, 3 * 197063),
    "vcopy_MI350": ([21762, 16920, 16864], 1021, 3 * 66864, 3 * 197987),
}


@pytest.mark.skipif(not SHARED.exists(), reason="the shared recordings are not beside the project")
@pytest.mark.parametrize("name", REAL)
def test_real_workloads(name):
    durations, counters, hits, requests = REAL[name]
    folder = SHARED / name
    assert rocprof_compute.sniff(b"", folder)
    trace = rocprof_compute.read(folder)
    assert trace.events["dur"].to_list() == durations
    assert set(trace.events["name"].str.slice(0, 7)) == {"vecCopy"}
    assert trace.events["device"].to_list() == [0, 0, 0]
    assert trace.counters["counter"].n_unique() == counters
    sums = {
        row[0]: row[1] for row in trace.counters.group_by("counter").agg(value=trace.counters["value"].sum()).rows()
    }
    assert sums  # every counter has values

    def total(counter):
        return trace.counters.filter(counter=counter)["value"].sum()

    assert total("SQ_WAVES") == 3 * 16384
    assert round(total("TCC_HIT_sum")) == hits
    assert round(total("TCC_REQ_sum")) == pytest.approx(requests, abs=2)
    assert total("SQ_INSTS_VALU") == 3 * 98304 or total("SQ_INSTS_VALU") == 3 * 163840
    assert trace.counters.group_by("counter").len()["len"].to_list() == [3] * counters
    assert trace.counters["correlation"].null_count() == 0
    assert set(trace.unread) == {"counter value that another pass has too"}
    assert trace.devices[0]["name"] == name.split("_")[1] or trace.devices[0]["name"] == "MI300X_A1"
    assert trace.meta["host"]
    assert "vcopy" in trace.meta["command"]


@pytest.mark.skipif(not SHARED.exists(), reason="the shared recordings are not beside the project")
def test_an_accumulated_counter_is_named_after_what_it_accumulates():
    counters = rocprof_compute.read(SHARED / "vcopy_MI200").counters
    waves = counters.filter(counter="SQ_LEVEL_WAVES/SQ_ACCUM_PREV_HIRES")
    assert waves["value"].to_list() == [44799316.0, 77475332.0, 79703012.0]
    assert counters.filter(counter="SQ_IFETCH_LEVEL/SQ_ACCUM_PREV_HIRES")["value"][0] == 1540604
    assert rocprof_compute.read(SHARED / "vcopy_MI200").meta["roofline"][0]["HBMBw"] == 1388.9302


V1 = ["Dispatch_ID", "Kernel_Name", "GPU_ID", "queue-id", "pid", "tid", "Grid_Size", "wave_size", "sig", "obj"]
V2 = [
    "Dispatch_ID",
    "GPU_ID",
    "Queue_ID",
    "PID",
    "TID",
    "Grid_Size",
    "Wave_Size",
    "Kernel_Name",
    "Correlation_ID",
    "XCC_Index_7",
]
V3 = [*V2, "Kernel_ID", "Kernel_ID_1"]
TIMES = ["Start_Timestamp", "End_Timestamp"]


def table(titles, found, counters=(), gpu=60633):
    rows = []
    for place, event in enumerate(found):
        known = {
            "dispatch_id": place,
            "kernel_name": event["name"],
            "gpu_id": gpu + event["device"],
            "queue_id": event["stream"],
            "queue-id": event["stream"],
            "pid": 5,
            "tid": event["tid"],
            "start_timestamp": event["ts"],
            "end_timestamp": event["ts"] + event["dur"],
        } | {counter.lower(): event["bytes"] for counter in counters}
        rows.append([known.get(title.lower(), 0) for title in [*titles, *counters]])
    return csv_text([*titles, *counters], rows)


@given(events(("kernel",)), st.sampled_from([V1, V2, V3]))
def test_random_workloads_read_back_equal(found, titles):
    names = ["SQ_WAVES", "TCC_HIT[0]", "TCC_HIT[1]", "SQC_DCACHE_REQ_READ_1"]
    with tempfile.TemporaryDirectory() as folder:
        trace = rocprof_compute.read(write(Path(folder), {"pmc_perf.csv": table([*titles, *TIMES], found, names)}))
    assert trace.events.select(DISPATCH_COLUMNS).rows() == dispatch_rows(found)
    assert trace.counters.rows() == counter_rows(found, names)
    assert dict(trace.events.schema) == SCHEMA
    assert dict(trace.counters.schema) == COUNTERS
    assert trace.unread == {}


EVENT = {"name": "k(int, int)", "ts": 1000, "dur": 50, "tid": 8, "device": 0, "stream": 3, "bytes": 7}
TWO = [EVENT, EVENT | {"name": "l", "ts": 2000}]


def test_times_and_queues_come_from_a_neighbour_where_the_joined_table_has_none(tmp_path):
    bare = [title for title in V2 if title not in ("Queue_ID", "PID", "TID")]
    files = {"pmc_perf.csv": table(bare, TWO, ["SQ_WAVES"]), "timestamps.csv": table([*V2, *TIMES], TWO)}
    trace = rocprof_compute.read(write(tmp_path, files))
    assert trace.events.select("ts", "dur", "stream", "correlation").rows() == [(1000, 50, 3, 0), (2000, 50, 3, 1)]
    (tmp_path / "timestamps.csv").unlink()
    trace = rocprof_compute.read(tmp_path)
    assert trace.events.height == 0
    assert trace.counters.height == 2
    assert trace.unread == {"dispatch without a time": 2}


def test_passes_are_joined_by_place_and_a_counter_is_taken_once(tmp_path):
    files = {
        "pmc_perf_0.csv": table([*V3, *TIMES], TWO, ["SQ_WAVES", "A"]),
        "pmc_perf_1.csv": table([*V3, *TIMES], TWO, ["SQ_WAVES", "B"]),
        "SQ_LEVEL_WAVES.csv": table([*V3, *TIMES], TWO[::-1], ["C"]),
    }
    trace = rocprof_compute.read(write(tmp_path, files))
    places = {row[0]: row[1] for row in trace.counters.group_by("counter").agg("correlation").rows()}
    # The last pass ran the kernels in another order: its places name other dispatches.
    assert places == {"C": [0, 1], "SQ_WAVES": [None, None], "A": [None, None], "B": [None, None]}
    assert trace.unread == {"counter value that another pass has too": 2}
    (tmp_path / "SQ_LEVEL_WAVES.csv").unlink()
    assert rocprof_compute.read(tmp_path).counters["correlation"].to_list() == [0, 1] * 3


def test_the_long_form_of_newer_versions(tmp_path):
    titles = ["GPU_ID", "Dispatch_ID", "Grid_Size", "Kernel_Name", *TIMES, "Kernel_ID", "Counter_Name", "Counter_Value"]
    rows = []
    for counter, spread in (("A", 0), ("B", 4), ("C", 100)):
        rows += [
            [0, place, 64, "k", 1000 + spread, 1000 + spread + 10 + spread, 3, counter, place + 0.5] for place in (4, 9)
        ]
    trace = rocprof_compute.read(write(tmp_path, {"pmc_perf.csv": csv_text(titles, rows)}))
    assert trace.events.select("ts", "dur", "name", "device").rows() == [(1000, 14, "k", 0)] * 2
    assert sorted(trace.counters.select("correlation", "counter", "value").rows()) == [
        (place, counter, value) for place, value in ((0, 4.5), (1, 9.5)) for counter in "ABC"
    ]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_passes_of_newer_versions_are_joined_where_analyze_has_not(tmp_path, packed):
    titles = ["GPU_ID", "Dispatch_ID", "Grid_Size", "Kernel_Name", *TIMES, "Kernel_ID", "Counter_Name", "Counter_Value"]

    def put(name, *counters):
        text = csv_text(titles, [[0, place, 64, "k", 1000, 1010, 3, c, place] for place in (1, 2) for c in counters])
        path = tmp_path / (f"{name}.csv.gz" if packed else f"{name}.csv")
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())

    put("results_pmc_perf_0", "A")
    put("results_pmc_perf_1", "B")
    assert rocprof_compute.sniff(b"", tmp_path)
    assert rocprof_compute.is_workload(tmp_path)
    trace = rocprof_compute.read(tmp_path)
    assert trace.events.height == 2
    values = [(0, "A", 1.0), (0, "B", 1.0), (1, "A", 2.0), (1, "B", 2.0)]
    assert sorted(trace.counters.select("correlation", "counter", "value").rows()) == values
    put("pmc_perf", "A", "B")  # as `analyze` joins them
    joined = rocprof_compute.read(tmp_path)
    assert sorted(joined.counters.select("correlation", "counter", "value").rows()) == values
    assert joined.unread == {}


def test_tables_of_rocprofv3_are_no_workload_whatever_their_name(tmp_path):
    for name in ("results_kernel_trace.csv", "results_pmc_perf_0_marker_api_trace.csv"):
        (tmp_path / name).write_text("Kind,Agent_Id,Kernel_Name\nKERNEL_DISPATCH,1,k\n")
    assert not rocprof_compute.sniff(b"", tmp_path)
    (tmp_path / "results_pmc_perf_0_marker_api_trace.csv").unlink()
    assert not rocprof_compute.is_workload(tmp_path)


def test_a_pass_of_another_layout_is_refused(tmp_path):
    (tmp_path / "results_pmc_perf_0.csv").write_text("Kernel,Counter,Value\nk,A,1\n")
    with pytest.raises(InputError, match="is not a table of dispatches"):
        rocprof_compute.read(tmp_path)


def test_times_rounded_by_a_spreadsheet_are_said_and_means_are_rounded(tmp_path):
    text = table([*V3, *TIMES], [*TWO, *TWO], ["A"])
    text = text.replace(",1000,1050,", ",1.62068E+14,1.62068E+14,", 1).replace(",2000,2050,", ",1999.5,2050.25,", 1)
    trace = rocprof_compute.read(write(tmp_path, {"pmc_perf.csv": text}))
    assert trace.unread == {"time rounded by a spreadsheet": 1}
    assert trace.events.select("ts", "dur", "correlation").rows() == [(2000, 50, 1), (1000, 50, 2), (2000, 50, 3)]
    assert trace.counters.height == 4


def test_secrets_in_the_recorded_command_are_gone(tmp_path):
    info = csv_text(["command", "hostname", "gpu_model"], [["./a --wandb-key=s3cret -n 3", "h", "MI300X"]])
    trace = rocprof_compute.read(write(tmp_path, {"pmc_perf.csv": table([*V3, *TIMES], TWO), "sysinfo.csv": info}))
    assert trace.meta["command"] == "./a --wandb-key=(redacted) -n 3"
    assert "s3cret" not in str(trace)
    assert trace.devices == [{"name": "MI300X", "gpu_model": "MI300X"}]


def test_one_table_of_rocprofv2_is_read_alone(tmp_path):
    text = table([*V2, *TIMES], TWO, ["SQ_WAVES"])
    path = write(tmp_path, {"x.csv": text}) / "x.csv"
    assert rocprof_compute.sniff(text.encode(), path)
    trace = rocprof_compute.read(path)
    assert trace.format == "rocprofv2-csv"
    assert trace.events.height == trace.counters.height == 2


WHOLE = table([*V3, *TIMES], TWO, ["SQ_WAVES"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (WHOLE.splitlines()[0].encode(), "no rows"),
        (WHOLE[:-12].encode(), "cut-off or damaged"),
        (b"a,b\n1,2\n", "not a table of dispatches"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path, content, words):
    path = tmp_path / "pmc_perf.csv"
    path.write_bytes(content)
    for named in (path, tmp_path):
        with pytest.raises(InputError) as caught:
            rocprof_compute.read(named)
        assert words in str(caught.value)
        assert str(path) in str(caught.value)
    path.unlink()
    assert not rocprof_compute.sniff(b"", tmp_path)
    with pytest.raises(InputError, match=r"holds no pmc_perf\.csv"):
        rocprof_compute.read(tmp_path)


def test_partial_reads_what_is_whole_and_counts_the_rest(tmp_path):
    trace = rocprof_compute.read(write(tmp_path, {"pmc_perf.csv": WHOLE[:-12]}), partial=True)
    assert trace.events["ts"].to_list() == [1000]
    assert trace.unread == {"row cut off at the end of the file": 1}


def test_sniffing_is_by_content():
    assert rocprof_compute.sniff(WHOLE.encode(), Path("x"))
    for head in (b"", b"Kind,Agent_Id,Kernel_Name\n", b"Dispatch_ID,Kernel_Name,GPU_ID\n"):
        assert not rocprof_compute.sniff(head, Path("pmc_perf.csv"))


def test_mutated_files_give_a_trace_or_a_sentence(tmp_path):
    rng = random.Random(7)
    path = tmp_path / "pmc_perf.csv"
    for _ in range(200):
        data = bytearray(WHOLE.encode())
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.choice(b'",\n\x00\xff0Ee-')
        path.write_bytes(data[: rng.choice([len(data), rng.randrange(len(data))])])
        with contextlib.suppress(InputError):
            rocprof_compute.read(tmp_path, partial=rng.random() < 0.5)
