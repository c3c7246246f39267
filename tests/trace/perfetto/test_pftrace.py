"""The Perfetto reader, on what rocprofv3's recorder writes and on what damage makes of it."""

import contextlib
import gzip
import random
import tempfile
import time
import zlib
from pathlib import Path

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from perfetto_encoder import Recorder, block, double, number
from perfetto_encoder import varint as varint_of

from rung.errors import InputError
from rung.trace import Trace
from rung.trace.perfetto import reader as pftrace
from rung.trace.perfetto.protobuf import Malformed, Short, varint
from rung.trace.table import COUNTERS, SCHEMA

PROCESS, THREAD, STREAM = 0xF123_4567_89AB_CDEF, 77, 0x8000_0000_0000_0001
MAIN = 0x7E57_0000_1111_2222


def recorder(**how):
    out = Recorder(**how)
    out.process(PROCESS, 4242)
    out.thread(MAIN, PROCESS, 4242, 4242)
    out.track(THREAD, "THREAD 1 (4300)", PROCESS)
    out.track(STREAM, 'STREAM [" 3 "] ', PROCESS)
    return out


def session(**how):
    """A launch, its kernel with counters, a copy, and a marker."""
    out = recorder(zero=1_000, **how)
    out.slice(10_000, 10_400, MAIN, "hip_api", "hipLaunchKernel", tid=4242, kind=1, operation=9, corr_id=7)
    out.slice(10_450, 10_480, THREAD, "marker_api", "forward", tid=4300, corr_id=8)
    out.slice(
        12_000, 15_000, STREAM, "kernel_dispatch", "gemm(float*)", kind=11, agent="Agent-5", agent_type="GPU",
        corr_id=7, queue=1, tid=4242, VGPR_Count=16, workgroup_size=256, SQ_WAVES=96.0, GRBM_COUNT=1e6,
    )  # fmt: skip
    out.slice(
        16_000, 16_500, STREAM, "memory_copy", "MEMORY_COPY_DEVICE_TO_HOST", src_agent="Agent-4", dst_agent="Agent-0",
        copy_bytes=4096, corr_id=9, tid=4242,
    )  # fmt: skip
    return out


def read(data, **options):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        path.write_bytes(data)
        return pftrace.read(path, **options)


@pytest.mark.parametrize("own_clock", [False, True])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_what_rocprofv3_records_becomes_the_event_table(own_clock, pack):
    trace = read(pack(session(own_clock=own_clock).bytes()))
    assert dict(trace.events.schema) == SCHEMA
    assert trace.events.select("ts", "dur", "kind", "name", "pid", "tid", "device", "stream", "correlation").rows() == [
        (10_000, 400, "runtime", "hipLaunchKernel", "4242", "4242", None, None, 7),
        (10_450, 30, "annotation", "forward", "4242", "4300", None, None, 8),
        (12_000, 3_000, "kernel", "gemm(float*)", "4242", "4242", 1, 3, 7),
        (16_000, 500, "memcpy", "MEMORY_COPY_DEVICE_TO_HOST", "4242", "4242", 0, 3, 9),
    ]
    assert trace.events["bytes"].to_list() == [None, None, None, 4096]
    assert dict(trace.counters.schema) == COUNTERS
    assert trace.counters.rows() == [
        (7, 1, "gemm(float*)", "SQ_WAVES", 96.0, None),
        (7, 1, "gemm(float*)", "GRBM_COUNT", 1e6, None),
    ]
    assert trace.meta["agents"] == {"Agent-4": 0, "Agent-5": 1}
    assert trace.format == "pftrace"
    assert trace.unread == {}


def test_slices_without_annotations_take_the_times_of_their_begin_and_end():
    out = recorder(own_clock=True, zero=50)
    out.begin(100, MAIN, "hip_api", "outer")
    out.begin(110, MAIN, "hip_api", "inner")
    out.begin(115, THREAD, "hip_api", "elsewhere")
    out.end(120, MAIN)
    out.end(300, MAIN)
    out.end(310, THREAD)
    out.end(90, STREAM)  # backwards, and nothing is open there
    out.begin(400, MAIN, "hip_api", "never ends")
    out.counter(410, 5, 8)
    trace = read(out.bytes())
    assert trace.events.select("name", "ts", "dur").rows() == [
        ("outer", 100, 200),
        ("inner", 110, 10),
        ("elsewhere", 115, 195),
    ]
    assert trace.unread == {"end without a begin": 1, "begin without an end": 1, "counter event": 1}


def test_annotations_are_the_truth_where_kernels_were_moved_apart():
    out = recorder()
    out.begin(150, STREAM, "kernel_dispatch", "k", begin_ns=120, end_ns=190, agent="GPU-2")
    out.end(180, STREAM)
    row = read(out.bytes()).events.row(0, named=True)
    assert (row["ts"], row["dur"], row["device"]) == (120, 70, 2)


def test_a_queue_is_the_stream_where_no_stream_is_recorded():
    out = recorder()
    out.track(9, "COMPUTE Agent [4] QUEUE [2] GPU")
    out.slice(1, 2, 9, "kernel_dispatch", "k", agent="Agent-6", queue=2**64 - 1)
    out.slice(3, 4, 10, "kernel_dispatch", "k", agent="Agent-6", queue=11)
    events = read(out.bytes()).events
    assert events["stream"].to_list() == [2, 11]
    assert events["device"].to_list() == [1, 1]  # Agent 4 is the first GPU, though it ran nothing


def test_names_belong_to_their_sequence_and_are_forgotten_when_it_clears():
    one, two = Recorder(sequence=1), Recorder(sequence=2)
    one.slice(1, 2, 5, "hip_api", "a")
    two.slice(3, 4, 6, "kernel_dispatch", "b")
    first = one.bytes()
    one.clear()
    one.slice(5, 6, 5, "marker_api", "c")
    events = read(first + two.bytes() + one.bytes()[len(first) :]).events
    assert events.select("kind", "name").rows() == [("runtime", "a"), ("kernel", "b"), ("annotation", "c")]


def test_events_whose_names_were_lost_are_counted():
    out = recorder()
    out.slice(1, 2, MAIN, "hip_api", "a")
    out.put(number(8, 3) + number(13, 2) + number(42, 1) + block(11, number(9, 1) + number(10, 1) + number(11, 1)))
    out.slice(5, 6, MAIN, "hip_api", "a")
    out.clear()
    out.slice(7, 8, MAIN, "hip_api", "b")
    trace = read(out.bytes())
    assert trace.events["name"].to_list() == ["a", "b"]
    assert trace.unread == {"packets lost by the recorder": 1, "event whose names were lost": 3}


def test_packets_compressed_into_one_are_read_but_not_twice():
    inner = session().bytes()
    once = block(1, block(50, zlib.compress(inner)))
    assert read(once).events.equals(read(inner).events)
    twice = read(once + block(1, block(50, zlib.compress(once))))
    assert twice.unread == {"damaged packet": 1}


def test_other_recorders_clocks_and_instants():
    out = recorder()
    out.put(block(6, block(1, number(1, 6) + number(2, 1_000)) + block(1, number(1, 3) + number(2, 400))))
    event = number(9, 3) + block(22, "rocm_marker_api") + block(23, "mark") + number(11, MAIN)
    out.put(number(8, 500) + number(58, 3) + block(11, event))
    assert read(out.bytes()).events.select("ts", "dur", "kind", "name").rows() == [(1_100, 0, "annotation", "mark")]


def test_an_annotation_whose_text_was_never_declared_says_nothing():
    out = recorder()
    out.slice(1, 2, MAIN, "hip_api", "a")  # declares begin_ns as 1 and end_ns as 2
    unknown = b"".join(block(4, number(1, name) + number(17, 99)) for name in (1, 2))
    out.put(number(8, 5) + number(13, 2) + block(11, number(9, 1) + unknown + number(11, MAIN)))
    out.end(9, MAIN)
    assert read(out.bytes()).events.select("ts", "dur").rows() == [(1, 1), (5, 4)]


def test_a_duration_of_more_than_63_bits_is_counted():
    out = recorder()
    out.begin(1, MAIN, "hip_api", "a", begin_ns=-5, delta_ns=2**63 + 1)
    trace = read(out.bytes())
    assert trace.events.height == 0
    assert trace.unread == {"no readable start or duration": 1}


EVENTS = st.lists(
    st.tuples(
        st.integers(0, 2**62),
        st.integers(0, 2**50),
        st.sampled_from([("kernel_dispatch", "kernel"), ("hsa_api", "runtime"), ("memory_copy", "memcpy"), ("x", "other")]),
        st.text(max_size=8),
        st.integers(0, 2**63 - 1),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=9,
)  # fmt: skip


@given(EVENTS, st.booleans(), st.integers(0, 9))
def test_what_a_recorder_writes_is_what_is_read(events, own_clock, clear_at):
    out = recorder(own_clock=own_clock)
    for at, (ts, dur, (category, _), name, correlation, track, exact) in enumerate(events):
        if at == clear_at:
            out.clear()
        said = {"begin_ns": ts, "end_ns": ts + dur} if exact else {}
        out.begin(ts, 2**63 + track, category, name, corr_id=correlation, agent="GPU-1", dst_agent="GPU-1", **said)
        out.end(ts + dur, 2**63 + track)
    trace = read(out.bytes())
    expected = [(ts, dur, kind, name, corr) for ts, dur, (_, kind), name, corr, _, _ in events]
    assert trace.events.select("ts", "dur", "kind", "name", "correlation").rows() == expected
    on_gpu = trace.events.filter(pl.col("kind").is_in(["kernel", "memcpy"]))
    assert on_gpu["device"].to_list() == [1] * on_gpu.height
    assert trace.unread == {}


# Annotations, events and packets in layouts that recorders write, in rarer ones, and in ones that are damage.
ANNOTATIONS = st.sampled_from(
    [number(1, name) + value for name in (1, 2, 4, 9) for value in (number(3, 7), number(4, -7), block(6, "Agent-2"))]
    + [number(1, 2) + value for value in (number(3, 2**64 - 1), number(17, 1), number(17, 99), double(5, 0.5), number(7, 1))]
    + [block(10, "corr_id") + number(3, 300), number(4, 8) + block(10, "queue"), double(5, 2.0) + block(10, "SQ_WAVES")]
    + [number(1, 200) + number(3, 1), block(6, "no name"), number(1, 2) + number(3, 1) + number(3, 2), b"", b"\x08", b"\x08\x01\x18\xff"]
).map(lambda body: block(4, body))  # fmt: skip
PARTS = st.sampled_from(
    [number(9, kind) for kind in (1, 1, 1, 2, 2, 3, 4, 5)]
    + [number(11, track) for track in (MAIN, STREAM, 9)]
    + [number(10, 1), number(10, 300), block(23, "named in full"), number(3, 1), number(3, 2), block(3, b"\x01"), block(22, "hip_api")]
    + [block(22, "counter_collection"), varint_of(3_000 << 3) + b"\x05", b"\xf9\x02" + bytes(8), b"\x0b", b"\x02"]
)  # fmt: skip
PACKETS = st.tuples(
    st.integers(1, 2),
    st.sampled_from(
        [number(13, 2)] * 9 + [b"", number(58, 3), number(58, 64), number(41, 1), number(42, 1), block(99, "x")]
    ),
    st.one_of(st.integers(0, 2**40), st.integers(2**62, 2**64 - 1)),
    st.lists(st.one_of(PARTS, ANNOTATIONS), max_size=7).map(b"".join),
)


# One incremental clock, by default and named.
ONE_CLOCK = [(1, clock, 10, number(9, 3)) for clock in (b"", number(58, 64), b"", number(58, 64))]


@example(ONE_CLOCK, True, 0, 0)
@given(
    st.lists(PACKETS, min_size=1, max_size=12), st.booleans(), st.integers(0, 2**20), st.sampled_from([0, 0, 0, 1, 255])
)
def test_packets_read_together_say_what_they_say_one_by_one(packets, own_clock, place, damage):
    one, two = Recorder(sequence=1, own_clock=own_clock), Recorder(sequence=2)
    for out in (one, two):
        out.track(STREAM, 'STREAM [" 3 "] ')
        out.slice(5, 9, STREAM, "kernel_dispatch", "k", corr_id=1, agent="Agent-4", agent_type="GPU", kind=11, queue=1)
        out.slice(5, 9, MAIN, "hip_api", "call", tid=3)
        for sequence, extra, ts, event in packets:
            if sequence == out.sequence:
                out.put(number(8, ts) + extra + block(11, event))
    data = bytearray(one.bytes() + two.bytes())
    data[place % len(data)] ^= damage
    found = []
    for few in (1, len(data)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pftrace, "_FEW", few)
            try:
                trace = read(data, partial=True)
            except InputError as error:
                found.append(str(error).partition(" is ")[2])
                continue
        found.append((trace.events.rows(), trace.counters.rows(), trace.meta, trace.unread, trace.unread_ns))
    assert found[0] == found[1]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_file_cut_at_any_byte_is_refused_or_read_to_the_cut(pack):
    out = session()
    whole = pack(out.bytes())
    rows = read(whole).events.drop("device").rows()  # which GPU an agent is depends on all agents
    borders = {sum(map(len, out.packets[:n])) for n in range(1, len(out.packets) + 1)}
    seen = set()
    near = {border + step for border in borders for step in (-1, 0, 1, 2)} if pack is bytes else set()
    for length in sorted({*range(0, len(whole), 29), *near} - {len(whole), len(whole) + 1, len(whole) + 2}):
        at_border = pack is bytes and length in borders
        if not at_border:
            with pytest.raises(InputError) as caught:
                read(whole[:length])
            assert "\n" not in str(caught.value)
        part = read(whole[:length], partial=True)
        assert part.events.drop("device").rows() == rows[: part.events.height]
        assert at_border or length == 0 or part.unread["cut off or damaged from here on"] == 1
        seen.add(part.events.height)
    assert seen >= set(range(len(rows)))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"hello", "not a Perfetto trace"),
        (b'{"traceEvents": []}', "not a Perfetto trace"),
        (b"\n" + b'{"a"' * 40, "not a Perfetto trace"),
        (b"\x0a" + b"\xff" * 12, "not a Perfetto trace"),
        (gzip.compress(b"", mtime=0)[:-3], "cut-off gzip"),
    ],
)
def test_what_is_no_trace_is_said_in_one_sentence(content, says):
    with pytest.raises(InputError, match=says):
        read(content)


def test_a_missing_file_a_directory_and_a_bomb_are_input_errors(tmp_path):
    with pytest.raises(InputError, match="no file"):
        pftrace.read(tmp_path / "nothing")
    with pytest.raises(InputError, match="directory"):
        pftrace.read(tmp_path)
    bomb = gzip.compress(session().bytes() * 2_000)
    with pytest.raises(InputError, match="max-bytes"):
        read(bomb, max_bytes=100_000)
    inside = block(1, block(50, zlib.compress(session().bytes() * 2_000)))
    with pytest.raises(InputError, match="max-bytes"):
        read(inside, max_bytes=100_000)


def test_content_not_name_tells_a_perfetto_trace():
    trace = session().bytes()
    assert pftrace.sniff(trace[:64], Path("x.json"))
    nones = (
        b"",
        b"{",
        b'\n{"traceEvents": []}',
        b"SQLite format 3\0",
        b"\n\n\n\nKind,Agent_Id\n",
    )
    for other in nones:
        assert not pftrace.sniff(other, Path("x.pftrace"))


def test_a_number_has_at_most_ten_bytes():
    assert varint(b"\xff" * 9 + b"\x01\x00", 0, 11) == (2**64 - 1, 10)
    with pytest.raises(Malformed):
        varint(b"\xff" * 10 + b"\x01", 0, 11)
    with pytest.raises(Short):
        varint(b"\xff\xff\xff\xff\x01", 0, 4)


def test_tracks_in_rings_long_chains_and_long_names_cost_no_time():
    begin = time.process_time()
    out = recorder()
    out.process(1, 11)  # a second process: the others have to look for theirs
    for at in range(100, 3_100):
        out.track(at, "x", at + 1)
        out.instant(1, at, "marker_api", "m")
    out.track(3_100, "x", 100)
    for name in ("STREAM [" * 20_000, "GPU [1]" * 20_000, "STREAM [" + "9" * 5_000):
        out.track(len(name), name)
        out.slice(1, 2, len(name), "kernel_dispatch", "k")
    events = read(out.bytes()).events
    assert events.height == 3_003
    assert events["stream"].null_count() == 3_003
    assert time.process_time() - begin < 10


def test_damage_never_crashes_hangs_or_takes_memory():
    rng = random.Random(20)
    whole = session(own_clock=True).bytes()
    packed = block(1, block(50, zlib.compress(whole))) + whole
    begin = time.process_time()
    cases = refused = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        while cases < 600:
            data = bytearray(rng.choice((whole, packed)))
            for _ in range(rng.choice((1, 1, 2, 8))):
                at = rng.randrange(len(data))
                data[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3)) or rng.choice((b"\xff" * 10, b""))
            path.write_bytes(data[: rng.choice((len(data), rng.randrange(len(data) + 1)))])
            cases += 1
            with contextlib.suppress(InputError):
                trace = pftrace.read(path, partial=rng.random() < 0.7, max_bytes=1 << 20)
                assert isinstance(trace, Trace)
                assert dict(trace.events.schema) == SCHEMA
                assert trace.events.height <= 40
                refused -= 1
            refused += 1
    assert 30 < refused < cases - 30
    assert time.process_time() - begin < 60
