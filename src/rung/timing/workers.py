"""The worker of one side: what it serves, which variables it starts with, and what it is asked to load."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from rung.launch import Caller, ForkServer, Team, Worker, joining
from rung.plan import Plan
from rung.rungs import plan_of
from rung.rungs.environment import FILES
from rung.side import Setup, Side
from rung.timing.merge_answers import merge_answers

WORKLOAD, FUNCTION = "rung.ladder.candidate:Candidate", "rung.timing.function:Function"
# By workers of a workload, sooner or later.
IMPORTED = ("rung.ladder.candidate", "torch._dynamo", "torch._inductor.compile_fx")


def open_side(stack: ExitStack, setup: Setup, side: Side, log: str, *, briefly: bool = False) -> Caller:
    """A worker, or the ranks that the setup's launcher starts, that load one side's target under its recipe; they end with the stack.
    briefly: they do not say how the machine is set up."""
    if setup.launcher is None:
        return open_worker(stack, setup, side, log, briefly=briefly)
    log_file = setup.logs / f"{log}.log"
    within = joining(setup.until - time.monotonic())
    team = Team(_serves(side), log_file, setup.launcher, merge_answers, _env(setup, side), side.cwd, within)
    _open(stack.enter_context(team), setup, side, briefly)
    return team


def open_worker(
    stack: ExitStack,
    setup: Setup,
    side: Side,
    log: str,
    spare: Worker | None = None,
    forks: ForkServer | None = None,
    *,
    briefly: bool = False,
) -> Worker:
    """A worker that loads one side's target under its recipe; it ends with the stack.

    It is started with the variables of the recipe's plan; those that the side itself names go before. spare: a worker that was
    started before it was known what for (`spare_worker`); forks: has it forked, where it sets no variables; briefly: it does not say how
    the machine is set up.
    """
    log_file = setup.logs / f"{log}.log"
    worker = spare or stack.enter_context(Worker(_serves(side), log_file, _env(setup, side), side.cwd, forks))
    _open(worker, setup, side, briefly)
    return worker


def _serves(side: Side) -> str:
    return FUNCTION if side.call else WORKLOAD


def _env(setup: Setup, side: Side) -> dict[str, str]:
    return {**setup.variables, **planned_variables(side, setup.files), **side.env}


def _open(worker: Caller, setup: Setup, side: Side, briefly: bool) -> None:
    more = {} if side.call else {"shape": side.shape, "original": side.original, "made_for": side.made_for}
    if not side.call:
        more |= {
            "one_shape": side.one_shape,
            "saved_model": side.saved_model,
            "gpu_draws": side.gpu_draws,
            "briefly": briefly,
        }
    more = {name: value for name, value in more.items() if value}  # another revision's worker may not know of them
    worker.send("open", target=side.target, options=side.options, rungs=list(side.rungs), device=setup.device, **more)


def fork_server(setup: Setup) -> ForkServer:
    """What forks workers of workloads on a CPU."""
    return ForkServer(IMPORTED, setup.logs / "fork-server.log")


def spare_worker(stack: ExitStack, setup: Setup, side: Side, log: Path) -> Worker:
    """A worker that imports what any variant of this side's target needs, and waits to be told which one it is."""
    worker = stack.enter_context(Worker(WORKLOAD, log, setup.variables))
    worker.send("preload", target=side.target, device=setup.device)
    return worker


def load_ahead(worker: Caller, setup: Setup, side: Side) -> None:
    """Has a spare worker call the target's function, too, while it waits."""
    worker.send("load_ahead", target=side.target, options=side.options, device=setup.device)


def planned_variables(side: Side, files: Path) -> dict[str, str]:
    """The variables that a side's rungs set."""
    return variables(plan_of(side.rungs), files)


def variables(plan: Plan, files: Path) -> dict[str, str]:
    """The variables of a plan, with the folder of the climb's own files filled in."""
    return {name: value.replace(FILES, str(files.resolve())) for name, value in plan.env}
