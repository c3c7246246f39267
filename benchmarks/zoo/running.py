"""Measures what the results file lacks: eager, each mode of torch.compile and a climb of each case, one process each."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

import msgspec
from choosing import cases, chosen, in_drawn_order
from making import Case
from rows import LIBRARIES, SEED, Header, Results, Row, drawn

sys.path.append(str(Path(__file__).parents[1] / "climb"))
from fresh import CORES, EAGER, RECIPE, TURN, Climb, Stopped, Target, Timed, climbed, cold, stop, timed

PLAIN_LIMIT = 600.0  # seconds that a mode of torch.compile may take in all
LOG = 30  # lines of a climb's that are kept; of its workers all, where nothing was verified: they say what the time went to


def run(given: argparse.Namespace) -> int:
    known = cases(given.kernelbench)
    order = in_drawn_order(known)
    picked = chosen(known, order, given.names, given.first)
    results = Results(given.out)
    if results.header is None:
        results.header = Header(seed=SEED, began=time.strftime("%Y-%m-%d %H:%M:%S %Z"), order=[])
    # A case keeps its place when others come: those of a checkout, say.
    results.header.order = drawn({*results.header.order, *order}, results.header.seed)
    results.write()
    say(f"in this order, drawn by seed {SEED}: {', '.join(f'{case.name}:{variant}' for case, variant in picked)}")
    return Run(given, picked, results).ended()


class Run:
    """The rows of a run, taken in order by one thread a GPU."""

    def __init__(self, given: argparse.Namespace, picked: Sequence[tuple[Case, str]], results: Results) -> None:
        self.given, self.results = given, results
        self.numerics = given.numerics or ("bf16" if _has_gpu() else "exact")
        self.versions = _versions()
        self.end = time.monotonic() + (given.seconds or float("inf"))
        self.queue: queue.SimpleQueue[tuple[str, Case, str]] = queue.SimpleQueue()
        for number, (case, variant) in enumerate(picked, 1):
            self.queue.put((f"{number}/{len(picked)} {case.name}:{variant}", case, variant))
        self.lock = threading.Lock()
        self.late = False
        self.failed: list[BaseException] = []

    def ended(self) -> int:
        """0 where all is done, 1 where the time was over before, 130 after Ctrl-C or a kill. What is there is in the file."""
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        threads = [threading.Thread(target=self._rows, args=(env,)) for env in _places(self.given.gpus)]
        try:
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                time.sleep(0.1)
        except KeyboardInterrupt:
            stop()
            for thread in threads:
                thread.join()
            say("stopped; the same command goes on here.")
            return 130
        finally:
            signal.signal(signal.SIGTERM, before)
        if self.failed:
            raise self.failed[0]
        say("the time is over; the same command goes on here." if self.late else "all are done.")
        return 1 if self.late else 0

    def _rows(self, env: dict[str, str]) -> None:
        try:
            while not self.late and not self.failed:
                self._row(*self.queue.get_nowait(), env)
        except (queue.Empty, Stopped):
            return
        except BaseException as error:
            self.failed.append(error)

    def _row(self, head: str, case: Case, variant: str, env: dict[str, str]) -> None:
        given = self.given
        wanted = Row(
            name=case.name,
            variant=variant,
            kind=case.kind,
            numerics=self.numerics,
            budget_s=given.budget,
            toy=given.toy,
        )
        with self.lock:
            row = self.results.row_of(wanted)
        if row.done:
            return
        row.versions = self.versions  # of the climb, which is the last to run
        for group in parts(row, case, given.modes, self.results.rows, together=bool(env)):
            if time.monotonic() > self.end:
                self.late = True
                return
            self._group(head, group, env)
        with self.lock:
            row.done = True
            self.results.write()

    def _group(self, head: str, group: Sequence[Part], env: dict[str, str]) -> None:
        """Runs parts that begin together. Those that found too little memory beside the others run once more, alone."""

        def one(part: Part, more: dict[str, str]) -> bool:
            said = part(env | more)
            if more and part.lacked_memory:
                return False
            with self.lock:
                part.keep()
                self.results.write()
            say(f"{head}: {said}")
            return True

        if len(group) == 1:
            one(group[0], {})
            return
        with tempfile.TemporaryDirectory(prefix="turn-") as folder, ThreadPoolExecutor(len(group)) as pool:
            enough = list(pool.map(one, group, repeat({TURN: f"{folder}/turn"})))
        for part in (p for p, had in zip(group, enough, strict=True) if not had):
            one(part, {})


def _places(gpus: Sequence[int] | None) -> list[dict[str, str]]:
    """The variables of each thread's processes: a GPU, and its part of the cores. Without GPUs one thread, which uses what there is."""
    if not gpus:
        return [{}]
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // len(gpus))
    mine = [cores[share * k : share * (k + 1)] or cores for k in range(len(gpus))]
    return [{"CUDA_VISIBLE_DEVICES": str(gpu), CORES: ",".join(map(str, c))} for gpu, c in zip(gpus, mine, strict=True)]


class Part:
    """One process of a row, which is called to run it and says in a line what came of it. `keep` writes that into the row."""

    def __init__(self, row: Row, target: Target, mode: str = "") -> None:
        self.row, self.target, self.mode = row, target, mode
        self.timed: Timed | None = None
        self.climb: Climb | None = None

    def __call__(self, env: dict[str, str]) -> str:
        if not self.mode:
            self.climb = climb(self.target, self.row.budget_s, env)
            return said_of(self.climb)
        with cold(env) as whole:
            self.timed = timed(self.target, self.mode, whole, PLAIN_LIMIT)
        return f"{self.mode} {_time(self.timed)}"

    @property
    def lacked_memory(self) -> bool:
        return self.timed is not None and self.timed.kind == "out of memory"

    def keep(self) -> None:
        if self.climb:
            self.row.climb = self.climb
        elif self.timed and self.mode == EAGER:
            self.row.eager = self.timed
            self.row.reason = self.timed.error
        elif self.timed:
            self.row.plain = [*self.row.plain, self.timed]


def parts(
    row: Row, case: Case, modes: Sequence[str], others: Sequence[Row], together: bool = False
) -> Iterator[list[Part]]:
    """What is still to be run for a row: eager, each mode, and the climb. What a row of another budget has timed is taken from there.
    together: eager and the modes begin at the same time, and only their timing is one after the other."""
    target = Target(case.target, case.all_options(row.variant, row.toy), row.numerics)
    twins = [other for other in others if other is not row and other.same_runs(row)]
    row.eager = row.eager or next((twin.eager for twin in twins if twin.eager), None)
    missing = [] if row.eager else [EAGER]
    for mode in modes:
        if any(t.mode == mode for t in row.plain):
            continue
        if same := next((t for twin in twins for t in twin.plain if t.mode == mode), None):
            row.plain = [*row.plain, same]
        else:
            missing.append(mode)
    plain = [Part(row, target, mode) for mode in missing]
    for group in [plain] if together and plain else [[part] for part in plain]:
        if not row.reason:
            yield group
    if row.climb is None and not row.reason:
        yield [Part(row, target)]


def climb(target: Target, budget: float, more: dict[str, str]) -> Climb:
    """A climb, and then its recipe in a fresh process as a user applies it, which finds the climb's compiled code."""
    with cold(more) as env:
        found = climbed(target, budget, env, lambda recipe: timed(target, f"{RECIPE}{recipe}", env, PLAIN_LIMIT))
    verified = found.result.get("status") in ("verified", "confirmed")
    return msgspec.structs.replace(found, log=found.log[-LOG:], workers_log=[] if verified else found.workers_log)


def said_of(found: Climb) -> str:
    if found.crash:
        return f"Rung crashed (exit {found.exit}): {found.crash.splitlines()[-1] if found.crash else ''}"
    if not found.result.get("kept"):
        return f"no recipe after {found.wall_s:.0f} s: {found.why}"
    over = (found.result.get("speedup") or {}).get("value")
    times = f"{over:.2f}x the untouched model, " if over else ""
    applied = _time(found.applied) if found.applied else "not applied"
    return f"{found.result.get('status')} after {found.wall_s:.0f} s: {times}{','.join(found.result['kept'])}; applied: {applied}"


def _time(found: Timed) -> str:
    return found.error or f"{found.step_ms:.3f} ms a step, ready after {found.ready_s:.0f} s"


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _versions() -> dict[str, str]:
    found = {}
    for package in (*LIBRARIES, "rung"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    done = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    return {
        **found,
        **({"commit": done.stdout.strip()} if done.returncode == 0 else {}),
        "python": sys.version.split()[0],
    }


def say(text: str) -> None:
    print(text, flush=True)
