"""Clocks of ranks: what messages say of them, and what is made of that over traces."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_ranks import Rank

from rung.analysis.partials.merge import merged
from rung.analysis.partials.reduce import reduce
from rung.analysis.skew import known_offsets, skew
from rung.errors import InputError
from rung.profilers.clocks import quickest
from rung.trace import read
from rung.trace.clocks import NAME, Compared, OfRank
from rung.trace.open import files_in

SECOND = 10**9
delays = st.integers(1_000, 5_000_000)  # ns on the way, there and back each


@given(
    st.integers(-3600 * SECOND, 3600 * SECOND),
    st.integers(-100, 100),
    st.lists(st.tuples(delays, delays, st.integers(0, 10**6)), min_size=1, max_size=20),
)
def test_no_offset_is_further_off_than_it_says(offset: int, drift_ppm: int, trips: list[tuple[int, int, int]]) -> None:
    """Whatever the delays are, and however uneven. The clock of this rank is ahead by `offset` and runs faster by `drift_ppm`."""
    true, exchanges = 10 * SECOND, []

    def own(at: int) -> int:
        return at + offset + at * drift_ppm // 10**6

    for there, back, pause in trips:
        exchanges.append((own(true), true + there, own(true + there + back)))
        true += there + back + pause
    seen = quickest(exchanges)
    when = next(
        t for (there, back, _), (before, t, after) in zip(trips, exchanges, strict=True) if before < seen.at_ns < after
    )
    drifted = (
        max(there + back for there, back, _ in trips) * abs(drift_ppm) // 10**6 + 2
    )  # while the messages were under way
    assert abs(seen.offset_ns - (own(when) - when)) <= seen.error_ns + drifted
    assert seen.error_ns <= min(after - before for before, _, after in exchanges) // 2 + 1


@given(st.integers(-(10**12), 10**12), st.integers(-500, 500), st.integers(0, 100))
def test_a_drift_is_told_by_two_points(offset: int, drift_ppm: int, percent: int) -> None:
    begin, length = 1_700_000_000 * SECOND, 60 * SECOND
    seen = [
        Compared(at_ns=at, offset_ns=offset + (at - begin) * drift_ppm // 10**6, error_ns=10)
        for at in (begin, begin + length)
    ]
    at = begin + length * percent // 100
    assert abs(OfRank(rank=1, host="h", seen=seen).ahead(at) - (offset + (at - begin) * drift_ppm // 10**6)) <= 1


def pipeline(folder: Path, offset_us: int, ends_apart_us: int | None = None) -> None:
    """Two ranks that only send to each other, or leave an all-reduce at times that look so far apart; rank 1's clock is ahead."""
    for rank in (0, 1):
        made = Rank(rank, 2, shift=float(offset_us * rank))
        made.step(0)
        made.kernel("aten::mm", 10, 20, 100)
        if ends_apart_us is None:
            made.all_reduce(130, 140, 150, **{"Collective name": "recv" if rank else "send", "Seq": 1})
        else:
            made.all_reduce(130, 140, 200 + ends_apart_us * rank, Seq=1)
        made.write(folder)
    seen = [{"at_ns": 100_000, "offset_ns": offset_us * 1000, "error_ns": 5_000}]
    ranks = [
        {"rank": 0, "host": "a", "seen": [{"at_ns": 1, "offset_ns": 0, "error_ns": 0}]},
        {"rank": 1, "host": "b", "seen": seen},
    ]
    (folder / NAME).write_text(json.dumps({"kind": "clocks", "schema": 1, "reference": 0, "ranks": ranks}))


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(-10_000, 10_000))
def test_ranks_that_only_send_are_put_on_one_clock_of_whole_traces_and_of_partials(
    tmp_path_factory: pytest.TempPathFactory, offset_us: int
) -> None:
    folder = tmp_path_factory.mktemp("pipeline")
    pipeline(folder, offset_us)
    found = skew(read(folder))
    assert found["clock_offset_ns"].to_list() == [0, offset_us * 1000]
    partials = reduce(files_in(folder), tmp_path_factory.mktemp("partials"))
    assert merged(partials, "x").tables["skew"]["clock_offset_ns"].to_list() == [0, offset_us * 1000]
    (folder / NAME).unlink()
    assert skew(read(folder))["clock_offset_ns"].null_count() == 2


@pytest.mark.parametrize(("apart_us", "found_us"), [(3, 503), (40, 505), (-40, 495)])
def test_where_ranks_leave_a_collective_counts_within_what_messages_allow(
    tmp_path: Path, apart_us: int, found_us: int
) -> None:
    pipeline(tmp_path, 500, apart_us)
    assert skew(read(tmp_path))["clock_offset_ns"].to_list() == [0, found_us * 1000]


def test_offsets_count_from_the_first_rank_that_is_there() -> None:
    assert known_offsets({}, {3: (100, 1), 5: (130, 1)}) == {3: 0, 5: 30}
    assert known_offsets({2: 0, 3: 7}, {3: (100, 1)}) == {2: 0, 3: 7}  # rank 2 exchanged no message
    assert known_offsets({}, {}) == {}


@pytest.mark.parametrize(
    "text", ["", "{}", "[1", '{"kind": "clocks", "ranks": [{"rank": 0, "host": "h", "seen": []}]}']
)
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    pipeline(tmp_path, 1)
    (tmp_path / NAME).write_text(text)
    with pytest.raises(InputError, match=r"clocks.json is damaged .*: remove it"):
        read(tmp_path)
