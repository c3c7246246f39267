"""The worker of one side: what it serves, which variables it starts with, and what it is asked to load."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from rung.ladder.plan import Plan
from rung.ladder.rungs import plan_of
from rung.ladder.rungs.environment import FILES
from rung.ladder.side import Setup, Side
from rung.launch import Worker

WORKLOAD, FUNCTION = "rung.ladder.candidate:Candidate", "rung.ladder.timing.function:Function"


def open_worker(stack: ExitStack, setup: Setup, side: Side, log: str) -> Worker:
    """A worker that loads one side's target under its recipe; it ends with the stack.

    It is started with the variables of the recipe's plan; those that the side itself names go before.
    """
    serves = FUNCTION if side.call else WORKLOAD
    planned = variables(plan_of(side.rungs), setup.files)
    worker = stack.enter_context(Worker(serves, setup.logs / f"{log}.log", {**planned, **side.env}, side.cwd))
    more = {} if side.call else {"shape": side.shape, "original": side.original, "made_for": side.made_for}
    more = {name: value for name, value in more.items() if value}  # another revision's worker may not know of them
    worker.send("open", target=side.target, options=side.options, rungs=list(side.rungs), device=setup.device, **more)
    return worker


def variables(plan: Plan, files: Path) -> dict[str, str]:
    """The variables of a plan, with the folder of the climb's own files filled in."""
    return {name: value.replace(FILES, str(files.resolve())) for name, value in plan.env}
