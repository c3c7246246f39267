"""Many ranks: partials say the same as the whole traces, whatever is missing, and are made once."""

import gzip
import importlib.util
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from made_ranks import STEP_US, Rank
from polars.testing import assert_frame_equal

from rung.analysis.analyses import table
from rung.analysis.between import Between, _of_rank
from rung.analysis.overview import overview
from rung.analysis.partials import buckets, merge, summary
from rung.analysis.partials import reduce as reducing
from rung.analysis.partials.merge import ANSWERED, Merged, merged
from rung.analysis.partials.on_dask import Jobs, on_slurm
from rung.analysis.partials.reduce import place, reduce
from rung.analysis.partials.table import facts_in
from rung.analysis.per_step import divisor
from rung.errors import InputError, UsageError
from rung.trace import read

RECORDED = Path(__file__).parents[1] / "data" / "ddp"


def made(folder: Path, ranks: int = 4, steps: int = 2, late_us: np.ndarray | None = None, slow: float = 1.0) -> Path:
    """Ranks that meet in three all-reduces a step: of all, of pairs, of all. late_us: of each step and rank; slow: times that the
    transfer of the second pair takes."""
    folder.mkdir(parents=True, exist_ok=True)
    late = np.zeros((steps, ranks)) if late_us is None else late_us
    for rank in range(ranks):
        one = Rank(rank, ranks, shift=rank * 7.0)
        pair = list(range(rank // 2 * 2, min(rank // 2 * 2 + 2, ranks)))
        for step in range(steps):
            one.step(step)
            end = start = step * STEP_US
            for turn, group in enumerate((range(ranks), pair, range(ranks))):
                ready = max(start + 600 * turn + 100 + late[step, rank], end)
                one.kernel("aten::mm" if turn % 2 else "aten::add", ready - 60, ready - 50, 40)
                last = max(start + 600 * turn + 100 + late[step, other] for other in group)
                transfer = 50 * (slow if len(group) == 2 and pair[0] == 2 else 1.0)
                end = max(last, end) + transfer
                name = (
                    {"Process Group Name": "0"}
                    if turn % 2 == 0
                    else {"Process Group Name": f"p{pair[0]}", "Group size": len(group)}
                )
                one.all_reduce(ready - 20, ready, end, **name)
        one.write(folder)
    return folder


def partials_of(folder: Path, out: Path) -> list[Path]:
    return reduce(sorted(folder.glob("*.json*")), out)


def both(folder: Path, out: Path) -> tuple[dict[str, pl.DataFrame], Merged]:
    """The tables of the whole traces, and what their partials say."""
    trace = read(folder, cache=False)
    steps, _ = divisor(trace)
    whole = {name: table(name, trace, steps=steps) for name in ANSWERED}
    return whole, merged(partials_of(folder, out), str(folder), wanted=ANSWERED)


def assert_same(whole: dict[str, pl.DataFrame], found: Merged) -> None:
    for name, expected in whole.items():
        order = name not in ("communication", "completeness")  # equals may come in any order
        assert_frame_equal(found.tables[name], expected, check_row_order=order)


@pytest.mark.parametrize("folder", ["ranks2-one-bucket", "ranks2-slow-gpu", "ranks2-slow-host", "ranks4-slow-host"])
def test_partials_of_recorded_ranks_say_what_their_traces_say(folder: str, tmp_path: Path) -> None:
    whole, found = both(RECORDED / folder, tmp_path)
    assert whole["stragglers"].height
    assert_same(whole, found)
    trace = read(RECORDED / folder, cache=False)
    expected = overview(trace, steps=2)
    assert found.overview == msgspec.structs.replace(expected, peaks=None, merged=True)


@given(late=st.lists(st.integers(0, 3000), min_size=10, max_size=10), parts=st.sampled_from([4, 1000]))
@settings(
    max_examples=5, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_partials_say_what_traces_say_in_any_number_of_parts(
    late: list[int], parts: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buckets, "MOST_ROWS", parts)
    monkeypatch.setattr(merge, "BATCH", 2)
    root = tmp_path_factory.mktemp("ranks")
    folder = made(root / "traces", ranks=5, late_us=np.array(late).reshape(2, 5))
    assert_same(*both(folder, root / "partials"))


@given(
    work=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20), st.sampled_from("abc")), max_size=12),
    cuts=st.lists(st.integers(0, 80), min_size=2, max_size=8, unique=True),
    first=st.integers(0, 7),
)
@example(work=[(0, 1, "a"), (12, 1, "b"), (19, 1, "c")], cuts=[0, 10, 20], first=0)  # a gap over a cut
def test_what_was_done_between_two_cuts_is_what_a_loop_over_each_ns_says(
    work: Any, cuts: list[int], first: int
) -> None:
    cuts = sorted(cuts)
    events = pl.DataFrame([(ts, ts + dur, name) for ts, dur, name in work], schema={"ts": pl.Int64, "end": pl.Int64, "name": pl.String}, orient="row")  # fmt: skip
    events = events.sort("ts", maintain_order=True)
    stretches, by_name = _of_rank(events, np.array(cuts))
    own = pl.lit(0, pl.Int32).alias("rank")
    between = Between(stretches.with_columns(own), by_name.with_columns(own))
    begin, end = cuts[first % (len(cuts) - 1)], cuts[-1]
    did = between.did(0, begin, end)
    times = {
        name: sum(max(0, min(e, end) - max(s, begin)) for s, e, n in events.iter_rows() if n == name) for name in "abc"
    }
    busy = [any(s <= ns < e for s, e, _ in events.iter_rows()) for ns in range(begin, end)]
    assert {name: ns for name, ns in did.times.items() if ns} == {name: ns for name, ns in times.items() if ns}
    assert (did.ns, did.idle) == (end - begin, busy.count(False))
    gaps = [(len(gap), begin + place) for gap, place in _runs_of_nothing(busy)]
    if gaps and max(gaps)[0] >= did.idle / 2:
        resumed = max(gaps)[1]
        assert did.after == next((name for s, _, name in events.iter_rows() if s == resumed < end), None)
    elif gaps:
        assert did.after is None


def _runs_of_nothing(busy: list[bool]) -> list[tuple[str, int]]:
    """The stretches of False, each with the place after it."""
    text = "".join("x" if one else "." for one in busy)
    return [(found[0], found.end()) for found in re.finditer(r"\.+", text)]


def test_a_rank_that_cannot_be_read_or_is_missing_is_named(tmp_path: Path) -> None:
    folder = made(tmp_path / "traces", ranks=6)
    whole = (folder / "rank3.json").read_bytes()
    (folder / "rank1.json").unlink()
    (folder / "rank2.json.gz").write_bytes(gzip.compress(whole)[:-200])
    (folder / "rank2.json").unlink()
    (folder / "rank3.json").write_bytes(whole[: len(whole) // 2])
    (folder / "notes.txt").write_text("no trace")
    found = merged(reduce(sorted(folder.iterdir()), tmp_path / "out"), "here")
    assert found.tables["skew"].filter(~pl.col("recorded"))["rank"].to_list() == [1, 2, 3]
    said = "\n".join(found.overview.notes)
    assert "rank2.json.gz is a damaged or cut-off gzip file" in said
    assert "rank3.json is not complete JSON" in said
    assert found.overview.ranks == 3


def test_where_none_can_be_read_that_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text('{"traceEvents": [')
    with pytest.raises(
        InputError, match=r"none of 1 traces could be read. The first: .*rank0.json is not complete JSON"
    ):
        merged(partials_of(tmp_path, tmp_path / "out"), "here")


def test_a_trace_is_reduced_once_and_again_when_it_changes(tmp_path: Path) -> None:
    folder, out = made(tmp_path / "traces"), tmp_path / "out"
    asked: list[Path] = []

    def engine(files: Any, how: Any) -> Any:
        asked.extend(files)
        yield from reducing.in_processes(files, how)

    files = sorted(folder.iterdir())
    reduce(files, out, engine)
    assert asked == files
    os.utime(files[1], ns=(1, 1))
    (out / place(files[2])).write_bytes(b"PAR1 damaged")
    (out / place(files[3])).unlink()
    reduce(files, out, engine)
    assert asked[4:] == files[1:]
    assert all(facts_in(out / place(file)).calls for file in files)


def test_what_is_whole_of_a_damaged_trace_counts_where_it_is_asked_for(tmp_path: Path) -> None:
    folder = made(tmp_path / "traces")
    cut = folder / "rank2.json"
    cut.write_bytes(cut.read_bytes()[:-300])
    files = sorted(folder.iterdir())
    for partial, ranks in ((False, 3), (True, 4), (False, 3)):
        found = merged(reduce(files, tmp_path / "out", partial=partial), "here").overview
        assert found.ranks == ranks
        assert sum("rank2.json" in note for note in found.notes) == 1


def test_an_interrupted_reduction_keeps_what_was_done(tmp_path: Path) -> None:
    folder, out = made(tmp_path / "traces"), tmp_path / "out"
    files = sorted(folder.iterdir())

    def stopped(files: Any, how: Any) -> Any:
        yield from list(reducing.in_processes(files[:2], how))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reduce(files, out, stopped)
    assert sorted(file.name for file in out.iterdir()) == sorted(map(place, files[:2]))


def test_a_process_that_dies_over_a_trace_costs_this_trace_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted(made(tmp_path / "traces").iterdir())
    monkeypatch.setattr(reducing, "processes_for", lambda files: 2)
    monkeypatch.setattr(reducing, "FUNCTION", f"{__name__}:dies_over_rank0")
    found = merged(reduce(files, tmp_path / "out"), "here")
    assert found.overview.ranks == 3
    assert "rank0.json could not be read: its reader ended with 9" in found.overview.notes[0]


def dies_over_rank0(file: Path, **how: Any) -> bytes | None:
    if file.name == "rank0.json":
        os._exit(9)
    return reducing.reduced(file, **how)


def test_copies_count_once_and_ranks_of_two_jobs_are_told_apart(tmp_path: Path) -> None:
    folder = made(tmp_path / "traces", ranks=2)
    text = (folder / "rank1.json").read_text()
    (folder / "copy.json").write_text(text)
    (folder / "zother.json").write_text(text.replace("aten::mm", "aten::bmm").replace('"dur": 40', '"dur": 39'))
    whole, found = both(folder, tmp_path / "out")
    assert_same(whole, found)
    assert found.overview.unread == read(folder, cache=False).unread
    assert any("rank1.json" in note or "copy.json" in note for note in found.overview.notes)


def test_a_slow_pair_is_found_among_pairs(tmp_path: Path) -> None:
    whole, found = both(made(tmp_path / "traces", ranks=8, slow=3.0), tmp_path / "out")
    assert_same(whole, found)
    slow = found.tables["slow_groups"]
    assert slow["group"].to_list() == ["p2"]
    assert slow["times"].to_list() == [pytest.approx(3.0)]
    assert slow["groups"].to_list() == [4]


def test_of_two_pairs_none_is_called_slow(tmp_path: Path) -> None:
    whole, _ = both(made(tmp_path / "traces", ranks=4, slow=3.0), tmp_path / "out")
    assert whole["slow_groups"].is_empty()


def test_the_shares_of_a_step_multiply_to_its_efficiency(tmp_path: Path) -> None:
    late = np.array([[0, 0, 2000, 0], [0, 0, 0, 0]])
    whole, _ = both(made(tmp_path / "traces", late_us=late), tmp_path / "out")
    rows = whole["scaling"].to_dicts()
    assert [row["step"] for row in rows] == [0, 1]
    for row in rows:
        product = row["balance_share"] * row["communication_share"] * row["host_share"]
        assert row["efficiency_share"] == pytest.approx(product)
        assert row["efficiency_share"] == pytest.approx(row["computation_ns"] / row["step_ns"])
    assert rows[0]["communication_share"] < rows[1]["communication_share"]


def test_of_many_ranks_those_stay_whose_gpus_are_idle_most_and_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "MOST_PARTS", 2)
    folder = made(tmp_path / "traces", ranks=9, steps=1, late_us=np.array([[0, 0, 0, 0, 0, 0, 0, 0, 900]]))
    found = merged(partials_of(folder, tmp_path / "out"), "here").overview
    assert found.ranks == 9
    assert found.across
    assert found.across.ranks == 9
    idle = {part.rank: part.timeline[0].idle_ns / part.timeline[0].total_ns for part in overview(read(folder)).parts}
    assert {part.rank for part in found.parts} >= {max(idle, key=lambda rank: idle[rank])}
    assert len(found.parts) == 2


@pytest.mark.skipif(
    importlib.util.find_spec("distributed") is None, reason="Dask is not installed: pip install 'rung[dask]'"
)
def test_dask_gives_the_same_tables(tmp_path: Path) -> None:
    from distributed import LocalCluster

    from rung.analysis.partials.on_dask import on_dask

    folder = made(tmp_path / "traces", ranks=16)
    (folder / "rank9.json").write_text("{")
    files = sorted(folder.iterdir())
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        engine = on_dask(cluster.scheduler_address.replace("tcp://", "dask://"))
        there = merged(reduce(files, tmp_path / "there", engine), "here", wanted=ANSWERED)
    here = merged(reduce(files, tmp_path / "here"), "here", wanted=ANSWERED)
    assert_same(here.tables, there)
    assert there.overview == here.overview


@pytest.mark.skipif(importlib.util.find_spec("distributed") is not None, reason="Dask is installed")
def test_without_dask_its_engine_says_what_to_install() -> None:
    from rung.analysis.partials.on_dask import on_dask

    with pytest.raises(UsageError, match=r"--engine dask://node:8786 needs Dask: pip install 'rung\[dask\]'"):
        on_dask("dask://node:8786")


JOBS = Jobs("", "", "", (), lambda numbers: False)


@pytest.mark.parametrize("address", ["slurm://", "slurm://0", "slurm://gpu"])
def test_workers_of_slurm_are_counted(address: str) -> None:
    with pytest.raises(UsageError, match="say how many workers SLURM should start, as in slurm://8"):
        on_slurm(address, JOBS)


@pytest.mark.skipif(importlib.util.find_spec("dask_jobqueue") is not None, reason="dask-jobqueue is installed")
def test_without_dask_jobqueue_that_is_said() -> None:
    with pytest.raises(UsageError, match=r"--engine slurm://2 needs dask-jobqueue: pip install 'rung\[dask\]'"):
        on_slurm("slurm://2", JOBS)


@pytest.mark.parametrize("address", ["ray://gpu", "dask://", "dask://node", "dask://node:port"])
def test_another_engine_is_refused(address: str) -> None:
    from rung.analysis.partials.on_dask import on_dask

    with pytest.raises(UsageError, match="give the address of a Dask scheduler"):
        on_dask(address)


def test_ranks_that_recorded_fewer_steps_have_no_figures_of_a_step(tmp_path: Path) -> None:
    folder = made(tmp_path / "traces", ranks=2, steps=2)
    made(tmp_path / "shorter", ranks=2, steps=1)
    (shorter,) = (tmp_path / "shorter").glob("*1.json*")
    (folder / shorter.name).write_bytes(shorter.read_bytes())
    whole, found = both(folder, tmp_path / "partials")
    assert_same(whole, found)
    assert found.overview.steps == 1
    assert f"{shorter.name} recorded 1 of 2 steps: figures are of the whole recording." in found.overview.notes
