"""The beginning of a climb: what the workload is, whether it can be verified, and how long it takes as it is.

One worker runs the untouched workload, which is timed as soon as it is warm. Another one surveys it. With many cores, both start at once. The
plain modes of torch.compile need only the first; the graph rewrites need the survey.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence

import msgspec

from rung.errors import RungError, UsageError, WorkloadError
from rung.hardware.aiter import list_untuned
from rung.hardware.neighbours import shown_alone
from rung.hardware.state import crowded
from rung.ladder.answers import Audited, Loaded, Surveyed, Untouched
from rung.ladder.climb.checks import peak_of
from rung.ladder.climb.state import CONTEXT_BYTES, USABLE, WARM_SECONDS, OutOfTime, State
from rung.ladder.roofline import roofline_bound
from rung.launch import WorkerFailed, quiet
from rung.launch.process import Caller
from rung.measure import median_interval
from rung.plan import CONTRACTS, Numerics, contract
from rung.quantities import duration
from rung.records import progress as progressing
from rung.records.analyze import Breakdown
from rung.records.climb import Baseline, Floor, Manifest
from rung.records.measured import Environment, Interval
from rung.records.progress import Begins, Measured, TimesBaseline, Warned
from rung.records.record import SCHEMA, record_of, take
from rung.rungs import Rung
from rung.timing.tasks import Call, Place, Task
from rung.timing.timed import Opened, TimedBlock
from rung.timing.worker_group import PROFILED_STEPS
from rung.workload.model_cache import forget_saved

progress = logging.getLogger(__name__)

AUTO = "auto"  # of the request's devices

# Where there are many cores, workers are started ahead of their use: so many at first, and so many later.
FIRST_SPARES, SPARES = 3, 6
GRACE = 8.0  # seconds after the budget within which the untouched workload is still measured: without it there is nothing to show
TIMED_SECONDS = 2.0  # of the untouched workload by itself; comparisons time it again beside others
PROFILE_STEPS = 2 + 2 * PROFILED_STEPS  # as many steps a profile takes at the most: recording makes one slower
# Of the GPU's memory: from there on a process of the workload has the plain modes wait for the survey, since they have no room beside it.
FILLS = 0.3


def begin(state: State, rungs: Sequence[Rung]) -> None:
    """Starts the survey, and measures the untouched workload, unless an earlier sitting did. Raises OutOfTime, and what keeps the
    workload from being climbed at all."""
    manifest = state.run.manifest() if state.run.has("manifest.json") else None
    known = state.run.baseline()
    request = state.request
    state.say(Begins(request.target))
    forget_saved(state.model_file)  # one that was there is a stranger's
    # Until the first worker has written the file, the others make the model themselves. Over ranks none is written: on another host the file
    # of this name may be a stranger's.
    state.saved_model = "" if request.over_ranks else str(state.model_file)
    if manifest:
        state.known, state.numerics = manifest.facts, _contract(manifest.numerics)
        state.status("running", "")
    unseen = not (manifest and manifest.facts.surveyed)
    if unseen and state.many_cores:
        _survey(state)
    if known is None or not manifest:
        known = _measure(state, rungs)
        state.run.write("baseline.json", known)
        state.measured = known
        state.resume_worker = state.baseline_worker if manifest else None
    else:
        state.measured = known
        _resume(state)
    if unseen:
        _survey(state)
        if state.baseline_worker and _fills(state, peak_of(state)):
            _survey_first(state, state.baseline_worker)
    state.say(Measured(state.baseline))
    if state.baseline_worker is None and state.survey_task and state.survey_task.done:
        finish_survey(state)  # it ran alone, and holds memory that the untouched workload needs


def _resume(state: State) -> None:
    """Resumes with what an earlier sitting measured. A first worker reports what this machine is, and saves the model."""
    _set_limits(state, max(state.baseline.memory.values()))
    if state.many_cores:
        state.pool.keep_spares(state.side([]), SPARES)
    calls: list[Call] = [_facts_call(state)] if state.facts.gpu else []
    state.resume_worker = state.pool.add(Task("resume", state.side([]), calls, state.baseline_bytes()))
    state.resume_worker.ends_when_done = True
    if state.baseline.breakdown:
        state.set_profile(state.read_profile("baseline", state.baseline.time.value))


def _facts_call(state: State) -> Call:
    return "facts", {"save": state.saved_model, "neighbours": state.request.devices == AUTO}


def use_other_gpus(state: State, found: Loaded) -> None:
    """Lets further restarts, and what is not timed, run on the other GPUs of the request. found: what the worker of the untouched workload
    reported."""
    asked = state.request.devices
    numbers = found.idle_gpus if asked == AUTO else [int(number) for number in asked.split(",")[1:]] if asked else []
    if not (numbers and found.facts.gpu):
        if asked == AUTO:
            state.say(Warned("--devices auto: no other GPU of this kind is idle, so all runs on one device"))
        return
    timed = found.gpus[int(asked.split(",")[0])] if asked != AUTO else ""
    for n in numbers if asked != AUTO else ():
        if n >= len(found.gpus) or found.gpus[n] != timed:
            what = (
                f"a {found.gpus[n]}, and the one that is timed a {timed}"
                if n < len(found.gpus)
                else f"not there: there are {len(found.gpus)}"
            )
            raise UsageError(f"--devices {asked}: GPU {n} is {what}; name GPUs of one kind, as torch counts them.")
    vendor = str(found.facts.vendor)
    state.pool.elsewhere = tuple(Place("cuda", shown_alone(n, vendor, os.environ), f"GPU {n}") for n in numbers)
    progress.info("verifying and timing on GPU %s, too", ", ".join(map(str, numbers)))


def warn_of_another_machine(state: State) -> None:
    """Warns once where the earlier measurements ran on another machine."""
    if state.resume_worker and "facts" in state.resume_worker.answers and not state.pool.elsewhere:
        use_other_gpus(state, state.resume_worker.answer("facts", Loaded))
    if state.resume_worker is None or "open" not in state.resume_worker.answers:
        return
    if (state.request.devices or state.request.over_ranks) and not state.resume_worker.done:
        return  # it has not reported its GPUs yet
    worker = state.resume_worker.worker
    now, state.resume_worker = state.resume_worker.answer("open", Opened).environment, None
    if worker and worker.hosts and len(worker.hosts) != state.facts.ranks:
        raise UsageError(
            f"this climb was begun over {state.facts.ranks} ranks, and now there are {len(worker.hosts)}: start as many again, or begin a new climb."
        )
    before = state.run.manifest().environment
    was, here = (f"{e.device.name} with torch {e.torch}" for e in (before, now))
    if was != here:
        text = f"begun on {was}, now on {here}: this run mixes the two. Start a new climb to avoid that."
        state.say(Warned(text))


def _set_limits(state: State, peak: float) -> None:
    """Sets how many workers run side by side, and how much of the GPU's memory they share. peak: bytes of the untouched workload."""
    if state.facts.gpu:
        state.pool.memory = USABLE * state.gpu_bytes
        for task in (state.baseline_worker, state.survey_task):
            if task is not None:
                task.memory = peak + CONTEXT_BYTES
    elif state.request.jobs is None:
        state.pool.most = 2 if state.many_cores else 1  # a step on a CPU takes all cores by itself


def _fills(state: State, peak: float) -> bool:
    return bool(state.facts.gpu) and peak > FILLS * state.gpu_bytes


def _survey_first(state: State, untouched: Task) -> None:
    """Waits for the survey of a workload that takes much of the GPU's memory. It runs beside the untouched workload, or alone where memory is
    short. Then the modes may start."""
    survey = _survey(state)
    if not _wait_for_survey(state, survey):
        return
    if survey.error and survey.error.lacked_memory:
        untouched.end()
        state.baseline_worker = state.best_worker = state.survey_task = None
        _wait_for_survey(state, _survey(state))
    elif state.on_ready:
        state.on_ready(untouched.answer("warm", Untouched))


def _wait_for_survey(state: State, survey: Task) -> bool:
    """Waits until the survey is done or has failed; False where the time is over; whatever waits next notices it."""
    progress.info("looking at its graph")
    return state.pool.wait(lambda: survey.done, state.left)


def _survey(state: State) -> Task:
    """The survey. It is started unless it was before."""
    if state.survey_task is None:
        memory = state.baseline_bytes() if state.measured else 0.0  # not known before
        survey = Task(
            "survey", state.side([]), [("audit", {"random": not state.request.over_ranks}), ("survey", {})], memory
        )
        survey.single_process = True
        state.survey_task = state.pool.add(survey)
    return state.survey_task


def finish_survey(state: State, *, wait: bool = True) -> bool:
    """Applies the results of the survey. False where it is not done and `wait` is false. Raises why the workload is refused."""
    task = state.survey_task
    if task is None:
        return True
    if wait:
        progress.info("looking at its graph")
        state.wait(task, keep=-GRACE)
    if task.error:
        _refuse(state, task.error)
    if not task.done:
        return False
    found = task.answer("survey", Surveyed)
    state.survey_task, state.audited = None, True
    task.end()
    before, facts = state.facts, found.facts
    facts.ranks, facts.parallel = before.ranks, before.parallel  # one process was surveyed
    state.known = facts
    take(facts, task.answer("audit", Audited))
    if (
        found.workload.flops and facts.parallel == "tensor"
    ):  # it surveyed the whole model, of which each rank computes a part
        found.workload.flops /= facts.ranks
    facts.surveyed, facts.flops = True, found.workload.flops
    if facts.aiter and (command := list_untuned(facts.aiter, state.run.directory)):
        facts.aiter.command = command
    manifest = state.run.manifest()
    of_all = manifest.workload  # as many samples and tokens as all ranks have
    found.workload.samples, found.workload.tokens = of_all.samples, of_all.tokens
    manifest.workload, manifest.facts = found.workload, facts
    state.run.write("manifest.json", manifest)
    state.baseline.floor = _floor(state, state.baseline.time.value)
    state.baseline.without_gradient = state.facts.without_gradient
    state.run.write("baseline.json", state.baseline)
    state.say(progressing.Surveyed(facts))
    if why := state.facts.one_shape:
        state.say(Warned(f"the workload runs on one input shape only ({why}); so does the recipe."))
    if facts.draws is True:
        state.say(
            Warned("its forward draws random numbers: results are compared on equal ones, and distributions on others.")
        )
    if facts.aiter and facts.aiter.command:
        left = f"{len(facts.aiter.untuned or ())} shapes of linear layers are not in aiter's tables"
        state.say(Warned(f"{left}; to tune them: {facts.aiter.command}"))
    return True


def wait_for_audit(state: State) -> None:
    """Waits until the audit has shown that the workload can be verified. Applies its results: the shapes on which the workload runs, and Inductor's
    settings."""
    task = state.survey_task
    if task is None:  # an earlier sitting did it
        state.audited = True
        return
    if not state.pool.wait(lambda: task.done or "audit" in task.answers, state.left):
        raise OutOfTime
    if task.error and "audit" not in task.answers:
        _refuse(state, task.error)
    take(state.facts, task.answer("audit", Audited))
    state.audited = True


def _refuse(state: State, error: WorkerFailed) -> None:
    """Ends the climb with this error. Removes its files where nothing but the untouched workload was measured."""
    why: RungError = error
    if error.lacked_memory and state.measured and state.facts.gpu:
        takes, has = (count / 2**30 for count in (state.baseline_bytes(), state.gpu_bytes))
        why = WorkloadError(
            f"a climb runs several processes of a workload at the same time, and one of this workload takes {takes:.1f} GiB of the GPU's "
            f"{has:.1f} GiB: use a smaller batch."
        )
    if not state.attempts:
        _leave_nothing(state)
    raise why from (None if why is error else error)


def _leave_nothing(state: State) -> None:
    """Removes the files of a climb that cannot begin. `Run.drop_if_empty` removes the run directory later, which may have been announced."""
    if state.run.has("manifest.json"):
        state.say(Warned("the run directory is not kept, since this climb cannot go on"))
    for name in ("manifest.json", "recipe.toml", "result.json"):
        (state.run.directory / name).unlink(missing_ok=True)


def _measure(state: State, rungs: Sequence[Rung]) -> Baseline:
    limits = state.setup.limits
    calls: list[Call] = [_facts_call(state), ("warm", {"seconds": WARM_SECONDS})]
    task = Task("baseline", state.side([]), calls)
    task.reports_machine = True
    state.pool.add(task)

    def answered(method: str) -> None:
        if not state.pool.wait(lambda: task.done or method in task.answers, lambda: state.left() + GRACE):
            raise OutOfTime

    progress.info("loading %s", state.request.target)
    many = state.many_cores
    if many:
        state.pool.keep_spares(
            state.side([]), FIRST_SPARES
        )  # no more: what is needed first is to have the disk to itself
    answered("open")
    if many:  # where loading takes memory of the GPU, nobody has said yet that there is enough for several
        holds = "open" not in task.answers or task.answer("open", Opened).gpu_bytes
        state.pool.keep_spares(state.side([]), SPARES, load=not holds)
    answered("facts")
    if "facts" in task.answers and state.known is None:
        found, opened = task.answer("facts", Loaded), task.answer("open", Opened)
        _write_manifest(state, rungs, opened.environment, found)
        use_other_gpus(state, found)
        _refuse_ranks(state)
        if not state.facts.gpu:
            _set_limits(state, 0.0)
    if not task.error:
        state.say(TimesBaseline())
        answered("warm")
    if task.error and task.error.lacked_memory and state.survey_task:  # beside the survey: once more, alone
        state.survey_task.end()
        state.survey_task = None
        return _measure(state, rungs)
    if task.error:
        if task.error.kind != "refused":  # which says all that there is to say
            _survey(state)
        if state.survey_task:  # it says more of what is wrong with a workload
            state.wait(state.survey_task, keep=-GRACE)
            _refuse(state, state.survey_task.error or task.error)
        raise task.error
    warm, worker = task.answer("warm", Untouched), task.worker
    if warm.apart:
        _leave_nothing(state)
        raise WorkloadError(f"this job cannot be climbed, since it does not train one model: {warm.apart[0]}")
    assert worker is not None
    if not task.answer("facts", Loaded).saved:
        state.saved_model = ""
    state.baseline_worker = state.best_worker = task
    peak = float(max(warm.memory.values()))
    _set_limits(state, peak)
    if state.on_ready and not _fills(state, peak):
        state.on_ready(warm)
    with contextlib.ExitStack() as stack:
        stack.enter_context(quiet([worker]))
        progress.info("timing the untouched workload")
        step_seconds = max(worker.call("estimate", limits.block), 1) / 1e9
        wanted = max(5, min(50, TIMED_SECONDS / step_seconds))
        steps = int(
            max(1, min(wanted, (state.left() + GRACE) / step_seconds))
        )  # a slow step is not timed past the budget
        block = record_of(TimedBlock, worker.call("block", limits.prepare, count=steps))
        time_ = record_of(Interval, median_interval(block.samples))
        memory = worker.call("memory", limits.block)
        parts = None
        if many:
            stack.close()  # what others compile takes other cores, and kernels are timed by the GPU
        if state.left() + GRACE > PROFILE_STEPS * step_seconds:
            parts = _profile(state, worker, time_.value)
        else:
            about = duration(time_.value)  # as it is told next, and not what a few steps were taken to need
            state.say(
                Warned(
                    f"the baseline is not profiled: a step takes about {about}, and the budget leaves no time for it."
                )
            )
    return Baseline(
        time=time_,
        samples=list(block.samples),
        first_run_seconds=warm.first_run_seconds,
        loading_seconds=task.took["warm"] + state.pool.importing,
        opening_seconds=0.0 if many else task.took["open"],
        warm_up_runs=warm.runs,
        steady=warm.steady,
        memory=memory,
        breakdown=parts,
        without_gradient=[],
        trace="traces/baseline.json.gz",
    )


def _profile(state: State, worker: Caller, step_ns: float) -> Breakdown | None:
    """Where a step of the untouched workload, of this length, spends its time; None where the profile failed."""
    progress.info("recording a profile")
    try:
        worker.call("profile", state.setup.limits.prepare, path=str(state.trace("baseline")), steps=PROFILED_STEPS)
        profile = state.read_profile("baseline", step_ns)
        state.set_profile(profile)
        return profile.breakdown
    except RungError as error:
        state.say(Warned(f"no profile of baseline: {error}"))
        return None


def _write_manifest(state: State, rungs: Sequence[Rung], environment: Environment, found: Loaded) -> None:
    """Writes the manifest with what is known of the workload before the survey."""
    request = state.request
    state.numerics = _contract(request.numerics or ("tf32" if found.facts.gpu else "exact"))
    state.known = found.facts
    state.known.surveyed = False
    manifest = Manifest(
        schema=SCHEMA,
        status="running",
        why="",
        target=request.target,
        options=request.options,
        numerics=state.numerics,
        command=request.command,
        created=environment.time or "",
        request=msgspec.to_builtins(request),
        rungs=[r.name for r in rungs],
        workload=found.workload,
        environment=environment,
        facts=state.known,
    )
    state.run.write("manifest.json", manifest)
    state.say(progressing.Opened(str(state.run.directory), manifest))
    if said := crowded((environment.now or {}).get("load", ()), os.cpu_count() or 1):
        state.say(Warned(said))


def _refuse_ranks(state: State) -> None:
    """Raises WorkloadError for a job that is not to be climbed over ranks."""
    if not state.request.over_ranks:
        return
    why = ""
    if state.facts.mode == "infer":
        why = "in inference ranks exchange nothing, so a climb of one process finds what there is"
    elif state.facts.parallel == "own":
        why = "the model brings its own exchange (parallel='own'), so one process, which is what a candidate is verified against, cannot make it"
    elif state.facts.ranks == 1:
        why = "one rank is one process"
    if why:
        _leave_nothing(state)
        raise WorkloadError(f"{why}: leave {'--launcher' if state.request.launcher else '--nproc-per-node'} out.")


def _contract(numerics: str) -> Numerics:
    """Raises UsageError where it is none."""
    found = contract(numerics)
    if found is None:
        raise UsageError(f"--numerics is {numerics!r}; it must be one of {', '.join(CONTRACTS)}.")
    return found


def _floor(state: State, step_ns: float) -> Floor | None:
    found = roofline_bound(state.run.manifest().workload.flops, state.facts, state.numerics)
    if found:
        found.share = found.seconds * 1e9 / step_ns
    return found
