"""Measurements of what has no verdict yet, in `begun.json`. A climb that was killed, or cut short, goes on from there.

Without it, a job that is preempted every minute would begin each attempt anew and never end one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct, field

from rung.files import read_text
from rung.ladder.answers import Verified
from rung.measure import CLIMB, Looks, Restart
from rung.records.climb import Mode
from rung.renamed import with_current_names
from rung.runs import Run
from rung.timing.ab_run import ABRun

if TYPE_CHECKING:
    from rung.ladder.climb.state import State

FILE = "begun.json"


class Unfinished(Struct, rename={"ab_run": "duel"}):  # the file keeps the name that earlier versions wrote
    """An attempt, a race of the plain modes or a confirmation that has no verdict yet.

    Args:
        name: of the attempt's files.
        stack: the rungs that are tried, or those of the fastest plain mode.
        against: the rungs of what they are compared with, joined.
        ab_run: what the restarts showed so far.
        rung: the rung that is tried.
        looks: at the restarts, as planned before the first of them.
        members: of a bundle.
        prepared_seconds: until the candidate was warm.
        modes: the plain modes, by name.
        verified: answers of the verification, by precision.
        verified_stack: the rungs that are verified, where members of a bundle did nothing; empty where that is `stack`.
        shapes: restarts on other input shapes, by the shape's number.
        failed: by the shape's number, the side that failed on it, and why.
    """

    name: str
    stack: list[str]
    against: str
    ab_run: ABRun = field(default_factory=ABRun)
    rung: str = ""
    looks: Looks = CLIMB
    members: list[str] = field(default_factory=list)
    prepared_seconds: float = 0.0
    modes: dict[str, Mode] = field(default_factory=dict)
    verified: dict[str, Verified] = field(default_factory=dict)
    verified_stack: list[str] = field(default_factory=list)
    shapes: dict[int, list[Restart]] = field(default_factory=dict)
    failed: dict[int, tuple[str, str]] = field(default_factory=dict)

    @property
    def checked(self) -> list[str]:
        """What is verified of it."""
        return self.verified_stack or self.stack


def read_unfinished(run: Run) -> dict[str, Unfinished]:
    """By kind: `plain`, `attempt` or `confirm`. Empty where nothing was, or the file is damaged: then it is measured again."""
    try:
        found = msgspec.json.decode(with_current_names(read_text(run.directory / FILE)), type=dict[str, Unfinished])
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
        return {}
    return {kind: unfinished for kind, unfinished in found.items() if _is_whole(unfinished)}


def _is_whole(unfinished: Unfinished) -> bool:
    """Whether its restarts are such as were timed: all of one number of blocks, each of which took some time."""
    restarts = [
        *unfinished.ab_run.restarts,
        *unfinished.ab_run.cpu_restarts,
        *(restart for shape in unfinished.shapes.values() for restart in shape),
    ]
    rounds = [r for restart in restarts for r in restart.rounds]
    blocks = {len(r) for restart in unfinished.ab_run.restarts for r in restart.rounds}
    timed = all(len(r) >= 4 and all(0 < ns < math.inf for ns in r) for r in rounds)
    most = min(len(unfinished.ab_run.restarts), len(unfinished.ab_run.samples))
    shortest = all(
        len(restart.shortest) in (0, len(restart.rounds[0]) // 2) and all(0 < ns < math.inf for ns in restart.shortest)
        for restart in restarts
        if restart.rounds
    )
    first = all(0 < k < most for k in unfinished.ab_run.elsewhere)  # the first one ran on the first GPU
    return timed and shortest and first and all(restart.rounds for restart in restarts) and len(blocks) == 1


def save(state: State, kind: str, unfinished: Unfinished) -> None:
    """Writes it to the file, in place of the one of this kind."""
    state.unfinished[kind] = unfinished
    _write(state)


def discard(state: State, kind: str) -> None:
    """Removes it from the file, once it has a verdict, which another file holds."""
    if state.unfinished.pop(kind, None):
        _write(state)


def save_verified(state: State, stack: Sequence[str], answers: Mapping[str, Verified]) -> None:
    """Saves answers of the verification of this stack, by precision."""
    for kind, unfinished in state.unfinished.items():
        if kind != "confirm" and unfinished.checked == list(stack) and answers.keys() - unfinished.verified.keys():
            unfinished.verified |= answers
            save(state, kind, unfinished)


def unfinished_of(state: State, kind: str, stack: Sequence[str], against: str) -> Unfinished | None:
    """The unfinished comparison of this stack with this best; None where there is none."""
    unfinished = state.unfinished.get(kind)
    return unfinished if unfinished and unfinished.stack == list(stack) and unfinished.against == against else None


def _write(state: State) -> None:
    """Leaves out what follows from the restarts: the interval of a single one has infinite ends, which JSON does not know."""
    if state.unfinished:
        measured = {
            kind: msgspec.structs.replace(unfinished, ab_run=replace(unfinished.ab_run, comparison=None, ranking=None))
            for kind, unfinished in state.unfinished.items()
        }
        state.run.write(FILE, msgspec.to_builtins(measured, str_keys=True))
    else:
        (state.run.directory / FILE).unlink(missing_ok=True)
