"""Launch configurations that were measured on a GPU, in the place of what the rules of `configs` give.

`rung kernels tune` writes the table, a file of the user's; every launch asks here. Read once a process.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rung.errors import InputError, UsageError
from rung.files import read_text
from rung.hardware import pick
from rung.kernels.configs import power_of_2
from rung.kernels.variations import Config, refused
from rung.toml import TUNED, as_toml, parse_toml, user_file

if TYPE_CHECKING:
    import torch

HEAD = (
    "# Written by `rung kernels tune`: `use` was faster than what the rule gives. Remove a row, and the rule is back."
)
WIDEST = 1 << 17  # columns: what is wider counts as this wide
_TEXTS = ("gpu", "arch", "triton", "kernel", "problem")


class Key(NamedTuple):
    """A problem, as far as a configuration depends on it: the kernel, its width up to the next power of 2 with the dtypes of what
    it reads, and what the rule gives."""

    kernel: str
    problem: str
    rule: tuple[tuple[str, int], ...]


class Trial:
    """What is launched while it is entered. asked: the problems, in the order in which they came; using: what some are
    launched with instead of the rule's configuration."""

    def __init__(self) -> None:
        self.asked: dict[Key, Config] = {}
        self.using: dict[Key, Config] = {}


_trial: Trial | None = None  # of the process: a backward pass is launched by another thread


def chosen(kernel: str, rule: Config, width: int, *tensors: torch.Tensor) -> Config:
    """What to launch this kernel with. rule: what `configs` gives for the problem; width: columns of a row, or heads; tensors:
    what it reads, of one device."""
    if _trial is None and not table():
        return rule
    size = power_of_2(width, WIDEST)
    dtypes = tuple(t.dtype for t in tensors)
    if _trial is None:
        uses = _uses(kernel, tensors[0].device, size, dtypes)
        return dict(uses.get(_frozen(rule), rule)) if uses else rule
    # By the rules, and by what is tried; not by the table, which is being made anew.
    key = Key(kernel, _problem(size, dtypes), _frozen(rule))
    _trial.asked.setdefault(key, rule)
    return dict(_trial.using.get(key, rule))


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
    """By GPU and problem, of this version of Triton. No launch fails for a file that cannot be read: it is said once."""
    try:
        found = rows()
    except InputError as error:
        warnings.warn(f"{error} Until then kernels are launched by the rules.", stacklevel=2)
        return {}
    return {(row["gpu"], key_of(row)): row["use"] for row in found if row["triton"] == triton_version()}


@cache
def _uses(
    kernel: str, device: torch.device, size: int, dtypes: tuple[torch.dtype, ...]
) -> Mapping[tuple[tuple[str, int], ...], Config]:
    """By what the rule gives, for a problem on this device."""
    name, problem = gpu_name(device), _problem(size, dtypes)
    return {key.rule: use for (gpu, key), use in table().items() if (gpu, key[:2]) == (name, (kernel, problem))}


def forget() -> None:
    """The file is read again."""
    for known in (table, _uses, _tag):
        known.cache_clear()


def rows(path: Path | None = None) -> list[dict[str, Any]]:
    """The rows of the user's file; none where there is no file. Raises InputError for one that cannot be understood."""
    path = path or user_file(*TUNED)
    try:
        found: list[dict[str, Any]] = parse_toml(read_text(path)).get("tuned", [])
        for row in found:
            odd = next((k for k in _TEXTS if not isinstance(row[k], str)), "")
            odd = odd or refused(row["kernel"], row["rule"], row["use"], row["arch"])
            if odd:
                raise ValueError(f"{odd} of {row['kernel']}")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else getattr(error, "strerror", None) or str(error)
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
    return Key(row["kernel"], row["problem"], _frozen(row["rule"]))


def mark_caches() -> None:
    """Has torch's caches of compiled graphs tell one table from another: they know a kernel by its source, and the configuration is
    decided while a graph is made. Called in the thread that compiles, before it looks there."""
    if not table():
        return
    from torch.compiler import config

    tag = _tag()
    if hasattr(config, "cache_key_tag") and tag not in config.cache_key_tag:
        config.cache_key_tag = f"{config.cache_key_tag}{tag}"


@cache
def _tag() -> str:
    return "rung-kernels-" + hashlib.sha256(repr(sorted(table().items(), key=repr)).encode()).hexdigest()[:16]


def gpu_name(device: torch.device) -> str:
    """As `rung.hardware` has it; "" for a GPU that cannot be asked, as where a graph for one is traced without it."""
    try:
        return pick(str(device)).name
    except UsageError:
        return ""


@cache
def triton_version() -> str:
    import triton

    return str(triton.__version__)


def _problem(size: int, dtypes: tuple[torch.dtype, ...]) -> str:
    """In words: the file is read by people, too."""
    return f"{size} wide, {' '.join(str(dtype).removeprefix('torch.') for dtype in dtypes)}"


def _frozen(rule: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(rule.items()))
