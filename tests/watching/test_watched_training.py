"""Real training loops that are watched: one process, and two ranks of which one is slow and throttled."""

import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import rung
from rung.errors import UsageError
from rung.hardware.device import Device
from rung.records.watch import Watched
from rung.watching.files import samples
from rung.watching.judge import judged
from rung.watching.pace import HOST_COST_NS, Clock, GpuClock, HostClock, Pace

CPU = Device("cpu", 0, "cpu", "", "", 0, 0)
RANK = """
import sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import rung
from rung.hardware.sensors import Reading
from rung.watching import sampler

folder, stop = Path(sys.argv[1]), Path(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
slow = dist.get_rank() == 1

class Sensor:
    source, limit, bus = "made", 750.0, None
    def read(self):
        return Reading(0.0, power=700.0, core=1100.0 if slow else 2100.0, throttled=("power cap",) if slow else ())

sampler.sensor_for = lambda gpu: Sensor()

def trained(steps, model, step=lambda: None, pause=0.0):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for k in range(steps):
        time.sleep(pause)
        optimizer.zero_grad()
        model(torch.full((4, 8), float(k % 7 + dist.get_rank()))).square().mean().backward()
        optimizer.step()
        step()
        if k % 10 == 0 and k and pause:
            over = torch.tensor([float(stop.exists())])
            dist.all_reduce(over)
            if over:
                break

def made():
    torch.manual_seed(0)
    return DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8)))

plain, seen = made(), made()  # without buffers, so nothing is broadcast
trained(5, plain)
with rung.watch(seen, folder=folder / "equal", every=60) as watching:
    trained(5, seen, watching.step)
assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), seen.parameters()))
with rung.watch(seen, folder=folder, every=0.3) as watching:
    trained(100_000, seen, watching.step, 0.03 if slow else 0.01)
dist.destroy_process_group()  # a thread of gloo's that outlives Python may abort the process
"""


def test_a_slow_and_throttled_rank_is_named_while_it_trains_and_gradients_stay_as_they_are(tmp_path: Path) -> None:
    script, stop, folder = tmp_path / "train.py", tmp_path / "stop", tmp_path / "watch"
    script.write_text(RANK)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    log = (tmp_path / "log").open("w+")
    job = subprocess.Popen([*words, str(folder), str(stop)], stdout=log, stderr=log)

    def state() -> Watched | None:
        lines = samples(folder)
        return judged(folder, lines, time.time()) if len(lines) == 2 else None

    def kinds() -> dict[str, list[int]]:
        found = state()
        return {finding.kind: finding.ranks for finding in found.findings} if found else {}

    try:
        assert until(lambda: job.poll() is not None or kinds() == {"straggler": [1], "throttled": [1]}), kinds()
        assert job.poll() is None, (tmp_path / "log").read_text()
        found = state()
        stop.touch()
        assert job.wait(60) == 0, (tmp_path / "log").read_text()
    finally:
        job.kill()
        log.close()
    assert found is not None
    first, second = found.ranks
    # Both wait for each other, so their steps are of one length; what each did itself is not.
    assert first.step_ns is not None
    assert second.step_ns == pytest.approx(first.step_ns, rel=0.3)
    assert first.exchange_ns is not None
    assert first.exchange_ns > (second.exchange_ns or 0.0)
    assert (second.power, second.core, second.throttled) == (700.0, 1100.0, {"power cap": 1.0})
    ended = state()
    assert ended is not None
    assert ended.state == "ended"


def until(holds: Callable[[], bool], seconds: float = 90.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.1)
    return False


def test_a_process_alone_writes_its_steps_memory_and_end(tmp_path: Path) -> None:
    with rung.watch(folder=tmp_path, every=0.05) as watching:
        for _ in range(20):
            time.sleep(0.005)
            watching.step()
        assert until(lambda: bool(samples(tmp_path)) and samples(tmp_path)[0][-1].step == 20)
    watching.step()
    watching.close()
    (lines,) = samples(tmp_path)
    assert (lines[-1].rank, lines[-1].world, lines[-1].ended) == (0, 1, True)
    assert 0 < sum(line.steps for line in lines) < 20  # the first step has no beginning
    assert all(line.own_ns == line.step_ns and line.exchange_ns is None for line in lines)
    assert max(line.step_ns or 0.0 for line in lines) >= 5e6
    assert (lines[-1].resident or 0) > 2**20
    assert all(line.cost is not None for line in lines)
    assert judged(tmp_path, [lines], time.time()).state == "ended"


def test_a_folder_that_cannot_be_written_to_is_warned_of_once_and_the_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with rung.watch(folder=tmp_path / "file" / "watch", every=0.05) as watching:
            until(lambda: len(told) > 0, 10)
            time.sleep(0.2)
            watching.step()
    assert [str(one.message).startswith("the training goes on, but rung watch may not see it:") for one in told] == [
        True
    ]


def test_a_folder_that_was_deleted_and_a_thread_that_cannot_start_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.warns(UserWarning, match="the training goes on"), rung.watch(torch.nn.Linear(2, 2)) as watching:
        watching.step()
    monkeypatch.chdir(tmp_path)

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    hooked: list[Pace] = []
    monkeypatch.setattr(Pace, "close", lambda pace: hooked.append(pace))
    with pytest.warns(UserWarning, match="can't start new thread"), rung.watch(folder=tmp_path) as watching:
        watching.step()
    assert len(hooked) == 1


def test_a_warning_that_python_makes_an_error_of_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watching = rung.watch(folder=tmp_path, every=60)

    def fails() -> None:
        raise RuntimeError("no event could be made")

    monkeypatch.setattr(watching._pace, "step", fails)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watching.step()
        watching.step()
    watching.close()
    assert [one.message.endswith("may not see it: no event could be made") for one in caplog.records] == [True]


def test_what_fails_within_a_backward_is_raised_by_the_next_step_alone() -> None:
    model = torch.nn.Linear(2, 2)
    pace, clock = Pace(CPU, model), Behind()
    pace._clock = clock

    def fails() -> int:
        raise RuntimeError("no event could be made")

    clock.mark = fails  # type: ignore[method-assign]
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(RuntimeError, match="no event"):
        pace.step()
    clock.mark = lambda: 1  # type: ignore[method-assign]
    model(torch.ones(1, 2)).sum().backward()
    pace.step()
    pace.close()


def test_where_a_loop_stands_is_said_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rung.watching.sampler.LONG", 0.1)
    with rung.watch(folder=tmp_path, every=0.05):
        assert until(lambda: bool(samples(tmp_path)) and "until" in samples(tmp_path)[0][-1].stands)
    assert Path(__file__).name in samples(tmp_path)[0][-2].stands


def test_nothing_of_a_watch_is_left_on_a_model_and_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    model = torch.nn.Linear(2, 2)
    pace = Pace(CPU, model)
    model(torch.ones(1, 2)).sum().backward()
    pace.step()
    pace.close()
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    with rung.watch(model, folder=tmp_path):
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_every_has_to_be_a_time(tmp_path: Path) -> None:
    for every in (0.0, -1.0, float("nan")):
        with pytest.raises(UsageError, match="must lie between"):
            rung.watch(folder=tmp_path, every=every)


class Behind:
    """A clock as of a GPU that is some marks behind, and that cannot be marked while a graph is captured."""

    def __init__(self) -> None:
        self.marks, self.done, self.capturing = 0, 0, False
        self.cost_ns = HOST_COST_NS

    def mark(self) -> int | None:
        self.marks += 1
        return None if self.capturing else self.marks

    def passed(self, mark: int) -> bool:
        return mark <= self.done

    def between(self, begin: int, end: int) -> float:
        assert end <= self.done, "asked for a time that the GPU has not come to"
        return (end - begin) * 1e8


def test_times_of_a_gpu_are_taken_once_it_has_come_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, model = Behind(), torch.nn.Linear(2, 2)
    pace = Pace(CPU, model)
    pace._clock = clock
    for _ in range(4):
        model(torch.ones(1, 2)).sum().backward()
        pace.step()
    assert pace.take() == []
    clock.done = 9  # each step has three marks: before the exchange, after it, at its end
    pace.step()
    assert pace.take() == [(3e8, 1e8), (3e8, 1e8)]
    clock.capturing = True
    pace.step()
    clock.capturing, clock.done = False, 100
    pace.step()
    pace.step()
    # The step that was captured, and the one after it, have no beginning or end.
    assert [step for step, _ in pace.take()] == [3e8, 1e8, 1e8]


@pytest.mark.parametrize(("of", "timed"), [(HostClock, 11), (GpuClock, 4)])
def test_of_short_steps_one_in_several_is_timed_so_that_it_costs_little(
    monkeypatch: pytest.MonkeyPatch, of: type[Clock], timed: int
) -> None:
    clock, model = Behind(), torch.nn.Linear(2, 2)
    clock.done, clock.cost_ns = 10**9, of.cost_ns
    monkeypatch.setattr(clock, "between", lambda begin, end: 2e6 * (end - begin) / 3)  # steps of 2 ms
    pace = Pace(CPU, model)
    pace._clock = clock
    for _ in range(101):
        model(torch.ones(1, 2)).sum().backward()
        pace.step()
    # 0.1 ms on a CPU and 0.3 ms on a GPU, of 0.5 % of 2 ms: one in 10, and one in 30.
    assert len(pace.take()) == pytest.approx(timed, abs=1)
    assert clock.marks < 50
    pace.close()
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


def test_a_process_that_was_forked_writes_nothing(tmp_path: Path) -> None:
    watching = rung.watch(folder=tmp_path, every=60)
    until(lambda: bool(samples(tmp_path)), 10)
    child = os.fork()
    if not child:
        watching.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert not samples(tmp_path)[0][-1].ended
    watching.close()
    assert samples(tmp_path)[0][-1].ended
