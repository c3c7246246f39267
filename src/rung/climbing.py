"""`rung.climb`: the climb from Python, of a target or of a live object."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung.cli.common import ROOT, say
from rung.cli.live import line_width, live
from rung.errors import UsageError, need_torch
from rung.launch import not_in_a_worker
from rung.renamed import current_name
from rung.results import Climbed

if TYPE_CHECKING:
    import torch

    from rung.ladder.climb import Climb
    from rung.plan import Numerics
    from rung.records.progress import Event
    from rung.runs import Run
    from rung.workload.base import Batch, Workload


def climb(
    what: str | Workload | torch.nn.Module | None = None,
    out: str | Path | None = None,
    *,
    inputs: Batch | Callable[[int], Batch] | None = None,
    loss: Callable[[Any, Batch], torch.Tensor] | None = None,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    max_grad_norm: float | None = None,
    forward: Callable[[Any, Batch], Any] | None = None,
    name: str = "",
    resume: str | Path | None = None,
    options: Mapping[str, Any] | None = None,
    numerics: Numerics | None = None,
    rungs: Sequence[str] | None = None,
    budget: float | None = None,
    device: str | None = None,
    jobs: int | None = None,
    deadline: float = 900.0,
    slower_at_most: float = 0.01,
    progress: bool = True,
) -> Climbed:
    """Climbs a model, a workload or a target: looks for what makes it faster, and keeps what is faster and computes the same::

        result = rung.climb(model, inputs=batch)            # in a script or a notebook
        fast = result.apply()                               # the model under the recipe that was found

    A climb runs everything in fresh processes. A live object is written for them into the run directory (`DIR/workload`: its weights,
    its batch, and its functions and classes, by value where they come from a script or a notebook), so `resume` works from there,
    too. What other modules define is imported by its name. Your own object stays as it was.

    In a task of a SLURM array, `out` is `out/taskN`. When SLURM starts your job anew, a call with `out` goes on with the climb that it began
    there; one that had ended is returned as it is.

    Args:
        what: a `torch.nn.Module`; a `rung.Workload`, for what the arguments below cannot say; or a target as on the command line.
        out: the run directory, empty or missing; by default a new one below `.rung`.
        inputs: of a module: a function that makes the batch of a seed, or one batch (a tensor, or a dict, tuple or list of tensors).
            A climb needs different batches. Out of one, it makes others by shuffling: each column of a tensor is rotated along the
            first dimension by a number of rows of its own; of a single row, or where rows of integers have different ranges, the last
            dimension is permuted. So all values stay in the range of their column, or of their row. Masks (at most two different values),
            positions or offsets (ascending along the last dimension) and descending integers stay as they are. Where the values of a tensor depend on each other otherwise, give a function.
        loss: of a module that is trained: `(output, batch) -> scalar`.
        optimizer: of a module that is trained: `(parameters) -> torch.optim.Optimizer`. Without loss and optimizer, inference is
            climbed.
        max_grad_norm: of a module that is trained: gradients are clipped to this norm before the optimizer steps.
        forward: `(model, batch) -> output`; left out: `model(**batch)`, `model(*batch)` or `model(batch)`.
        name: of a module, in reports; by default that of its class.
        resume: the run directory of a climb that was interrupted, or whose budget ended: goes on with it, in the place of `what`.
        options: of a target.
        numerics: exact, tf32, bf16 or fp8: what may change. By default tf32 on a GPU, exact on a CPU.
        rungs: tries only these, in this order.
        budget: seconds after which it ends with the best recipe so far.
        device: cpu, cuda or cuda:N; by default the one on which a module lies, and for all else the best there is.
        jobs: how many processes may compile side by side. By default half as many as there are cores; on a CPU one, and two from 8
            cores on.
        deadline: seconds after which a candidate that still prepares counts as hung.
        slower_at_most: the share by which a rung that is there to save memory or compiling may make a step slower.
        progress: shows what is being done: in a notebook below the cell, else on stderr.

    Raises:
        UsageError: where it was asked for wrongly, or an object cannot be written for other processes.
        WorkloadError: where the workload fails, or cannot be verified.
        InputError: where the run directory cannot be read or written.
    """
    need_torch()
    not_in_a_worker("rung.climb")
    from rung.ladder.climb import Request
    from rung.ladder.climb import resume as go_on
    from rung.launch.requeued import earlier_climb, in_job, mark
    from rung.launch.slurm_task import of_task, run_of_task
    from rung.report.progress import NEW_ANSWER, keep_page, progress_lines

    of_a_module = {
        "inputs": inputs, "loss": loss, "optimizer": optimizer, "max_grad_norm": max_grad_norm, "forward": forward, "name": name or None,
    }  # fmt: skip
    how = {key: value for key, value in of_a_module.items() if value is not None}

    def tell(line: str) -> None:
        if progress:
            say(line)

    def told(event: Event) -> None:
        for line in progress_lines(event, line_width()) if progress else ():
            say(line)
        if isinstance(event, NEW_ANSWER):
            keep_page(climbing.run)

    if resume is not None:
        begun_with = {
            "what": what,
            "out": out,
            "options": options,
            "numerics": numerics,
            "rungs": rungs,
            "device": device,
            **how,
        }
        if again := next((key for key, value in begun_with.items() if value is not None), None):
            raise UsageError(
                f"rung.climb(resume=...) continues with the options that the climb was started with: leave {again} out."
            )
        climbing = go_on(run_of_task(Path(resume)), told, budget)
        return Climbed(_to_its_end(climbing, progress))
    own = of_task(Path(out)) if out else None
    here = in_job(shlex.join(sys.argv))
    to_apply = {key: how[key] for key in ("loss", "optimizer", "max_grad_norm", "forward") if key in how}
    # Without a folder nothing tells one climb of a program from another.
    if own and (begun := earlier_climb(ROOT, own, here, tell)):
        live_object = None if isinstance(what, str) else what
        if begun.ended:
            return Climbed(begun.data(), live_object, **to_apply)
        climbing = go_on(begun.directory, told, budget)
        return Climbed(_to_its_end(climbing, progress), live_object, **to_apply)
    typed = {key.replace("_", "-"): str(value) for key, value in (options or {}).items()}
    only = tuple(map(current_name, rungs)) if rungs is not None else None
    request = Request("", typed, numerics, only, device, budget, deadline, slower_at_most, jobs=jobs)
    climbing, climbed = _begun(what, request, own, told, how, lambda run: mark(run.directory, here))
    try:
        data = _to_its_end(climbing, progress)
    except BaseException:
        climbing.run.drop_if_empty()
        raise
    return Climbed(data, climbed, **to_apply)


def _begun(
    what: Any, request: Any, out: Path | None, told: Any, how: dict[str, Any], mark: Callable[[Run], None]
) -> tuple[Climb, Any]:
    """A climb in a new run directory, and the live object that it is of, if it is of one. mark: is given the directory before anything else
    is written there."""
    from rung.ladder.climb import Climb, start
    from rung.runs import Run
    from rung.workload.base import Workload

    torch = sys.modules.get("torch")  # who made a model has imported it
    if torch is not None and isinstance(what, torch.nn.Module):
        from rung.workload.live import workload_of

        if "inputs" not in how:
            raise UsageError(
                "rung.climb needs inputs= for a module: one batch, or a function that makes the batch of a seed."
            )
        workload = workload_of(what, **how)
        if request.device is None and (weights := next(what.parameters(), None)) is not None:
            request = replace(request, device=str(weights.device))
    elif how and isinstance(what, (Workload, str)):
        raise UsageError(f"{next(iter(how))}= belongs to a torch.nn.Module; a {type(what).__name__} says that itself.")
    elif isinstance(what, Workload):
        workload = what
    elif isinstance(what, str):
        climbing = start(replace(request, target=what), ROOT, out, told)
        mark(climbing.run)
        return climbing, None
    else:
        raise UsageError(
            f"rung.climb got {'nothing' if what is None else f'a {type(what).__name__}'}: give a torch.nn.Module, a rung.Workload, or the "
            'name of the function that makes one, as in "model.py:make".'
        )
    from rung.workload.live import write

    if request.options:
        raise UsageError("options= belong to a target that is named; an object is as it is.")
    run = Run.create(ROOT, re.sub(r"[^\w.-]+", "-", workload.name), out)
    try:
        mark(run)
        target = write(workload, run.directory / "workload")
    except BaseException:
        run.drop_if_empty()
        raise
    return Climb(run, replace(request, target=target), told), what


def _to_its_end(climbing: Climb, progress: bool) -> dict[str, Any]:
    """Climbs, and writes the page; returns the run's data."""
    from rung.report.progress import now_line, write_page

    with live(climbing.request.budget, lambda: now_line(climbing.state.now())) if progress else nullcontext():
        try:
            data = climbing.climb()
        except KeyboardInterrupt:
            if progress and (climbing.run.directory / "manifest.json").is_file():
                say(f"stopped; continue with: rung.climb(resume={str(climbing.run.directory)!r})")
            raise
        write_page(climbing.run, climbing.run.record())
    return data
