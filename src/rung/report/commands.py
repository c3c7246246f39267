"""Commands and lines of code that go on from a climb, for the reader to paste."""

from __future__ import annotations

import math
import shlex
from pathlib import PurePath

from rung.program import program
from rung.records.climb import ClimbRun
from rung.report import units, words
from rung.text import to_paste

OPENING = 1.5  # of what a candidate needs: with the baseline, which is measured anew, and the modes
AGAIN = 1.5  # times its budget: a climb that took longer was resumed, and its budget ended once more
WITHOUT_RECIPE = 2.0  # times its budget, where that ended before there was a recipe


def way_on(run: ClimbRun, code: bool = False) -> str:
    """The command that goes on with a climb that has not reached its end; empty for others, and while it runs. code: in backticks."""
    state = words.standing(run)
    if state == "running" or not words.status(run):
        return ""
    tick = "`" if code else ""
    return f"{'Start it' if state == 'planned' else 'Continue'} with: {tick}{resume(run)}{tick}"


def resume(run: ClimbRun) -> str:
    command = f"{program()} climb --resume {shlex.quote(units.clean(run.directory or 'DIR'))}"
    stopped = run.result.stopped if run.result else None
    budget = units.number(run.manifest.request.get("budget")) or 0.0
    spent = units.number(run.manifest.spent_seconds)
    wanted = 0.0  # with the same budget it would end in the same way again
    if stopped and stopped.needs:
        wanted = OPENING * stopped.needs
    elif stopped and stopped.rule == "budget" and not words.kept(run):
        wanted = max(WITHOUT_RECIPE * budget, spent or 0.0)
    elif stopped and stopped.rule == "budget" and spent and spent > AGAIN * budget:
        wanted = spent  # more than any sitting so far had
    if budget and wanted > budget:
        command += f" --budget {30 * math.ceil(wanted / 30)}"
    return f"{command} {of_job}" if (of_job := to_paste(run.manifest.request.get("slurm"))) else command


def recipe_path(run: ClimbRun, directory: bool = True) -> str:
    recipe = units.clean((run.result.recipe if run.result else None) or "recipe.toml")
    where = units.clean(run.directory)
    return str(PurePath(where) / recipe) if directory and where else recipe


def climb_command(run: ClimbRun) -> str:
    """As it was typed, with this program's name; empty where Python began it."""
    command = units.clean(run.manifest.command)
    return f"{program()}{command.removeprefix('rung')}" if command.startswith("rung ") else command


def bench_command(run: ClimbRun) -> str:
    """What times the recipe again."""
    return _bench(run, f"--recipe {shlex.quote(recipe_path(run))}")


def autocast_alone(run: ClimbRun) -> str:
    """Over ranks, of a recipe with autocast: how to time what autocast and a fused optimizer give alone, which no such climb does; else empty."""
    if run.manifest.facts.ranks == 1 or "bf16" not in words.kept(run):
        return ""
    options = (run.manifest.options or {}).items()  # which a recipe brings by itself
    typed = [f"--{name.replace('_', '-')} {shlex.quote(units.one_line(str(value)))}" for name, value in options]
    return _bench(run, " ".join(["--rungs bf16,fused-optimizer", *typed]))


def _bench(run: ClimbRun, what: str) -> str:
    """what: the options that say what is timed of the target, over as many ranks as were climbed."""
    target = units.clean(run.manifest.target or "TARGET")
    command = f"{program()} bench {shlex.quote(target)} {what}"
    asked = run.manifest.request
    if of_job := to_paste(asked.get("slurm")):
        return f"{command} {of_job}"
    if isinstance(launcher := asked.get("launcher"), str) and launcher:
        return f"{command} --launcher {shlex.quote(units.one_line(launcher))}"
    return f"{command} --nproc-per-node {run.manifest.facts.ranks}" if run.manifest.facts.ranks > 1 else command


def apply_line(run: ClimbRun) -> str:
    if run.manifest.workload.mode == "train":
        workload = run.manifest.workload
        given = [f"{name}={name}" for name in _given(run)] + ["output=False"] * (not workload.output)
        given += [f"max_grad_norm={workload.max_grad_norm:g}"] if workload.max_grad_norm is not None else []
        return f'train = rung.apply(model, "{recipe_path(run)}", {", ".join(given)})'
    return f'model = rung.apply(model, "{recipe_path(run)}")'


def apply_names(run: ClimbRun) -> str:
    """A comment that says what the names in that line are; empty where they are not in the user's file."""
    target = units.one_line(units.clean(run.manifest.target))
    train = run.manifest.workload.mode == "train"
    return f"# model: your module; {', '.join(_given(run))}: as in {target}" if train and ".py:" in target else ""


def _given(run: ClimbRun) -> list[str]:
    """What of the workload a training step needs beside the model."""
    return [*(["forward"] if run.manifest.workload.own_forward else []), "loss", "optimizer"]
