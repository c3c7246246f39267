"""The whole climb, from the survey to the recipe, in one run directory."""

from __future__ import annotations

import shlex
import stat
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from rung.errors import InputError, RungError, UsageError
from rung.hardware.limits import usable_cores
from rung.ladder.climb import other_shapes
from rung.ladder.climb.answer import restore_answer, write_result
from rung.ladder.climb.attempt import attempt, new_record, unfinished_rung
from rung.ladder.climb.begin import begin, finish_survey, warn_of_another_machine
from rung.ladder.climb.confirm import confirm
from rung.ladder.climb.deferred_modes import give_up_deferred_modes, time_deferred_modes
from rung.ladder.climb.mode_preparation import start_modes
from rung.ladder.climb.modes import NAME as PLAIN
from rung.ladder.climb.plain import attempt_plain
from rung.ladder.climb.prefetch import prefetched_rung
from rung.ladder.climb.schedule import gain_per_second, next_bundle, next_rung, reserve_for_rungs, unreported
from rung.ladder.climb.state import OutOfTime, Request, Say, State
from rung.ladder.climb.verdict import restore_best
from rung.records.climb import DryRun, Stopped
from rung.records.progress import Inapplicable, Planned, Warned
from rung.rungs import LADDER, Rung, rungs_named
from rung.runs import Run
from rung.text import to_paste
from rung.timing.compile_cache import compiled_code
from rung.timing.tasks import Pool
from rung.timing.workers import fork_server
from rung.workload.model_cache import forget_saved

GPUS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # of NVIDIA's driver, of AMD's, and of Windows' for its Linux


class Climb:
    """One climb in one run directory. `say` is called with every event, and may print it."""

    def __init__(self, run: Run, request: Request, say: Say) -> None:
        self.run, self.request, self.say = run, request, say
        self.state = State(run, request, say)

    def climb(self, *, dry: bool = False) -> dict[str, Any]:
        """Climbs, starting from what the directory already holds. Returns the run's data."""
        self.run.lock()
        try:
            try:
                self._climb(dry)
            except KeyboardInterrupt:
                self.state.status("interrupted", "stopped by Ctrl-C")
                raise
            except RungError as error:
                self.state.status("interrupted", str(error))
                raise
        finally:
            self.run.unlock()
        return self.run.data()

    def _climb(self, dry: bool) -> None:
        state, request = self.state, self.request
        rungs = rungs_named(request.rungs) if request.rungs is not None else list(LADDER)
        cores = usable_cores()
        with ExitStack() as stack:
            compiled = stack.enter_context(compiled_code())
            state.setup = replace(state.setup, variables=compiled)
            most = 1 if request.over_ranks else request.jobs or max(2, cores // 2)
            stack.callback(forget_saved, state.model_file)  # once all workers have ended
            forks = stack.enter_context(fork_server(state.setup)) if _on_a_cpu(request) else None
            state.pool = stack.enter_context(Pool(state.setup, most, forks=forks))
            try:
                stop = self._run(dry, rungs)
            except OutOfTime:
                if not self.run.has("baseline.json"):
                    raise UsageError(
                        f"the budget of {request.budget:.0f} s ended before {request.target} was loaded and timed; give a larger --budget."
                    ) from None
                why = f"the budget of {request.budget:.0f} s ended"
                why += "" if state.answer else " before there was a recipe"
                stop = Stopped(rule="budget", why=why, left={})
        if stop:
            self._finish(stop)

    def _run(self, dry: bool, rungs: Sequence[Rung]) -> Stopped | None:
        """Measures the baseline, races the plain modes and tries rungs. Returns why it stopped; None after a dry run."""
        state = self.state
        resumed, races = bool(state.attempts), self._races_plain_modes(dry)
        if races and not resumed:
            state.on_ready = lambda warm: start_modes(state, warm)
        begin(state, rungs)
        restore_answer(state)
        restore_best(state)
        if races:
            attempt_plain(state)
        finish_survey(state)
        if dry:
            self._write_plan(rungs)
            return None
        if resumed:
            self._confirm_earlier_answer(rungs)
        stop = self._try_rungs(rungs)
        if stop.rule != "budget" or self.request.rungs is None:  # a named one is tried again by --resume
            self._record_inapplicable(rungs)
        time_deferred_modes(state, wait=True)
        if state.left() > 0 or not resumed:
            confirm(state)
        warn_of_another_machine(state)
        return stop

    def _races_plain_modes(self, dry: bool) -> bool:
        raced = any(a.rung == PLAIN and not a.cut for a in self.state.attempts)
        # Over ranks, modes would compile beside those that are timed.
        return self.request.rungs is None and not self.request.over_ranks and not dry and not raced

    def _confirm_earlier_answer(self, rungs: Sequence[Rung]) -> None:
        """Raises the answer of an earlier sitting to a higher status before more is tried."""
        state = self.state
        if self.request.over_ranks and state.resume_worker:
            state.wait(state.resume_worker)
            warn_of_another_machine(state)  # raises where there are not as many ranks as before
        with state.reserving(reserve_for_rungs(state, rungs)):
            confirm(state)

    def _try_rungs(self, rungs: Sequence[Rung]) -> Stopped:
        """Tries one rung after the other until the schedule stops."""
        state = self.state
        warn_of_another_machine(state)
        other_shapes.advance(state)
        while not isinstance(
            following := unfinished_rung(state) or prefetched_rung(state) or next_rung(state, rungs), Stopped
        ):
            attempt(state, following)
            time_deferred_modes(state)
            other_shapes.advance(state)
            warn_of_another_machine(state)
        return following

    def _record_inapplicable(self, rungs: Sequence[Rung]) -> None:
        """Records why the rungs that were not tried do not apply."""
        for rung in unreported(self.state, rungs):
            record = new_record(self.state, rung)
            record.seconds = 0.0
            self.state.add(record)

    def _finish(self, stop: Stopped) -> None:
        state = self.state
        give_up_deferred_modes(state)
        write_result(state, stop)
        manifest = self.run.manifest()
        manifest.stopped = stop
        self.run.write("manifest.json", manifest)
        state.status("complete", stop.why if stop.rule == "budget" else _unconfirmed(state))

    def _write_plan(self, rungs: Sequence[Rung]) -> None:
        """Writes and prints the rungs in the order in which a climb would try them. The first one comes first, then the others by their gain
        per second. Rungs that do not apply come last. A bundle is one entry."""
        state = self.state
        first = next_rung(state, rungs)
        others = [r for r in rungs if r is not first]
        bundle = None if isinstance(first, Stopped) else first if first.members else next_bundle(state, others)
        members, bundles = (bundle.members, [bundle]) if bundle else ((), [])
        plan = [(new_record(state, r, planned=True), r) for r in [*bundles, *(r for r in rungs if r not in members)]]
        if self.request.rungs is None:
            plan.sort(key=lambda p: -gain_per_second(state, p[1]) if not p[0].verdict else 1.0)
            plan.sort(key=lambda p: p[1] is not first)
        self.say(Inapplicable([record for record, _ in plan if record.verdict]))
        if isinstance(first, Stopped):
            self.say(Warned(f"a climb would try no rung: {first.why}"))
        for record, _ in plan:  # printed last, so that it is read first
            if not record.verdict:
                self.say(Planned(record))
        self.run.write("plan.json", DryRun(rungs=[record for record, _ in plan]))
        state.status("planned", "a dry run measures the baseline only")


def start(request: Request, root: Path, out: Path | None, say: Say) -> Climb:
    """A new climb in a new run directory."""
    name = request.target.rpartition("/")[2].removesuffix(".py").replace(".py:", "-").replace(":", "-")
    return Climb(Run.create(root, name, out), request, say)


def resume(directory: Path, say: Say, budget: float | None = None, launcher: str = "") -> Climb:
    """Resumes the climb of a run directory. budget: seconds from now; None takes the first one again. launcher: the command that starts its ranks,
    where a command did before. It must be given again, because no file may decide which command runs."""
    run = Run.open_(directory)
    if odd := next((path for path in directory.rglob("*") if not _is_ordinary(path)), None):
        kind = "link" if odd.is_symlink() else "pipe or a device"
        raise UsageError(
            f"{odd} is a {kind}, and a climb would write where it leads; copy what it stands for into its place."
        )
    manifest = run.record().manifest  # all of it is read, so that a damaged file is found before anything is measured
    if manifest.status == "complete" and not manifest.why:
        raise UsageError(f"{directory} is complete; `rung report {directory}` shows it.")
    request = _request(manifest.request, directory)
    if launcher and not request.over_ranks:
        raise UsageError(f"{directory} is a climb of one process: leave --launcher out, or begin a new climb.")
    if request.launcher and not launcher:
        again = to_paste(request.slurm) or f"--launcher {shlex.quote(request.launcher)}"
        raise UsageError(
            f"{directory} is a climb of ranks that a command started, and no file decides what is run: give it again, as {again}."
        )
    if launcher:
        request = replace(request, ranks=0, launcher=launcher)
    return Climb(run, request if budget is None else replace(request, budget=budget), say)


def _on_a_cpu(request: Request) -> bool:
    """Whether there is no GPU to use, as far as can be told without torch. Workers are not forked beside a GPU."""
    return sys.platform == "linux" and (request.device == "cpu" or not any(Path(name).exists() for name in GPUS))


def _unconfirmed(state: State) -> str:
    """What the recipe lacks after everything was tried, as a clause; empty where it lacks nothing, or there is no recipe."""
    answer = state.answer
    if answer is None or answer.status == "confirmed":
        return ""
    if any(shape.answer == "unknown" for shape in answer.shapes):
        return "the recipe is not confirmed on all input shapes"
    # Nothing is kept that is not, whatever its gain.
    verified = answer.status == "verified" or list(answer.kept) == state.kept
    return f"the recipe is not {'confirmed by fresh restarts' if verified else 'verified'}"


def _request(stored: dict[str, Any], directory: Path) -> Request:
    """The request of an earlier sitting. Raises InputError where it is of another version, or damaged."""
    try:
        request = msgspec.convert(stored, Request)
        if stored.keys() - Request.__dataclass_fields__.keys() or (request.jobs is not None and request.jobs < 1):
            raise ValueError
    except ValueError as error:  # msgspec.ValidationError is one
        raise InputError(f"{directory} is damaged: its request is not one of this version; climb again.") from error
    return request


def _is_ordinary(path: Path) -> bool:
    mode = path.lstat().st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)
