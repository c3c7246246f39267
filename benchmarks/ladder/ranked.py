"""All sides of one case over restarts: built side by side, timed one after another, kept as soon as they are done.

A restart is a fresh process of each side. As many of them as `held` are loaded at once; where that is all of them, their
blocks alternate, as in `rung compare`; where it is fewer, the sides of a restart are timed in groups, and what differs
between groups is compared over blocks that do not alternate. The restart is the unit of evidence either way.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rung.launch import Worker, WorkerFailed
from rung.measure import Restart, judge, median_interval
from rung.records.record import plain
from rung.runs import to_json, write_whole
from rung.side import Limits, Setup, Side
from rung.timing.ab_run import ABRun
from rung.timing.compare import idle
from rung.timing.worker_group import SideFailed, WorkerGroup
from rung.timing.workers import open_worker

FALSE_ALARMS = 0.05  # all of it at the one look that there is
MARGIN = 0.01  # what counts as the same


class Ranked:
    """The record of a case in a file, which a later call goes on with.

    record: sides, first_runs (seconds, with nothing compiled before), restarts (by side: `visits`, nanoseconds a step of the first and the second block of each round;
    memory in bytes; first_run_seconds), unfinished (restarts of which groups are missing), failed (by side, why), groups
    (who was timed alongside whom), environment.
    """

    def __init__(self, path: Path, sides: Mapping[str, Side], say: Callable[[str], None]) -> None:
        self.path, self.sides, self.say = path, dict(sides), say
        asked = {name: {"options": side.options, "rungs": list(side.rungs)} for name, side in sides.items()}
        self.record: dict[str, Any] = {
            "sides": asked, "first_runs": {}, "restarts": [], "unfinished": [], "failed": {}, "groups": [],
        }  # fmt: skip
        if path.exists():
            self.record = json.loads(path.read_text())
            if self.record["sides"] != asked:
                raise SystemExit(f"{path} was made of other sides or options: give another --out, or delete it.")

    def run(self, setup: Setup, restarts: int, held: int, over: Callable[[], bool]) -> bool:
        """Restarts until there are so many; False where the time was over before."""
        done = self.record["restarts"]
        for names in groups(list(self.sides), held):
            new = [n for n in names if n not in self.record["first_runs"] and n not in self.record["failed"]]
            if len(names) > 1 and new:
                if over():
                    return False
                self.first(setup, new)
        while len(done) < restarts and self.left():
            count = max(1, min(held // len(self.left()), restarts - len(done)))
            self.record["unfinished"] = self.record["unfinished"] or [{} for _ in range(count)]
            if not self.restarted(setup, held, over):
                return False
            done += self.record["unfinished"]
            self.record["unfinished"] = []
            self.keep()
        return True

    def first(self, setup: Setup, names: Sequence[str]) -> None:
        """One run of each side, all of them at once, from which what is compiled is kept for the restarts. Nothing runs
        longer than that: what is tuned meanwhile should have the GPU to itself. Each is noted as it ends: what is stopped here
        goes on with those that are missing."""
        began = time.monotonic()
        with ExitStack() as stack:
            log = f"{self.path.stem}-first"
            workers = {name: open_worker(stack, setup, self.sides[name], f"{log}-{name}") for name in names}
            for ask in (self._begin, self._end):
                for name, worker in workers.items():
                    if name not in self.record["failed"]:
                        try:
                            ask(name, worker, setup.limits.prepare)
                        except WorkerFailed as error:
                            self.fails(name, str(error))
                        self.keep()
        self.say(f"first runs of {', '.join(names)}: {time.monotonic() - began:.0f} s")

    def _begin(self, name: str, worker: Worker, deadline: float) -> None:
        worker.send("first")

    def _end(self, name: str, worker: Worker, deadline: float) -> None:
        worker.receive("open", deadline)
        self.record["first_runs"][name] = worker.receive("first", deadline)

    def restarted(self, setup: Setup, held: int, over: Callable[[], bool]) -> bool:
        """Goes on with the unfinished restarts until no group is missing."""
        rows, number = self.record["unfinished"], len(self.record["restarts"])
        self.record["groups"] = groups(self.left(), held)
        # One way and then the other, so that drift does not always meet the same sides.
        for members in self.record["groups"][:: -1 if number % 2 else 1]:
            names = [name for name in members if name not in rows[0]]
            if not names:
                continue
            if over():
                return False
            began = time.monotonic()
            with ExitStack() as stack:
                group = {name: self.sides[name] for name in names}
                starts = [
                    WorkerGroup(setup, group, f"{self.path.stem}-{number + k + 1}", stack) for k in range(len(rows))
                ]
                for start in starts:
                    for name in names:
                        self.ready(start, name, setup.limits)
                loaded = time.monotonic() - began
                for row, start in zip(rows, starts, strict=True):
                    row.update(self.timed(start))
            for name, seen in rows[0].items():
                self.record["first_runs"].setdefault(name, seen["first_run_seconds"])
            self.keep()
            self.say(
                f"{', '.join(names)} x {len(rows)}: {loaded:.0f} s to load, {time.monotonic() - began:.0f} s in all"
            )
        return True

    def ready(self, start: WorkerGroup, name: str, limits: Limits) -> None:
        try:
            start.ready(name, limits.prepare)
        except SideFailed as failure:
            start.drop(name)
            self.fails(name, str(failure))

    def timed(self, start: WorkerGroup) -> dict[str, Any]:
        """What each side of a group took; without those that fail while they are timed."""
        while start.workers:
            ab_run, names = ABRun(), list(start.workers)
            try:
                visits = start.timed(ab_run).rounds
            except SideFailed as failure:
                start.drop(failure.side)
                self.fails(failure.side, str(failure))
                continue
            self.record["environment"] = plain(list(ab_run.environments.values())[-1])
            for line in idle(self.sides, start.state) if not self.record["restarts"] else ():
                self.say(line)
            warm = {name: plain(state) for name, state in start.state.items()}
            return {
                name: {
                    "visits": [[r[k], r[-1 - k]] for r in visits],
                    **{key: warm[name][key] for key in ("memory", "first_run_seconds", "steady", "applied")},
                    "hidden": ab_run.hidden[name],
                }
                for k, name in enumerate(names)
            }
        return {}

    def fails(self, name: str, why: str) -> None:
        self.record["failed"][name] = why.strip().splitlines()[0][:300]
        self.say(f"{name} fails: {self.record['failed'][name]}")

    def left(self) -> list[str]:
        return [name for name in self.sides if name not in self.record["failed"]]

    def keep(self) -> None:
        write_whole(self.path, to_json({**self.record, **answer(self.record)}))


def groups(names: Sequence[str], held: int) -> list[list[str]]:
    """Who is held at once: the last of the list together, because the side that is asked about is the last."""
    first = len(names) % held if len(names) > held else 0
    parts = [list(names[k : k + held]) for k in range(first, len(names), held)]
    return [list(names[:first]), *parts] if first else parts


def answer(record: Mapping[str, Any], ours: str = "rung") -> dict[str, Any]:
    """times: the median step of each side with its 95 % interval over blocks, nanoseconds; ours: of the sides whose names
    begin so, the quickest, as a climb would keep it; against: time of each rival over time of ours
    (`rung.measure.Comparison`); best: the rival that ours wins least against, and verdict: what ours is beside it. Being
    faster than all is claimed only where each comparison shows it, which needs no correction for their number
    (Berger 1982)."""
    restarts = record["restarts"]
    names = [n for n in record["sides"] if restarts and n not in record["failed"] and all(n in r for r in restarts)]
    times = {n: median_interval([ns for r in restarts for v in r[n]["visits"] for ns in v]).as_dict() for n in names}
    found: dict[str, Any] = {"times": times, "ours": ours, "against": {}, "best": None, "verdict": "no comparison"}
    stacks, rivals = [n for n in names if n.startswith(ours)], [n for n in names if not n.startswith(ours)]
    if not stacks:
        return found
    found["ours"] = min(stacks, key=lambda name: times[name]["value"])
    rounds = [restart_of(r, names) for r in restarts]
    us, looks = names.index(found["ours"]), ((len(rounds), FALSE_ALARMS),)
    for name in rivals:
        ratios = [r.log_ratio(names.index(name), us) for r in rounds]
        found["against"][name] = judge(ratios, looks=looks, margin=MARGIN).as_dict()  # type: ignore[union-attr]
    if found["against"]:
        best = min(found["against"], key=lambda name: found["against"][name]["speedup"]["value"])
        found |= {"best": best, "verdict": found["against"][best]["answer"]}
    return found


def restart_of(row: Mapping[str, Any], names: Sequence[str]) -> Restart:
    """The blocks of all sides as rounds, whoever was timed alongside whom."""
    count = min(len(row[name]["visits"]) for name in names)
    visits = [[row[name]["visits"][k] for name in names] for k in range(count)]
    return Restart(tuple((*(first for first, _ in v), *(second for _, second in reversed(v))) for v in visits))


def allocated(memory: Mapping[str, int]) -> int:
    """Bytes at the peak: of torch's allocator on a GPU, of the process on a CPU."""
    return memory.get("allocated", max(memory.values()))


def variables(cache: Path, compiled: int) -> dict[str, str]:
    """What the workers of a case share: one cache of compiled code, and the cores. Together they ask for more threads than
    there are, because those that tune compile for minutes when the others are done."""
    cores = os.cpu_count() or 1
    threads = min(cores, max(1, 4 * cores // max(compiled, 1)))
    return {"TORCHINDUCTOR_CACHE_DIR": str(cache.resolve()), "TORCHINDUCTOR_COMPILE_THREADS": str(threads)}
