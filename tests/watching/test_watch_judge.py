"""What is said of a job, of lines that ranks of a simulated time have written."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.records.watch import Sample, Watched
from rung.report.watch import MOST, watch_lines
from rung.watching.judge import judged

FOLDER = Path("watch/train")
NOW = 1_000_000.0
MS = 1e6


def line(rank: int, at: float = NOW, **values: Any) -> Sample:
    """By default of two ranks, one a host of its own, in steps of 100 ms of which 10 ms are exchange."""
    given = {"world": 2, "began": NOW - 600, "every": 5.0, "local": 0, "host": f"node-{rank}", "step": 500, "steps": 50,
             "step_ns": 100 * MS, "own_ns": 90 * MS, "exchange_ns": 10 * MS, "idle": 0.1, "cost": 0.001}  # fmt: skip
    return Sample(rank=rank, at=at, **(given | values))


def lines(rank: int, number: int = 6, **values: Any) -> list[Sample]:
    return [line(rank, NOW - 5.0 * k, **values) for k in reversed(range(number))]


def said(*ranks: list[Sample], now: float = NOW) -> Watched:
    return judged(FOLDER, ranks, now)


def texts(found: Watched) -> list[str]:
    return [finding.text for finding in found.findings]


def test_of_a_job_that_runs_well_nothing_is_said() -> None:
    found = said(lines(0), lines(1))
    assert (found.state, found.findings, found.notes) == ("running", [], [])
    assert (found.step_ns, found.exposed_ns, found.least_exposed_ns) == (100 * MS, 10 * MS, 10 * MS)


def test_a_straggler_is_told_by_its_own_pace_where_all_steps_look_alike() -> None:
    slow = [line(1, NOW - 5.0 * k, own_ns=(106 if k < 4 else 90) * MS, exchange_ns=1 * MS) for k in reversed(range(8))]
    found = said(lines(0, 8), slow)
    assert texts(found) == ["rank 1 on node-1 takes 18% longer by itself than the median rank, for the last 20 s"]
    assert found.ranks[1].slower == pytest.approx(16 / 90)
    assert found.least_exposed_ns == 1 * MS


def test_a_single_slow_line_makes_no_straggler_and_neither_do_two_lines() -> None:
    once = [*lines(1, 5), line(1, own_ns=300 * MS)]
    assert not said(lines(0), once).findings
    assert not said(lines(0, 2), lines(1, 2, own_ns=300 * MS)).findings
    half = [line(1, NOW - 5.0 * k, own_ns=(150 if k < 3 else 90) * MS) for k in reversed(range(6))]
    assert not said(lines(0), half).findings


def test_ranks_that_do_not_wait_for_each_other_are_compared_by_their_steps() -> None:
    plain = {"own_ns": None, "exchange_ns": None}
    found = said(lines(0, **plain), lines(1, step_ns=150 * MS, **plain))
    assert texts(found) == ["rank 1 on node-1 takes 50% longer than the median rank, for the last 30 s"]
    assert "does not know each rank's own pace" in found.notes[0]


def test_a_host_whose_ranks_are_all_slow_is_one_sentence() -> None:
    ranks = [lines(k, world=16, host=f"node-{k // 4}", own_ns=(120 if k // 4 == 2 else 90) * MS) for k in range(16)]
    found = said(*ranks)
    assert texts(found) == ["all 4 ranks of node-2 take 33% or more longer than the median rank"]
    assert found.findings[0].ranks == [8, 9, 10, 11]


def test_a_throttled_gpu_is_named_with_its_clock_and_that_of_the_others() -> None:
    gpu = {"gpu": "MI300X", "power": 600.0, "world": 4}
    ranks = [lines(k, **gpu, core=2100.0) for k in range(3)]
    ranks.append(lines(3, **gpu, core=1100.0, throttled=("temperature",), own_ns=120 * MS))
    assert texts(said(*ranks)) == [
        "rank 3 on node-3 takes 33% longer by itself than the median rank, for the last 30 s; its GPU is throttled (temperature)",
        "the GPU of rank 3 on node-3 is throttled (temperature): its clock is 1.10 GHz, and the median of the others 2.10 GHz",
    ]


def test_a_power_cap_that_holds_all_gpus_down_is_said_once() -> None:
    ranks = [lines(k, world=4, gpu="H100", core=1350.0, throttled=("power cap",)) for k in range(4)]
    assert texts(said(*ranks)) == ["4 of 4 GPUs are throttled (power cap) at a median clock of 1.35 GHz"]


def test_a_reason_in_few_lines_is_not_said() -> None:
    some = [*lines(1, 5, core=2100.0), line(1, core=2100.0, throttled=("power cap",))]
    assert not said(lines(0, core=2100.0), some).findings


def test_a_slow_clock_without_a_reason_is_told_beside_others_of_its_kind() -> None:
    ranks = [lines(k, world=4, gpu="MI300X", core=1100.0 if k == 2 else 2100.0) for k in range(4)]
    (text,) = texts(said(*ranks))
    assert text.startswith("the GPU of rank 2 on node-2 runs at 1.10 GHz, the median of its kind at 2.10 GHz")
    of_other_kinds = [lines(k, world=4, gpu=f"kind {k}", core=1100.0 if k == 2 else 2100.0) for k in range(4)]
    assert not said(*of_other_kinds).findings


def test_a_rank_that_stopped_writing_is_silent_and_one_that_ended_is_not() -> None:
    stopped = [line(1, NOW - 35 - 5.0 * k) for k in reversed(range(6))]
    assert texts(said(lines(0), stopped)) == ["rank 1 on node-1 has not reported for 35 s"]
    stopped[-1] = line(1, NOW - 35, ended=True)
    assert not said(lines(0), stopped).findings


def test_a_job_of_which_nothing_is_heard_is_silent_and_one_that_ended_has_ended() -> None:
    found = said(lines(0), lines(1), now=NOW + 180)
    assert found.state == "silent"
    assert texts(found)[0].startswith("no rank has reported for 3 min")
    done = [[*lines(k, 5), line(k, ended=True)] for k in range(2)]
    assert said(*done, now=NOW + 180).state == "ended"


def test_ranks_that_never_wrote_are_missing_after_a_while() -> None:
    assert texts(said(lines(0, world=5), lines(3, world=5))) == ["3 of 5 ranks have not reported: ranks 1, 2, 4"]
    young = [line(0, began=NOW - 6, world=5)]
    assert not said(young).findings


def test_files_of_an_earlier_job_in_the_same_folder_are_left_out() -> None:
    earlier = [line(k, NOW - 3600, world=8, began=NOW - 7200) for k in range(8)]
    found = said(lines(0), lines(1), *([one] for one in earlier[2:]))
    assert (found.world, [rank.rank for rank in found.ranks], found.findings) == (2, [0, 1], [])


def test_a_rank_that_wrote_in_an_earlier_job_alone_is_missing_and_not_silent() -> None:
    found = said(lines(0), [line(1, NOW - 3600, began=NOW - 7200)])
    assert texts(found) == ["1 of 2 ranks has not reported: rank 1"]


@pytest.mark.parametrize("ended", [True, False])
def test_a_rank_of_a_job_that_was_started_again_at_once_is_missing_from_the_new_one(ended: bool) -> None:
    began = NOW - 100
    old = [line(1, began - 8 - 5 * k, began=began - 900, step=9000, own_ns=30 * MS) for k in reversed(range(6))]
    old.append(line(1, began - 8, began=began - 900, step=9000, own_ns=30 * MS, ended=ended))
    found = said(lines(0, began=began, step=59), old)
    assert (found.step, texts(found)) == (59, ["1 of 2 ranks has not reported: rank 1"])


def test_a_rank_that_began_long_before_the_others_is_waited_for() -> None:
    began = NOW - 3
    early = [line(1, NOW - 4 - 5 * k, began=began - 60) for k in reversed(range(6))]
    assert [rank.rank for rank in said(lines(0, 1, began=began), early).ranks] == [0, 1]
    early[-1] = line(1, NOW - 4, began=began - 60, ended=True)
    assert [rank.rank for rank in said(lines(0, 1, began=began), early).ranks] == [0]


def test_a_rank_that_stopped_as_the_others_began_is_silent() -> None:
    began = NOW - 100
    found = said(lines(0, began=began), [line(1, began - 5, began=began - 10)])
    assert texts(found) == ["rank 1 on node-1 has not reported for 105 s"]


def test_a_job_that_stands_still_names_the_rank_that_is_behind() -> None:
    waits = [line(0, idle=90, step=41, stands="train.py:30, in main")]
    stuck = [line(1, idle=95, step=40, stands="data.py:7, in read")]
    assert texts(said(waits, stuck)) == [
        "no rank has finished a step for 90 s: rank 1 on node-1 is at step 41 (at data.py:7, in read), the others are ahead"
    ]
    same = [line(1, idle=95, step=41, stands="data.py:7, in read")]
    more = [line(k, idle=90, step=41, stands="train.py:30, in main", world=3) for k in (0, 2)]
    assert texts(said([more[0]], same, [more[1]])) == [
        "no rank has finished a step for 90 s; rank 1 on node-1 is at data.py:7, in read"
    ]


def test_where_as_many_ranks_stand_at_each_of_several_places_none_of_them_is_named_alone() -> None:
    reads, waits = [line(0, idle=60, stands="data.py:7, in read")], [line(1, idle=60, stands="train.py:30, in main")]
    one, two = "rank 0 on node-0 is at data.py:7, in read", "rank 1 on node-1 is at train.py:30, in main"
    assert texts(said(reads, waits)) == [f"no rank has finished a step for 60 s; {one}, {two}"]
    apart = [[line(k, idle=60, world=5, stands=f"train.py:{k}, in main")] for k in range(5)]
    (text,) = texts(said(*apart))
    assert text.endswith("rank 2 on node-2 is at train.py:2, in main, and others at 2 more")


def test_long_steps_do_not_stand_still() -> None:
    long = {"step_ns": 40e9, "own_ns": 39e9, "idle": 35.0}
    assert not said(lines(0, **long), lines(1, **long)).findings


def test_buffers_that_ddp_broadcasts_are_told_of() -> None:
    (note,) = said(lines(0, broadcasts=True), lines(1, broadcasts=True)).notes
    assert "broadcast_buffers=False" in note


def test_what_being_watched_costs_is_said_where_it_is_dear() -> None:
    found = said(lines(0, cost=0.03), lines(1, cost=0.03))
    assert found.notes == ["watching costs 3.0% of the time: write less often, with rung.watch(every=30)"]


def test_of_thousands_of_ranks_a_few_lines_are_shown_the_slowest_among_them() -> None:
    ranks = [
        lines(k, world=2000, host=f"node-{k // 8}", own_ns=(200 if k % 100 == 7 else 90) * MS) for k in range(2000)
    ]
    shown = watch_lines(said(*ranks), 100)
    assert len(shown) < MOST + 12
    assert sum(text.startswith("! rank") for text in shown) == 3
    assert any("is true of 17 more" in text for text in shown)
    assert any(text.startswith("7 ") for text in shown)


NUMBERS = st.one_of(st.none(), st.floats(), st.integers(-(2**63), 2**63))


@given(
    st.lists(
        st.tuples(
            st.integers(-2, 2**60), st.integers(-2, 2**60), st.lists(NUMBERS, min_size=9, max_size=9), st.booleans()
        ),
        min_size=1,
        max_size=8,
    )
)
def test_no_numbers_in_a_line_break_the_answer(rows: list[tuple[int, int, list[Any], bool]]) -> None:
    """A folder may be a stranger's."""
    names = ("at", "began", "every", "step_ns", "own_ns", "exchange_ns", "idle", "core", "power")
    ranks = []
    for rank, world, values, ended in rows:
        plain = msgspec.to_builtins(line(0)) | {"rank": rank, "world": world, "ended": ended}
        plain |= {name: value for name, value in zip(names, values, strict=True) if value is not None}
        try:
            one = msgspec.json.decode(msgspec.json.encode(plain), type=Sample)
        except msgspec.DecodeError:
            continue
        ranks.append([one] * 4)
    if ranks:
        assert watch_lines(said(*ranks), 80)
