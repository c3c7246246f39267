"""What is measured, as data: a target under a recipe, with the variables of its processes; and how these run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from rung.errors import UsageError


@dataclass(frozen=True)
class Limits:
    """Seconds: `prepare` for loading, compiling and warming up; `block` for anything after that."""

    prepare: float = 900.0
    block: float = 120.0


@dataclass(frozen=True)
class Side:
    """One of those that are compared: what its processes load, and how they start.

    Args:
        target: as on the command line, `"model.py:make"`.
        options: of the target, as texts.
        rungs: under which it runs.
        env: variables of its processes.
        cwd: the folder in which they start.
        revision: of git, whose checkout that folder lies in.
        call: the target names a plain function. That function is timed, not a workload.
        shape: which of the workload's input shapes is timed; the one that is measured first is 0.
        original: inputs for which a recipe does not hold, by `elements_at_most` and `elements_at_least`.
        made_for: what a recipe was made for: mode, device, torch and model.
        one_shape: the workload runs on the measured shape alone.
        saved_model: a file that holds its model, made before.
        gpu_draws: where the model is made, a GPU draws its random numbers, which takes a core of the host many times as long.
    """

    target: str
    options: dict[str, str] = field(default_factory=dict)
    rungs: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    revision: str = ""
    call: bool = False
    shape: int = 0
    original: dict[str, int] = field(default_factory=dict)
    made_for: dict[str, str] = field(default_factory=dict)
    one_shape: bool = False
    saved_model: str = ""
    gpu_draws: bool = False


@dataclass(frozen=True)
class Launcher:
    """How a job of several ranks is started. words: of a command that starts one process a rank; what each of them runs is put behind.
    here: all of them are on this host. meets: it tells them where they meet, as torchrun does; else a coordinator does."""

    words: tuple[str, ...]
    here: bool
    meets: bool = True


@dataclass(frozen=True)
class Setup:
    """How workers run. files: where variables of a plan that name
    a file of the climb's own find it (`{files}`), the current folder where there is no climb; variables: of every worker;
    launcher: of the ranks of a side, where that is more than one process; until: by `time.monotonic`, when the budget of the command ends."""

    device: str | None
    logs: Path
    limits: Limits = Limits()
    files: Path = Path()
    variables: dict[str, str] = field(default_factory=dict)
    launcher: Launcher | None = None
    until: float = math.inf


def named(target: object) -> str:
    """A target, which a fresh process finds by its name; anything else is refused, a Workload that is at hand among it."""
    if isinstance(target, str):
        return target
    raise UsageError(
        f"a {type(target).__name__} cannot be handed to a fresh process, which finds its workload by name; "
        'give the name of the function that makes it, as in "model.py:make".'
    )
