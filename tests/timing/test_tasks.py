"""Workers in the background: in which order they start, what bounds them, how they fail, and that none is left."""

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from ended import gone

from rung.launch import ForkServer, Worker
from rung.launch.fork_server import Forked
from rung.side import Limits, Setup, Side
from rung.timing import tasks
from rung.timing.tasks import Place, Pool, Task

HERE = str(Path(__file__).parent)
PATH = {"PYTHONPATH": os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))}
PLENTY = 100.0  # seconds, in which a busy machine starts a few workers
SIDE = Side("target")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The logs of the workers that were started, in their order."""
    names: list[str] = []

    def spare(stack: ExitStack, setup: Setup, side: Side, log: Path) -> Worker:
        names.append(log.stem)
        worker = stack.enter_context(Worker("served_tasks:Told", log, PATH))
        worker.send("preload", target=side.target)
        return worker

    def opened(
        stack: ExitStack,
        setup: Setup,
        side: Side,
        log: str,
        spare: Worker | None = None,
        forks: object = None,
        briefly: bool = False,
    ) -> Worker:
        worker = spare
        if worker is None:
            names.append(log)
            worker = stack.enter_context(Worker("served_tasks:Told", setup.logs / f"{log}.log", {**PATH, **side.env}))
        worker.send("open", target=side.target, briefly=briefly)
        return worker

    monkeypatch.setattr(tasks, "open_worker", opened)
    monkeypatch.setattr(tasks, "spare_worker", spare)
    monkeypatch.setattr(tasks, "load_ahead", lambda worker, setup, side: worker.send("load_ahead", target=side.target))
    return names


@pytest.fixture
def pool(started: list[str], tmp_path: Path) -> Iterator[Pool]:
    with Pool(Setup(None, tmp_path, Limits(prepare=PLENTY)), most=2) as made:
        yield made


def told(name: str, *calls: str, memory: float = 0.0, side: Side = SIDE, **arguments: Any) -> Task:
    return Task(name, side, [(call, arguments) for call in calls], memory)


def done(pool: Pool, *waited_for: Task) -> None:
    until = time.monotonic() + PLENTY
    assert pool.wait(lambda: all(task.done for task in waited_for), lambda: until - time.monotonic())


def test_a_task_answers_its_calls_one_after_the_other(pool: Pool) -> None:
    task = pool.add(told("sum", "add", a=1, b=2))
    assert not task.done
    assert not task.ready
    done(pool, task)
    assert task.ready
    assert (task.answers["open"]["target"], task.answers["add"]) == ("target", 3)
    assert 0 < task.took["open"] <= task.took["add"]
    assert task.worker is not None
    assert task.worker.call("add", PLENTY, a=2, b=2) == 4  # it can be asked more
    task.end()
    assert task.done
    assert not task.ready
    assert gone(task.answers["open"]["pid"])


def test_what_everything_waits_for_starts_now_whatever_room_there_is(pool: Pool, started: list[str]) -> None:
    pool.memory = 1.0
    first, waits, ended = (pool.add(told(name, "add", a=1, b=2, memory=1.0)) for name in ("first", "waits", "ended"))
    ended.end()
    assert started == ["first"]
    pool.start_now([first, waits, ended])
    assert started == ["first", "waits"]
    done(pool, first, waits)
    assert waits.answers["add"] == 3


def test_tasks_start_in_their_order_and_at_most_so_many_at_once(pool: Pool, started: list[str], tmp_path: Path) -> None:
    file = tmp_path / "go on"
    first, second = (pool.add(told(name, "until", path=str(file))) for name in ("first", "second"))
    third, fourth = (pool.add(told(name, "add", a=1, b=1)) for name in ("third", "fourth"))
    assert pool.wait(lambda: "open" in first.answers and "open" in second.answers, lambda: PLENTY)
    assert pool.idle() == 0
    assert started == ["first", "second"]
    assert not third.done
    file.touch()
    done(pool, first, second, third, fourth)
    assert started == ["first", "second", "third", "fourth"]
    assert pool.idle() == 2  # what is done, and may be asked more, takes no core


def test_what_the_memory_is_too_small_for_waits_and_what_is_smaller_goes_ahead(
    pool: Pool, started: list[str], tmp_path: Path
) -> None:
    pool.memory = 10
    file = tmp_path / "go on"
    held = pool.add(told("held", "until", path=str(file), memory=6))
    large, small = pool.add(told("large", memory=6)), pool.add(told("small", memory=3))
    done(pool, small)
    assert started == ["held", "small"]
    assert pool.held() == 9
    small.end()
    pool.pump()
    assert large.worker is None
    held.end()
    done(pool, large)
    assert started == ["held", "small", "large"]
    assert (large.error, pool.held()) == (None, 6)


def test_what_yields_takes_no_room_from_what_waits_before_it(pool: Pool, started: list[str], tmp_path: Path) -> None:
    pool.most, pool.memory = 3, 10
    file = tmp_path / "go on"
    held = pool.add(told("held", "until", path=str(file), memory=6))
    large, small = told("large", memory=6), told("small", memory=3)
    small.low_priority = True
    pool.add(large)
    pool.add(small)
    assert started == ["held"]
    assert pool.lacks_memory()
    assert (pool.waiting(), pool.waiting(low_priority=False)) == (["large", "small"], ["large"])
    held.end()
    done(pool, large, small)
    assert not pool.lacks_memory()
    assert started == ["held", "large", "small"]


def test_what_yields_starts_where_room_comes_back_for_what_waits(
    pool: Pool, started: list[str], tmp_path: Path
) -> None:
    """A verification gives its memory back once it has answered; so the one that waits will find it, whoever took the rest."""
    pool.most, pool.memory = 4, 10
    file = tmp_path / "go on"
    passing, waits = told("passing", "until", path=str(file), memory=6), told("waits", memory=6)
    passing.ends_when_done = True
    small, large = told("small", "add", a=1, b=1, memory=3), told("large", memory=5)
    small.low_priority = large.low_priority = True
    pool.add(passing)
    pool.add(waits)
    pool.add(large)
    pool.add(small, first=True)  # of those that yield it is the first one, then
    assert started == ["passing", "small"]
    assert pool.waiting(low_priority=False) == ["waits"]
    assert not pool.fits(waits)
    done(pool, small)
    file.touch()
    done(pool, waits)
    assert started[:3] == ["passing", "small", "waits"]


def test_what_yields_leaves_room_for_what_another_needs_in_its_turns(pool: Pool, tmp_path: Path) -> None:
    """And what yields itself gives nothing back that another such one could count on."""
    pool.most, pool.memory = 6, 20
    file = tmp_path / "go on"
    held = pool.add(told("held", "until", path=str(file), memory=8))
    waits, passing, other = (told(name, "until", path=str(file), memory=4) for name in ("waits", "passing", "other"))
    waits.in_turns = 9
    pool.add(waits)
    for task in (passing, other):
        task.ends_when_done = task.low_priority = True
        pool.add(task)
    assert [task.worker is not None for task in (held, waits, passing, other)] == [True, False, False, False]
    held.end()
    pool.pump()
    assert [task.worker is not None for task in (waits, passing, other)] == [True, True, False]
    file.touch()
    done(pool, waits, passing, other)


def test_what_is_added_first_starts_before_all_that_waits(pool: Pool, started: list[str], tmp_path: Path) -> None:
    pool.most = 1
    file = tmp_path / "go on"
    held = pool.add(told("held", "until", path=str(file)))
    waits, first = pool.add(told("waits")), pool.add(told("first"), first=True)
    file.touch()
    done(pool, held, waits, first)
    assert started == ["held", "first", "waits"]


def test_where_nothing_goes_on_that_would_make_room_what_waits_starts_all_the_same(pool: Pool) -> None:
    """Then it may run out of memory, and says so; waiting for ever would say nothing."""
    pool.memory = 10
    held = pool.add(told("held", memory=6))
    done(pool, held)
    large = pool.add(told("large", memory=6))
    done(pool, large)
    assert held.ready
    assert large.ready


def test_memory_that_tasks_need_in_turns_is_counted_once(pool: Pool, tmp_path: Path) -> None:
    file = tmp_path / "go"
    pool.most, pool.memory = 4, 10.0
    turns = [told(name, "until", path=str(file), memory=2.0) for name in ("a", "b", "c")]
    for task in turns:
        task.in_turns = 5.0
        pool.add(task)
    assert [task.worker is not None for task in turns] == [True, True, False]
    assert pool.held() == 9.0
    assert pool.lacks_memory()
    file.touch()
    assert pool.wait(lambda: turns[0].done and turns[1].done, lambda: PLENTY)
    for task in turns[:2]:
        task.end()
    assert pool.wait(lambda: turns[2].done, lambda: PLENTY)


def test_what_is_larger_than_all_memory_waits_until_it_is_alone_and_then_runs(
    pool: Pool, started: list[str], tmp_path: Path
) -> None:
    pool.memory = 10
    file = tmp_path / "go on"
    busy = pool.add(told("busy", "until", path=str(file), memory=1))
    huge = pool.add(told("huge", memory=50))
    assert not pool.wait(lambda: huge.worker is not None, lambda: 0.0 if "open" in busy.answers else PLENTY)
    file.touch()
    done(pool, huge)
    assert started == ["busy", "huge"]
    assert huge.ready


def test_what_is_kept_for_later_use_is_given_up_where_its_memory_is_needed(pool: Pool) -> None:
    pool.memory = 10
    kept, wanted = pool.add(told("kept", memory=4)), pool.add(told("wanted", memory=4))
    done(pool, kept, wanted)
    kept.reclaimable = True
    small = pool.add(told("small", memory=2))
    done(pool, small)
    assert kept.ready  # there is room for both
    large = pool.add(told("large", memory=4))
    done(pool, large)
    assert kept.ended
    assert gone(kept.answers["open"]["pid"])
    assert wanted.ready
    assert small.ready
    assert large.ready
    assert pool.held() == 10


def test_for_what_runs_elsewhere_nothing_is_given_up_here(pool: Pool, started: list[str], tmp_path: Path) -> None:
    """Nor does what yields here leave room for it."""
    pool.most, pool.memory, pool.elsewhere = 6, 10, (Place("cuda:1", {}),)
    file = tmp_path / "go on"
    timed = pool.add(told("timed", "until", path=str(file), memory=4))
    kept = pool.add(told("kept", "until", path=str(file), memory=4))
    kept.reclaimable = True
    there, waits = (told(name, "until", path=str(file), memory=8) for name in ("there", "waits"))
    there.untimed = waits.untimed = True
    pool.add(there)
    pool.add(waits)
    assert started == ["timed", "kept", "there"]
    assert not kept.ended
    yields = told("yields", memory=2)
    yields.low_priority = True
    pool.add(yields)
    assert started[-1] == "yields"
    file.touch()
    done(pool, timed, there, waits, yields)
    assert not kept.ended


def test_where_nothing_goes_on_what_does_not_yield_starts_before_what_does(pool: Pool, started: list[str]) -> None:
    pool.memory = 10
    held = pool.add(told("held", memory=6))
    done(pool, held)
    yields, wanted = told("yields", memory=5), told("wanted", memory=6)
    yields.low_priority = True
    pool._tasks += [yields, wanted]
    done(pool, wanted)
    assert started[:2] == ["held", "wanted"]


def test_what_is_ready_gives_way_before_what_still_works(pool: Pool, tmp_path: Path) -> None:
    """It finds its compiled code once more; and so does one that is added at once."""
    pool.most, pool.memory = 5, 10
    file = tmp_path / "go on"
    ready = pool.add(told("ready", memory=3))
    done(pool, ready)
    works = pool.add(told("works", "until", path=str(file), memory=3))
    ready.reclaimable = works.reclaimable = True
    pool.add(told("wanted", memory=5), at_once=True)
    assert (ready.ended, works.ended) == (True, False)
    file.touch()
    done(pool, works)


def test_what_is_kept_for_later_use_gives_way_while_others_run_but_not_to_what_yields(
    pool: Pool, tmp_path: Path
) -> None:
    pool.most, pool.memory = 4, 10
    file = tmp_path / "go on"
    kept = [pool.add(told(name, "until", path=str(file), memory=3)) for name in ("a", "b")]
    busy = pool.add(told("busy", "until", path=str(file), memory=2))
    for task in kept:
        task.reclaimable = True
    large, yields = told("large", memory=5), told("yields", memory=5)
    yields.low_priority = True
    pool.add(yields)
    assert pool.fits(large)
    assert not any(task.ended for task in kept)
    huge = pool.add(told("huge", memory=9))
    assert not pool.fits(huge)
    assert not any(task.ended for task in kept)  # it would have no room without them, too
    huge.end()
    pool.add(large)
    assert [task.ended for task in (*kept, busy)] == [False, True, False]
    assert large.worker is not None
    file.touch()
    done(pool, large, yields)


@pytest.mark.parametrize(("call", "kind"), [("fail", "raised"), ("die", "killed"), ("hang", "hung")])
def test_a_worker_that_fails_is_an_error_of_its_task_and_leaves_its_place_to_the_next(
    pool: Pool, call: str, kind: str
) -> None:
    pool.most = 1
    bad, next_ = pool.add(told("bad", call)), pool.add(told("next", "add", a=1, b=1))
    assert pool.wait(lambda: "open" in bad.answers, lambda: PLENTY)
    if call == "hang":
        pool.setup = replace(pool.setup, limits=Limits(prepare=0.1))
    done(pool, bad)
    pool.setup = replace(pool.setup, limits=Limits(prepare=PLENTY))
    assert bad.error is not None
    assert bad.error.kind == kind
    assert not bad.ready
    assert gone(bad.answers["open"]["pid"])
    done(pool, next_)
    assert next_.answers["add"] == 2


def test_a_failure_ends_the_calls_that_were_to_come(pool: Pool) -> None:
    task = pool.add(told("bad", "fail", "hang"))
    done(pool, task)
    assert list(task.answers) == ["open"]


def test_waiting_ends_when_the_time_is_gone(pool: Pool) -> None:
    task = pool.add(told("slow", "hang"))
    assert pool.wait(lambda: "open" in task.answers, lambda: PLENTY)
    began = time.monotonic()
    assert pool.wait(lambda: task.done, lambda: 0.3 - (time.monotonic() - began)) is False
    assert 0.3 <= time.monotonic() - began < 30
    assert task.error is None  # who waits no longer has not ended it
    assert pool.wait(lambda: True, lambda: 0.0)  # what is so already needs no time


def test_a_task_that_was_given_up_before_it_started_never_does(pool: Pool, started: list[str], tmp_path: Path) -> None:
    pool.most, file = 1, tmp_path / "go on"
    busy, waiting = pool.add(told("busy", "until", path=str(file))), pool.add(told("waiting"))
    waiting.end()
    file.touch()
    done(pool, busy)
    pool.pump()
    assert started == ["busy"]
    assert waiting.done


def test_leaving_the_pool_kills_every_worker_spare_ones_too(started: list[str], tmp_path: Path) -> None:
    others = {*psutil.Process().children(recursive=True)}  # torch's compilers, of a test before
    with Pool(Setup(None, tmp_path, Limits(prepare=PLENTY)), most=3) as made:
        ready, slow = made.add(told("ready")), made.add(told("slow", "hang"))
        done(made, ready)
        assert made.wait(lambda: "open" in slow.answers, lambda: PLENTY)
        made.keep_spares(SIDE, 1)
        assert started == ["ready", "slow", "spare-1"]
        theirs = {*psutil.Process().children(recursive=True)} - others
        assert len(theirs) >= 3
    assert all(gone(process.pid) for process in theirs)
    assert not Worker.running
    assert ready.done
    assert slow.done


def test_a_spare_worker_is_used_by_a_task_that_sets_no_variables(pool: Pool, started: list[str]) -> None:
    pool.most = 8
    pool.keep_spares(SIDE, 1)
    with_variables = pool.add(told("variables", side=replace(SIDE, env={"A": "1"})))
    without = pool.add(told("without"))
    done(pool, with_variables, without)
    assert with_variables.answers["open"]["was spare"] is False
    assert without.answers["open"]["was spare"] is True
    assert started[:2] == ["spare-1", "variables"]
    assert "without" not in started
    assert started[-1] == "spare-2"  # the next one is started in its place


@pytest.mark.parametrize("early", [True, False], ids=["those that wait already", "those that come"])
def test_spare_workers_load_the_target_once_that_is_known_to_be_safe(
    pool: Pool, started: list[str], early: bool
) -> None:
    pool.most = 8
    if early:
        pool.keep_spares(SIDE, 1)
    pool.keep_spares(SIDE, 1, load=True)
    pool.keep_spares(SIDE, 1, load=True)
    first, second = pool.add(told("first")), pool.add(told("second"))
    done(pool, first, second)
    assert [task.answers["open"]["was loaded"] for task in (first, second)] == [True, True]
    assert [*first.took] == ["preload", "load_ahead", "open"]


def test_one_task_alone_asks_how_the_machine_is_set_up(pool: Pool) -> None:
    one, other = told("one"), told("other")
    one.reports_machine = True
    pool.add(one)
    pool.add(other)
    done(pool, one, other)
    assert [task.answers["open"]["briefly"] for task in (one, other)] == [False, True]


def test_a_spare_worker_that_died_costs_no_task(pool: Pool, started: list[str]) -> None:
    pool.most, others = 8, {*psutil.Process().children()}
    pool.keep_spares(SIDE, 1)
    (spare,) = {*psutil.Process().children()} - others
    spare.kill()
    assert gone(spare.pid)
    task = pool.add(told("sum", "add", a=1, b=2))
    done(pool, task)
    assert task.answers["add"] == 3


def test_where_the_host_has_no_memory_for_two_one_runs_at_a_time(
    pool: Pool, started: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in a SLURM job, which is killed as a whole when it takes more than it asked for."""
    free = [tasks.LEAST_BYTES // 2]
    monkeypatch.setattr(tasks, "free_memory", lambda: free[0])
    pool.most = 8
    pool.keep_spares(SIDE, 2)
    first, second = (pool.add(told(name, "until", path=str(tmp_path / name))) for name in ("first", "second"))
    assert started == ["first"]
    free[0] = 64 * tasks.LEAST_BYTES
    pool.pump()
    assert started[:2] == ["first", "second"]
    assert "spare-1" in started
    for name in ("first", "second"):
        (tmp_path / name).touch()
    done(pool, first, second)


def test_what_is_not_timed_runs_elsewhere_and_leaves_its_memory_there(pool: Pool, tmp_path: Path) -> None:
    pool.most, pool.memory = 4, 10.0
    pool.elsewhere = (Place("cuda", {"GPU": "1"}), Place("cuda", {"GPU": "2"}))
    timed = pool.add(told("timed", "until", path=str(tmp_path / "go"), memory=8.0))
    apart = [told(name, "until", path=str(tmp_path / "go"), memory=6.0) for name in ("first", "second", "third")]
    for task in apart:
        task.untimed = task.ends_when_done = True
        pool.add(task)
    assert [task.place for task in (timed, *apart[:2])] == [0, 1, 2]
    assert pool.waiting() == ["third"]  # no other GPU has room for it
    assert [pool.held(place) for place in range(3)] == [8.0, 6.0, 6.0]
    (tmp_path / "go").touch()
    done(pool, *apart)
    assert apart[2].place in (1, 2)


def test_what_is_not_timed_never_lies_beside_what_is(pool: Pool, tmp_path: Path) -> None:
    pool.most, pool.memory = 4, 10.0
    pool.elsewhere = (Place("cuda", {"GPU": "1"}),)
    timed = pool.add(told("timed", "until", path=str(tmp_path / "go"), memory=1.0))
    first, second = (told(name, "until", path=str(tmp_path / "go"), memory=6.0) for name in ("first", "second"))
    for task in (first, second):
        task.untimed = task.ends_when_done = True
        pool.add(task)
    assert pool.waiting() == ["second"]
    (tmp_path / "go").touch()
    done(pool, timed, first, second)
    assert (timed.place, first.place, second.place) == (0, 1, 1)


def test_what_is_timed_stays_on_its_device(pool: Pool, tmp_path: Path) -> None:
    pool.most, pool.memory = 4, 10.0
    pool.elsewhere = (Place("cuda", {"GPU": "1"}),)
    first = pool.add(told("first", "until", path=str(tmp_path / "go"), memory=8.0))
    second = pool.add(told("second", "until", path=str(tmp_path / "go"), memory=8.0))
    assert pool.waiting() == ["second"]
    (tmp_path / "go").touch()
    done(pool, first)
    first.end()
    done(pool, second)
    assert second.place == 0


def test_where_something_is_reserved_nothing_else_starts(pool: Pool, tmp_path: Path) -> None:
    """Nor where all else is done, and nothing would make room: what is timed there ends."""
    pool.most = 4
    pool.elsewhere = (Place("cuda", {"GPU": "1"}), Place("cuda", {"GPU": "2"}))
    file = tmp_path / "go"
    places = pool.reserve(9)
    assert places == [1, 2]
    assert pool.reserve(1) == []
    check, timed = told("check", "until", path=str(file)), told("timed")
    check.untimed = check.ends_when_done = True
    timed.place = 2
    pool.add(check)
    done(pool, pool.add(timed, at_once=True))
    assert (timed.worker is not None, check.worker) == (True, None)
    pool.release([1])
    pool.pump()
    assert check.place == 1
    assert pool.reserve(2) == []
    timed.end()
    pool.release([2])
    assert pool.reserve(2) == [2]
    pool.unfit.add(2)
    pool.release([2])
    assert pool.reserve(2) == []
    file.touch()
    done(pool, check)
    assert pool.reserve(2) == [1]


def test_what_waits_to_be_verified_is_left_a_gpu(pool: Pool, tmp_path: Path) -> None:
    pool.most = 1
    pool.elsewhere = tuple(Place("cuda", {"GPU": str(n)}) for n in (1, 2, 3))
    here, check, helper = (told(name, "until", path=str(tmp_path / "go")) for name in ("here", "check", "helper"))
    check.untimed = helper.untimed = helper.low_priority = True
    for task in (here, check, helper):
        pool.add(task)  # for the last two there is no core
    assert pool.reserve(9) == [1, 2]
    (tmp_path / "go").touch()


def test_workers_are_forked_unless_their_task_is_to_have_a_fresh_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ForkServer(["served_tasks"], tmp_path / "server.log") as forks, ExitStack() as stack:

        def opened(_: ExitStack, setup: Setup, side: Side, log: str, forks: ForkServer | None, briefly: bool) -> Worker:
            worker = stack.enter_context(Worker("served_tasks:Told", setup.logs / log, PATH, forks=forks))
            worker.send("open", target=side.target)
            return worker

        monkeypatch.setattr(tasks, "open_worker", opened)
        monkeypatch.setattr(
            tasks, "spare_worker", lambda *_: pytest.fail("where workers are forked, none is started ahead")
        )
        with Pool(Setup(None, tmp_path, Limits(prepare=PLENTY)), most=2, forks=forks) as pool:
            pool.keep_spares(Side("x"), 3)
            fork, fresh = told("fork", "add", a=1, b=2), told("fresh", "add", a=1, b=2)
            fresh.fresh = True
            for task in (fork, fresh):
                done(pool, pool.add(task))
            assert isinstance(fork.worker, Worker)
            assert isinstance(fresh.worker, Worker)
            assert [isinstance(w._process, Forked) for w in (fork.worker, fresh.worker)] == [True, False]


def test_elsewhere_has_its_own_device_and_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setups: list[Setup] = []

    def opened(stack: ExitStack, setup: Setup, side: Side, log: str, **how: object) -> Worker:
        setups.append(setup)
        started = stack.enter_context(Worker("served_tasks:Told", setup.logs / f"{log}.log", PATH))
        started.send("open", target=side.target)
        return started

    monkeypatch.setattr(tasks, "open_worker", opened)
    with Pool(Setup("cuda:3", tmp_path, Limits(prepare=PLENTY), variables={"A": "b"}), most=2) as pool:
        pool.elsewhere = (Place("cuda", {"GPU": "1"}),)
        task = told("apart", "add", a=1, b=2)
        task.untimed = True
        done(pool, pool.add(task))
    assert (setups[0].device, setups[0].variables) == ("cuda", {"A": "b", "GPU": "1"})


def test_where_a_target_sets_what_forks_have_read_before_all_are_started_again_as_fresh_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that sets TORCHINDUCTOR_... before it imports torch is heeded in the user's own process, so it is to be here."""
    with ForkServer(["served_tasks"], tmp_path / "server.log") as forks, ExitStack() as stack:

        def opened(_: ExitStack, setup: Setup, side: Side, log: str, forks: ForkServer | None, briefly: bool) -> Worker:
            worker = stack.enter_context(Worker("served_tasks:Told", setup.logs / log, PATH, forks=forks))
            worker.send("open", target="late" if forks else side.target)
            return worker

        monkeypatch.setattr(tasks, "open_worker", opened)
        with Pool(Setup(None, tmp_path, Limits(prepare=PLENTY)), most=2, forks=forks) as pool:
            first, second = told("first", "add", a=1, b=2), told("second", "add", a=2, b=2)
            for task in (first, second):
                pool.add(task)
            for task in (first, second):
                done(pool, task)
            assert pool.forks is None
            for task, result in ((first, 3), (second, 4)):
                assert isinstance(task.worker, Worker)
                assert not isinstance(task.worker._process, Forked)
                assert task.answers["add"] == result
