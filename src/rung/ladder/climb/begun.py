"""What was measured of something that has no verdict yet, in `begun.json`: a climb that was killed, or cut short, goes on from there.

A job that is preempted every minute would otherwise begin each attempt anew and never end one.
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


class Begun(Struct, rename={"ab_run": "duel"}):  # the file keeps the name that earlier versions wrote
    """stack: the rungs that are tried, or of the fastest plain mode; against: those of what they are compared with, joined; name: of
    the attempt's files; members: of a bundle; modes: the plain modes; verified: answers of the verification, by precision;
    shapes: restarts by the number of another input shape, with `failed`, the side that failed on it and why; looks: at the
    restarts, as planned before the first of them."""

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


def read_begun(run: Run) -> dict[str, Begun]:
    """By what was begun: `plain`, `attempt` or `confirm`. Empty where nothing was, or the file is damaged: then it is measured again."""
    try:
        found = msgspec.json.decode(with_current_names(read_text(run.directory / FILE)), type=dict[str, Begun])
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError):
        return {}
    return {what: begun for what, begun in found.items() if _is_whole(begun)}


def _is_whole(begun: Begun) -> bool:
    """Whether its restarts are such as were timed: all of one number of blocks, each of which took some time."""
    restarts = [
        *begun.ab_run.restarts,
        *begun.ab_run.cpu_restarts,
        *(restart for shape in begun.shapes.values() for restart in shape),
    ]
    rounds = [r for restart in restarts for r in restart.rounds]
    blocks = {len(r) for restart in begun.ab_run.restarts for r in restart.rounds}
    timed = all(len(r) >= 4 and all(0 < ns < math.inf for ns in r) for r in rounds)
    most = min(len(begun.ab_run.restarts), len(begun.ab_run.samples))
    shortest = all(
        len(restart.shortest) in (0, len(restart.rounds[0]) // 2) and all(0 < ns < math.inf for ns in restart.shortest)
        for restart in restarts
        if restart.rounds
    )
    first = all(0 < k < most for k in begun.ab_run.elsewhere)  # the first one ran on the first GPU
    return timed and shortest and first and all(restart.rounds for restart in restarts) and len(blocks) == 1


def keep(state: State, what: str, begun: Begun) -> None:
    """Writes it down, in the place of what was there."""
    state.begun[what] = begun
    _write(state)


def forget(state: State, what: str) -> None:
    """It has a verdict, which another file tells."""
    if state.begun.pop(what, None):
        _write(state)


def keep_verified(state: State, stack: Sequence[str], answers: Mapping[str, Verified]) -> None:
    """answers: of the verification of what was begun with this stack, by precision."""
    for what, begun in state.begun.items():
        if what != "confirm" and begun.checked == list(stack) and answers.keys() - begun.verified.keys():
            begun.verified |= answers
            keep(state, what, begun)


def same(state: State, what: str, stack: Sequence[str], against: str) -> Begun | None:
    """What was begun of this very comparison."""
    begun = state.begun.get(what)
    return begun if begun and begun.stack == list(stack) and begun.against == against else None


def _write(state: State) -> None:
    """Without what follows from the restarts: that of a single one has ends that are infinite, which JSON does not know."""
    if state.begun:
        measured = {
            what: msgspec.structs.replace(begun, ab_run=replace(begun.ab_run, comparison=None, ranking=None))
            for what, begun in state.begun.items()
        }
        state.run.write(FILE, msgspec.to_builtins(measured, str_keys=True))
    else:
        (state.run.directory / FILE).unlink(missing_ok=True)
