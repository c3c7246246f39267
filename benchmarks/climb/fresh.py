"""What `time_to_answer.py` and the zoo measure: a workload as a user would run it, and one climb of it, each in a fresh process.

`timed` does what a user would write: autocast to bfloat16 where that precision is asked for and the weights are float32, a fused AdamW
where the model trains, `torch.compile(forward and loss, mode=MODE)`. It is ready when three steps were run. `climbed` runs `rung climb`.
Both count from the start of their process, imports and making the model included, and find nothing that was compiled before.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

EAGER, RECIPE = (
    "eager",
    "recipe:",
)  # what a process may run beside the modes of torch.compile; after the colon, a recipe's file
WARM, STEPS, FEWEST = 5, 30, 5  # steps before the clock runs; those timed, and at least so many where a step is slow
SECONDS = 20.0  # of timing: after these, no further step is begun
TURN = "CASE_TURN"  # a variable: the file by which processes that begin together take turns at the clock
CORES = "CASE_CORES"  # a variable: the cores, with commas between them, that a process and what it starts may use
CUT = 40  # lines of a process's last words that are kept
# Runs `rung`, and prints what each of the climb's workers took for its calls: a line each, with the text WORKER before it.
RUNG = """
import logging, os, sys
if cores := os.environ.get("CASE_CORES"):
    os.sched_setaffinity(0, map(int, cores.split(",")))
from rung.cli.main import main
handler = logging.StreamHandler()
handler.setFormatter(logging.Formatter("WORKER %(message)s"))
log = logging.getLogger("rung.timing.tasks")
log.setLevel(logging.DEBUG)
log.propagate = False
log.addHandler(handler)
sys.exit(main())
"""


class Timed(msgspec.Struct, kw_only=True):
    """One process. ready_s: since it was started; step_ms, low_ms, high_ms: median and its 95 % interval within this process;
    peak_bytes: of torch's allocator on a GPU, of the process on a CPU; parameters: how many the model has; error: why there is no time,
    as a sentence; kind of it: `missing` (a library lacks it), `out of memory`, `hung`, `died` or `raised`."""

    mode: str
    ready_s: float | None = None
    step_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    peak_bytes: int | None = None
    parameters: int | None = None
    device: str = ""
    torch: str = ""
    error: str = ""
    kind: str = ""


class Attempt(msgspec.Struct, kw_only=True):
    """What a climb has written down of one rung or bundle. refused: its results differed; ran: it was more than looked at; predicted:
    the least and the greatest speedup over the best so far, and measured what it was; cut: the budget ended before it was decided."""

    rung: str
    verdict: str
    why: str = ""
    members: list[str] = []
    stack: list[str] = []
    refused: bool = False
    ran: bool = False
    worst: dict[str, Any] | None = None
    seconds: float | None = None
    prepared_seconds: float | None = None
    verified_seconds: float | None = None
    predicted: list[float] = []
    measured: float | None = None
    cut: bool = False


class Climb(msgspec.Struct, kw_only=True):
    """One climb. exit: of its process; why: the reason where it has no recipe; crash: its last words, where Rung itself failed;
    result: as result.json has it, without the samples; applied: the recipe in a fresh process, which finds the climb's compiled code."""

    budget_s: float
    wall_s: float
    exit: int | None
    why: str = ""
    crash: str = ""
    result: dict[str, Any] = {}
    attempts: list[Attempt] = []
    workers: int = 0
    applied: Timed | None = None
    log: list[str] = []
    workers_log: list[str] = []

    @property
    def first(self) -> dict[str, dict[str, Any] | None]:
        """By status, the first answer that had it: `seconds` since the climb began, and `speedup`."""
        history = self.result.get("history") or []
        return {
            s: next((h for h in history if h["status"] == s), None) for s in ("provisional", "verified", "confirmed")
        }


@dataclass(frozen=True)
class Target:
    """What is measured, as `rung climb` is given it. numerics: exact, tf32 or bf16."""

    name: str
    options: Mapping[str, str]
    numerics: str

    def words(self) -> list[str]:
        return [self.name, *(word for name, value in self.options.items() for word in (f"--{name}", value))]


@contextmanager
def cold(more: Mapping[str, str] | None = None) -> Iterator[dict[str, str]]:
    """The environment of a process that finds nothing that was compiled before. more: other variables that it gets."""
    with tempfile.TemporaryDirectory(prefix="cold-", ignore_cleanup_errors=True) as folder:
        caches = {
            name: f"{folder}/{name}"
            for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "RUNG_CACHE", "XDG_CACHE_HOME")
        }
        yield {**os.environ, **caches, **(more or {})}


def timed(target: Target, mode: str, env: Mapping[str, str], limit: float = 900.0) -> Timed:
    """The target under a mode of torch.compile, `eager`, or `recipe:FILE`, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="timed-", ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "timed.json"
        asked = json.dumps({"name": target.name, "options": dict(target.options), "numerics": target.numerics})
        ended = _finished([sys.executable, __file__, asked, mode, str(file)], {**env, **_variables(mode)}, limit)
        if file.exists():
            return msgspec.json.decode(file.read_bytes(), type=Timed)
    words = " | ".join(ended.lines[-3:])
    if ended.code is None:
        return Timed(mode=mode, error=f"it was not done after {limit:.0f} s", kind="hung")
    return Timed(mode=mode, error=f"its process ended with {ended.code}: {words}", kind="died")


def climbed(
    target: Target,
    budget: float,
    env: Mapping[str, str],
    then: Callable[[Path], Timed] | None = None,
    limit: float = 0.0,
) -> Climb:
    """One climb in a process of its own. then: is given the recipe while its folder exists; limit: seconds after which a climb that
    goes on is killed."""
    limit = limit or 1.5 * budget + 300
    with tempfile.TemporaryDirectory(prefix="climb-", ignore_cleanup_errors=True) as folder:
        out = Path(folder) / "run"
        words = [*target.words(), "--budget", str(budget), "--out", str(out), "--numerics", target.numerics]
        ended = _finished([sys.executable, "-c", RUNG, "climb", *words], env, limit)
        result = _read(out / "result.json")
        attempts = [_attempt(_read(path)) for path in sorted((out / "attempts").glob("*.json"))]
        workers = len(list((out / "workers").glob("*.log")))
        recipe = out / "recipe.toml"
        applied = then(recipe) if then and recipe.exists() else None
    log = [line for line in ended.lines if " WORKER " not in line]
    return Climb(
        budget_s=budget, wall_s=ended.seconds, exit=ended.code, why=_why(result, log, ended.code), crash=_crash(log, ended.code),
        result={k: v for k, v in result.items() if k not in ("restarts", "breakdown", "predictions")}, attempts=attempts,
        workers=workers, applied=applied, log=log,
        workers_log=[line.replace("WORKER ", "") for line in ended.lines if " WORKER " in line],
    )  # fmt: skip


def _why(result: Mapping[str, Any], log: Sequence[str], code: int | None) -> str:
    """The reason why there is no recipe, in a sentence; empty where there is one."""
    if result.get("kept"):
        return ""
    if code is None:
        return "it was killed, because it went on far beyond its budget"
    if taken := result.get("taken_back"):
        return str(taken[-1]["why"])
    if stopped := (result.get("stopped") or {}).get("why"):
        return str(stopped)
    said = [line.partition(" rung: ")[2] for line in log if " rung: " in line]
    return said[-1] if said else "nothing was kept"


def _crash(log: Sequence[str], code: int | None) -> str:
    """0 and 1 are answers, 2 to 4 a sentence about the workload, 130 an interruption."""
    return "" if code in (0, 1, 2, 3, 4, 130) else "\n".join(log[-CUT:])


def _read(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    return {}


def _attempt(record: Mapping[str, Any]) -> Attempt:
    checked = record.get("verification") or {}
    told, seen = record.get("prediction") or {}, (record.get("comparison") or {}).get("speedup") or {}
    known = told.get("low") is not None and told.get("high") is not None
    return Attempt(
        rung=record.get("rung", ""), verdict=record.get("verdict", ""), why=record.get("why", ""), members=record.get("members") or [],
        stack=record.get("stack") or [], refused=checked.get("passed") is False, ran=bool(record.get("log")), worst=checked.get("worst"),
        seconds=record.get("seconds"), prepared_seconds=record.get("prepared_seconds"), verified_seconds=record.get("verified_seconds"),
        predicted=[told["low"], told["high"]] if known else [], measured=seen.get("value"), cut=bool(record.get("cut")),
    )  # fmt: skip


def _variables(mode: str) -> dict[str, str]:
    """Those that a recipe's process has to be started with."""
    if not mode.startswith(RECIPE):
        return {}
    from rung.recipes.recipe import Recipe

    return dict(Recipe.read(Path(mode.removeprefix(RECIPE))).variables)


class Stopped(Exception):
    """Raised where a process was to be waited for, after `stop`."""


_running: set[int] = set()  # groups of processes
_stopping = threading.Event()


def stop() -> None:
    """Ends every process that this one has started and waits for; those that wait, in other threads, raise Stopped."""
    _stopping.set()
    for group in list(_running):
        _end(group, signal.SIGTERM)


def _end(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


@dataclass(frozen=True)
class _Ended:
    """lines: of stderr, with the seconds since the start before each; code: None where it had to be killed."""

    code: int | None
    seconds: float
    lines: list[str]


def _finished(command: Sequence[str], env: Mapping[str, str], limit: float) -> _Ended:
    """Runs a command to its end. It and all that it started are ended with this process, and after `limit` seconds."""
    began = time.time()
    done = subprocess.Popen(
        command, env=dict(env), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True
    )  # fmt: skip
    lines: list[str] = []

    def read() -> None:
        assert done.stderr is not None
        for line in done.stderr:
            lines.append(f"{time.time() - began:6.1f} {line.rstrip()}")

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    _running.add(done.pid)
    code: int | None = None
    try:
        code = done.wait(limit)
    except subprocess.TimeoutExpired:
        pass
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):  # its workers end with it, or after it
            _end(done.pid, number)
            if code is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    done.wait(10)
        _running.discard(done.pid)
    reader.join(5)
    if _stopping.is_set():
        raise Stopped
    return _Ended(code, time.time() - began, lines)


# ---- in the fresh process --------------------------------------------------------------------------------


class _Turn:
    """Of processes on one GPU: all get ready at the same time, and none is timed before all are ready or beside another. Without a file
    there is nobody to wait for. The kernel gives a lock back when its process ends, however it ends."""

    def __init__(self, path: str | None) -> None:
        self.file = open(path, "ab") if path else None  # noqa: SIM115 - until the process ends
        self._lock(fcntl.LOCK_SH)

    def take(self) -> None:
        self._lock(fcntl.LOCK_UN)
        self._lock(fcntl.LOCK_EX)

    def _lock(self, kind: int) -> None:
        if self.file:
            fcntl.flock(self.file, kind)


ALONE = _Turn(None)


def here(target: Target, mode: str, turn: _Turn = ALONE) -> Timed:
    """In this process, which does nothing else."""
    began = psutil.Process().create_time()
    import torch

    from rung.hardware import pick
    from rung.hardware.device import peak_memory, reset_peak_memory, synchronize, to_device
    from rung.measure.stats import median_interval
    from rung.workload import load, seeded_model

    device = pick()
    w = load(target.name, target.options)
    if target.numerics == "tf32":
        torch.set_float32_matmul_precision("high")
    if mode.startswith(RECIPE):
        import rung

        applied = rung.apply(w, mode.removeprefix(RECIPE))
        model, step = applied.model, applied.step
    else:
        model = seeded_model(w).to(device.torch_name)
        step = _step(w, model, mode, target.numerics, device)
    batches = [to_device(w.inputs(k), device) for k in range(1, 5)]
    reset_peak_memory(device)

    def one(k: int) -> None:
        step(batches[k % 4])
        synchronize(device)

    for k in range(3):
        one(k)
    ready = time.time() - began
    turn.take()
    for k in range(WARM):
        one(k)
    samples: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(samples) < STEPS and (len(samples) < FEWEST or time.perf_counter() < end):
        start = time.perf_counter()
        one(len(samples))
        samples.append(1e3 * (time.perf_counter() - start))
    found = median_interval(samples)
    return Timed(
        mode=mode.partition(":")[0], ready_s=ready, step_ms=found.value, low_ms=found.low, high_ms=found.high,
        peak_bytes=next(iter(peak_memory(device).values())), parameters=sum(p.numel() for p in model.parameters()), device=device.name,
        torch=str(torch.__version__),
    )  # fmt: skip


def _step(w: Any, model: Any, mode: str, numerics: str, device: Any) -> Callable[[Any], None]:
    import torch

    from rung.hardware.device import autocast

    training = w.mode == "train"
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    lower = numerics == "bf16" and (first is None or first.dtype == torch.float32)
    under = w.amp or (torch.bfloat16 if lower else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.is_gpu) if training else None

    def forward(batch: Any) -> Any:
        with autocast(device, under):
            output = w.forward(model, batch)
            return w.loss(output, batch) if training else output

    run = forward if mode == EAGER else torch.compile(forward, mode=mode)

    def step(batch: Any) -> None:
        if optimizer is None:
            with torch.no_grad():
                run(batch)
            return
        optimizer.zero_grad()
        run(batch).backward()
        optimizer.step()

    return step


def kind_of(error: BaseException) -> str:
    """Of a failure in this process, as `Timed` has it."""
    import torch

    chain = [error, error.__cause__]
    if any(isinstance(e, (ImportError, AttributeError)) for e in chain):
        return "missing"
    if any(isinstance(e, (torch.OutOfMemoryError, MemoryError)) for e in chain):
        return "out of memory"
    return "raised"


def main() -> None:
    parser = argparse.ArgumentParser(description="One process of `timed`.")
    parser.add_argument("target", type=json.loads)
    parser.add_argument("mode")
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    turn = _Turn(os.environ.get(TURN))  # before the slow imports: none is ready by then
    if cores := os.environ.get(CORES):
        os.sched_setaffinity(0, map(int, cores.split(",")))
    try:
        found = here(Target(**given.target), given.mode, turn)
    except Exception as error:
        from rung.errors import first_line, where

        said = f"{type(error).__name__}: {first_line(error)}{where(error)}"
        found = Timed(mode=given.mode.partition(":")[0], error=said, kind=kind_of(error))
    given.file.write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
