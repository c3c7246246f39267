"""The result of a climb as a small readable file: which rungs, made for what, measured where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from rung.errors import InputError, UsageError
from rung.files import read_text
from rung.plan import CONTRACTS, Numerics, Original, Plan
from rung.renamed import current_name
from rung.rungs import BY_NAME, LADDER, plan_of, rungs_named
from rung.rungs.environment import FILES
from rung.side import Side
from rung.toml import as_toml, parse_toml, toml_key

SCHEMA = 1
Status = Literal["provisional", "verified", "confirmed"]
STATUSES: tuple[Status, ...] = get_args(Status)
TEXTS = ("status", "workload", "mode", "numerics")
WORDS = {"status": STATUSES, "mode": ("train", "infer"), "numerics": get_args(Numerics)}
MADE_ON = ("device", "arch", "torch", "model", "structure", "ranks", "parallel")
TABLES: dict[str, tuple[tuple[type, ...], str]] = {
    "options": ((str, int, float), "texts or numbers"),
    "variables": ((str,), "texts"),
    "original": ((int,), "whole numbers"),
    "made_on": ((str,), "texts"),
    "measured": ((int, float), "numbers"),
}
# What a reader of the file may not know.
COMMENTS = {
    "variables": "the process has to be started with these",
    "original": "batches of these sizes, in elements of all tensors, run on the untouched model: the recipe is not verified there, or was slower",
}


@dataclass(frozen=True)
class Recipe:
    """What a climb found, as its file says it.

    Args:
        rungs: The names of the rungs, in the order in which they are applied.
        workload: What was climbed, as typed.
        options: The options of the workload, as typed.
        mode: Training or inference.
        numerics: The most that the rungs may change in the results.
        made_on: Device, architecture, torch and model. If several ranks trained together, also how many there were, and how.
        measured: `speedup` over the untouched model with its interval `low` to `high` at `confidence`, and `over_plain`, the speedup over the
            best plain mode of torch.compile.
        variables: The environment variables that the process must be started with.
        original: Inputs for which the recipe is slower. The model runs untouched if a batch has `elements_at_most` elements or fewer, or
            `elements_at_least` or more, all tensors together.
        status: How far a climb has checked it. Empty if none did.
    """

    rungs: tuple[str, ...]
    workload: str = ""
    options: dict[str, str] = field(default_factory=dict)
    mode: str = ""
    numerics: str = ""
    made_on: dict[str, str] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    original: dict[str, int] = field(default_factory=dict)
    status: Status | Literal[""] = ""

    def text(self) -> str:
        """The recipe as TOML."""
        lines = [f"schema = {SCHEMA}"]
        lines += [f"{k} = {as_toml(getattr(self, k))}" for k in TEXTS if k != "status" or self.status]
        lines += ["rungs = [" + ", ".join(as_toml(r) for r in self.rungs) + "]"]
        for table in TABLES:
            if values := getattr(self, table):
                comment = [f"# {COMMENTS[table]}"] if table in COMMENTS else []
                lines += ["", *comment, f"[{table}]", *(f"{toml_key(k)} = {as_toml(v)}" for k, v in values.items())]
        return "\n".join(lines) + "\n"

    @classmethod
    def parse(cls, text: str, where: str = "the recipe") -> Recipe:
        """The recipe that a text holds.

        Raises:
            InputError: names `where` the text came from, and what to put right.
        """
        try:
            data: dict[str, Any] = parse_toml(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} is not valid TOML: {error}.") from error
        rungs = data.get("rungs")
        if data.get("schema") != SCHEMA or not isinstance(rungs, list):
            raise InputError(f"{where} is not a recipe of this version: it needs schema = {SCHEMA} and a list `rungs`.")
        parts = ("schema", "rungs", *TEXTS, *TABLES)
        if odd := [key for key in data if key not in parts]:
            near = get_close_matches(odd[0], parts, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(parts)}."
            raise InputError(f"{where} has {odd[0]!r}, which is not part of a recipe; {hint}")
        for key in TEXTS:
            if not isinstance(data.get(key, ""), str):
                raise InputError(f"{where} is damaged: {key} must be a text; correct it, or climb again.")
        for key, words in WORDS.items():
            if data.get(key, "") not in ("", *words):
                raise InputError(f"{where} has {key} = {data[key]!r}; it is one of {', '.join(words)}.")
        for key, (kinds, what) in TABLES.items():
            table = data.get(key, {})
            if not isinstance(table, dict) or not all(isinstance(v, kinds) for v in table.values()):
                raise InputError(f"{where} is damaged: {key} must be a table of {what}; correct it, or climb again.")
        known_sizes = [f.name for f in fields(Original)]
        if odd := [name for name in data.get("original", {}) if name not in known_sizes]:
            raise InputError(f"{where} is damaged: original has {odd[0]!r}; it takes {' and '.join(known_sizes)}.")
        if wrong := disallowed_variable(data.get("variables", {})):
            raise InputError(f"{where} {wrong}.")
        if odd := [name for name in data.get("made_on", {}) if name not in MADE_ON]:
            raise InputError(f"{where}: made_on has {odd[0]!r}; it takes {', '.join(MADE_ON)}.")
        try:
            if not all(isinstance(r, str) for r in rungs):
                raise UsageError("rungs must be names.")
            rungs = [rung.name for rung in rungs_named(rungs)]
        except UsageError as error:
            raise InputError(f"{where}: {error}") from None
        if wrong := contradiction(rungs, data.get("numerics", "")):
            raise InputError(f"{where} {wrong}.")
        # Whoever writes a recipe by hand may write numbers; a target's options are texts, as typed.
        options = {k: str(v) for k, v in data.get("options", {}).items()}
        known = {k: data[k] for k in (*TEXTS, "variables", "original", "made_on", "measured") if k in data}
        return cls(tuple(rungs), options=options, **known)

    def options_for(self, target: str, typed: dict[str, str]) -> dict[str, str]:
        """The options to run `target` with: those that were climbed, if it is what was climbed, and what is typed."""
        same = target.rpartition("/")[2] == self.workload.rpartition("/")[2]
        return {**(self.options if same else {}), **typed}

    @property
    def made_for(self) -> dict[str, str]:
        """Of mode, device, torch and model, what the recipe tells of."""
        return {**self.made_on, **({"mode": self.mode} if self.mode else {})}

    @property
    def ddp(self) -> dict[str, Any]:
        """The arguments that its rungs give DistributedDataParallel, which whoever wraps the model has to give."""
        return dict(self.plan.exchange.ddp)

    @property
    def plan(self) -> Plan:
        """What its rungs add up to, and the inputs for which it does not hold."""
        return replace(plan_of(self.rungs), original=Original(**self.original))

    @classmethod
    def read(cls, path: Path) -> Recipe:
        """The recipe of a file.

        Raises:
            InputError: where the file cannot be read, or holds no recipe.
        """
        try:
            return cls.parse(read_text(path, "utf-8-sig"), str(path))
        except OSError as error:
            raise InputError(f"{path} could not be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise InputError(
                f"{path} is not a recipe: it is not UTF-8 text; give the recipe.toml of a climb."
            ) from error


def contradiction(rungs: Sequence[str], numerics: str) -> str:
    """What of a recipe cannot be meant: rungs that its own contract forbids, or that take each other's place; empty where nothing is."""
    for name in rungs:
        if numerics in CONTRACTS and CONTRACTS.index(needs := plan_of([name]).numerics) > CONTRACTS.index(numerics):
            return f"has numerics = {numerics!r}, and {name} needs {needs!r}: leave it out, or allow it"
        if others := [other for other in rungs if other in BY_NAME[name].replaces]:
            return f"has {name} and {others[0]}, which cannot be in effect together: leave one of them out"
    return ""


def side_of(
    target: str, typed: dict[str, str], rungs: Sequence[str] | None, recipe: Path | None, *, call: bool = False
) -> Side:
    """A target as it was asked for: under the recipe of a file, if one is given, or under rungs; typed: its options."""
    if not recipe:
        return Side(target, typed, tuple(map(current_name, rungs or ())), call=call)
    read = Recipe.read(recipe)
    options = read.options_for(target, typed)
    return Side(target, options, read.rungs, read.variables, call=call, original=read.original, made_for=read.made_for)


# A recipe comes from anywhere, and its variables go into the environment of processes: `LD_PRELOAD` or `PYTHONPATH` would run a stranger's code.
# So a recipe may name those that Rung's own rungs set, with values of their kind.
LONGEST_PATH = 4096  # characters of a path


@cache
def settable_variables() -> dict[str, tuple[str, ...]]:
    """By name, the values that rungs give a variable; `{files}` stands for a folder."""
    values: dict[str, tuple[str, ...]] = {}
    for rung in LADDER:
        for name, value in rung.change(Plan()).env:
            values[name] = tuple(dict.fromkeys((*values.get(name, ()), value)))
    return values


def disallowed_variable(variables: Mapping[str, str]) -> str:
    """What is wrong with the first variable that no rung could have set; empty where all are right."""
    known = settable_variables()
    for name, value in variables.items():
        if name not in known:
            return f"sets the variable {name!r}, which no rung of this version sets; a recipe may set {', '.join(sorted(known))}"
        if not any(_is_of_the_kind(value, usual) for usual in known[name]):
            return f"sets {name} to {value[:80]!r}; rungs set it to {' or '.join(known[name])}"
    return ""


def _is_of_the_kind(value: str, usual: str) -> bool:
    if usual.isdigit() and int(usual) > 1:  # a count; 0 and 1 switch, and one of them may have torch write a file
        return value.isascii() and value.isdigit() and len(value) <= 4
    if FILES in usual:  # a file of the climb, by its own name
        return value.endswith(usual.replace(FILES, "")) and value.isprintable() and len(value) <= LONGEST_PATH
    return value == usual
