"""Launch configurations that were measured on an architecture, in the place of what the rules of `configs` give.

`rung kernels tune` writes the table, a file of the user's; every launch asks here. Read once a process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from rung.errors import InputError
from rung.toml import as_toml, parse_toml, user_file

if TYPE_CHECKING:
    import torch

Config = dict[str, Any]
FILE = ("RUNG_KERNELS", "kernels.toml")  # where the table is: `user_file`
FOR_AMD = ("waves_per_eu",)  # options of Triton's compiler that it has for AMD's GPUs alone
HEAD = "# Launch configurations that `rung kernels tune` measured: `use` in the place of what the rule gives. Remove a row, and the rule is back."
OPTIONS = ("num_warps", "num_stages", *FOR_AMD)


class Key(NamedTuple):
    """A problem, as far as a configuration depends on it: the kernel, the dtype of what it reads, and what the rule gives."""

    kernel: str
    dtype: str
    rule: tuple[tuple[str, int], ...]


class Trial:
    """What is launched while it is entered. asked: the problems, in the order in which they came; using: what some are
    launched with instead of the rule's configuration."""

    def __init__(self) -> None:
        self.asked: dict[Key, Config] = {}
        self.using: dict[Key, Config] = {}


_trial: Trial | None = None  # of the process: a backward pass is launched by another thread


def chosen(kernel: str, x: torch.Tensor, rule: Config) -> Config:
    """What to launch this kernel with. x: one tensor that it reads; rule: what `configs` gives for the problem."""
    if _trial is None and not table():
        return rule
    key = Key(kernel, str(x.dtype).removeprefix("torch."), tuple(sorted(rule.items())))
    if _trial is not None:  # by the rules, and by what is tried; not by the table, which is being made anew
        _trial.asked.setdefault(key, rule)
        return dict(_trial.using.get(key, rule))
    return dict(table().get((_arch(str(x.device)), key), rule))


@contextmanager
def trying(trial: Trial) -> Iterator[Trial]:
    """Launches inside go by the trial."""
    global _trial
    before, _trial = _trial, trial
    try:
        yield trial
    finally:
        _trial = before


@cache
def table() -> Mapping[tuple[str, Key], Config]:
    """By architecture and problem. Raises InputError for a file that cannot be understood."""
    return {(row["arch"], key_of(row)): row["use"] for row in rows()}


def rows() -> list[dict[str, Any]]:
    """The rows of the user's file; none where there is no file."""
    path = user_file(*FILE)
    try:
        found: list[dict[str, Any]] = parse_toml(path.read_text("utf-8")).get("tuned", [])
        for row in found:
            wrong = [k for k in row["use"] if k not in row["rule"] and k not in OPTIONS]
            wrong += [k for k, v in row["use"].items() if type(v) is not int or v < 1]
            if wrong or not (key_of(row) and isinstance(row["arch"], str)):
                raise ValueError(f"{wrong[0] if wrong else 'arch'} of {row['kernel']} is no size and no option")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise InputError(
            f"{path} is no table of launch configurations ({why}): remove it, and let `rung kernels tune` make it anew."
        ) from None
    return found


def text(found: Iterable[Mapping[str, Any]]) -> str:
    """The file with these rows."""
    lines = [HEAD]
    for row in found:
        lines += ["", "[[tuned]]", *(f"{k} = {as_toml(v)}" for k, v in row.items())]
    return "\n".join(lines) + "\n"


def key_of(row: Mapping[str, Any]) -> Key:
    return Key(row["kernel"], row["dtype"], tuple(sorted(row["rule"].items())))


def mark_caches() -> None:
    """Has torch's caches of compiled graphs tell one table from another: what they know a kernel by is its source, and the
    configuration is decided while the graph is made."""
    if not table():
        return
    from torch.compiler import config

    tag = "rung-kernels-" + hashlib.sha256(repr(sorted(table().items(), key=repr)).encode()).hexdigest()[:16]
    if hasattr(config, "cache_key_tag") and tag not in config.cache_key_tag:
        config.cache_key_tag = f"{config.cache_key_tag}{tag}"


@cache
def _arch(device: str) -> str:
    from rung.hardware import pick

    return pick(device).arch
