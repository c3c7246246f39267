"""Which counters a GPU has, and in how few runs of the program they can be read: `counters.toml` and a file of one's own."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rung.errors import InputError, UsageError
from rung.files import read_text
from rung.toml import parse_toml, shipped, user_file

_REDUCED = re.compile(r"_(?:sum|max|avr|min)$")
_ALSO = re.compile(r"\[(\d+)\]$")  # TCC_HIT[3]: of channel 3


@dataclass(frozen=True)
class Chosen:
    """counters: those that can be read; left_out: name → why not, and what was taken instead."""

    counters: tuple[str, ...]
    left_out: Mapping[str, str]


@lru_cache(maxsize=4)
def _tables(own: str | None) -> Mapping[str, Any]:
    tables = shipped("profilers/counters.toml")
    if not own:
        return tables
    mine = own_file(Path(own))
    return {
        **tables,
        "sets": {**tables["sets"], **mine.get("sets", {})},
        "names": [*tables["names"], *mine.get("names", [])],
        "derived": [*tables["derived"], *mine.get("derived", [])],
    }


def tables() -> Mapping[str, Any]:
    """The tables of counters.toml, with the user's own."""
    return _tables(own_path("RUNG_COUNTERS", "counters.toml"))


def own_path(variable: str, name: str) -> str | None:
    """The user's own file, if the variable names one, or if one is in the configuration directory."""
    own = user_file(variable, name)
    return str(own) if os.environ.get(variable) or own.is_file() else None


def own_file(path: Path) -> dict[str, Any]:
    """A TOML file of the user's; InputError says what is wrong with it."""
    try:
        return parse_toml(read_text(path))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} could not be read as TOML ({error}): correct it, or take it away.") from None


def named(name: str) -> tuple[str, ...]:
    """The counters of a set, alternatives still in them. UsageError for a set that is not there."""
    sets = tables()["sets"]
    if name not in sets:
        raise UsageError(f"there is no set of counters {name!r}: there are {', '.join(sets)}.")
    parts = sets[name]
    both = itertools.chain(parts.get("counters", ()), *(named(other) for other in parts.get("of", ())))
    return tuple(dict.fromkeys(both))


def is_listed(arch: str) -> bool:
    """Whether our tables list any counter for an architecture."""
    return any(arch.startswith(tuple(table["on"])) for table in tables()["names"])


def known(arch: str, rocm: tuple[int, ...] | None = None) -> frozenset[str]:
    """Names that our tables list for an architecture, without _sum and the like: those that a release of ROCm knows, (7, 0)
    for instance; of any release without one.
    """
    found: set[str] = set()
    for table in tables()["names"]:
        if arch.startswith(tuple(table["on"])) and (rocm is None or _since(table, arch) <= rocm):
            found.update(name for text in table["counters"] for name in _spelled(text))
    return frozenset(found | {d["name"] for d in tables()["derived"] if arch.startswith(tuple(d["on"]))})


def _since(table: Mapping[str, Any], arch: str) -> tuple[int, ...]:
    """The ROCm that brought the names of a table to an architecture; () where every release has them."""
    text = next((text for on, text in table.get("since", {}).items() if arch.startswith(on)), "")
    return tuple(int(part) for part in text.split(".") if part)


def _spelled(text: str) -> list[str]:
    """`A_{B,C}` as A_B and A_C."""
    parts = [part.split(",") for part in re.split(r"[{}]", text)]
    return ["".join(some) for some in itertools.product(*parts)]


def choose(
    wanted: Sequence[str],
    arch: str,
    available: Collection[str] | None = None,
    rocm: tuple[int, ...] | None = None,
) -> Chosen:
    """Those of `wanted` that the GPU has, each `A|B` as the first that it has.

    available: the names that its profiler lists, which then decide. Without them our tables do, for the release `rocm` as in
    `known`; where they know nothing of the architecture, the first of each is taken as it is.
    """
    listed = set(available) if available else set(known(arch, rocm))
    taken: dict[str, None] = {}
    left_out: dict[str, str] = {}
    for text in wanted:
        choices = text.split("|")
        found = next((name for name in choices if not listed or _has(listed, name)), None)
        if found is None and (other := _instead(choices[0], listed)):
            left_out[choices[0]] = f"{other} read instead"
            found = other
        if found is None:
            left_out[choices[0]] = _missing(choices, arch, rocm if not available else None)
        else:
            taken[found] = None
    return Chosen(tuple(taken), left_out)


def _missing(choices: Sequence[str], arch: str, rocm: tuple[int, ...] | None) -> str:
    """Why none of the names can be read: a later ROCm has one, or none has."""
    later = [
        _since(table, arch)
        for table in tables()["names"]
        if rocm and arch.startswith(tuple(table["on"])) and _since(table, arch) > rocm
        and any(_has({n for text in table["counters"] for n in _spelled(text)}, name) for name in choices)
    ]  # fmt: skip
    return f"on {arch} from ROCm {'.'.join(map(str, min(later)))} on" if later else f"{arch or 'this GPU'} has none"


def foreign(name: str, arch: str) -> bool:
    """Whether our tables have a counter for GPUs of the other line alone: CDNA (gfx9) or RDNA (gfx11, gfx12)."""
    lines = {on.startswith("gfx9") for table in tables()["names"] for on in table["on"] if _has(known(on), name)}
    return bool(lines) and bool(arch) and arch.startswith("gfx9") not in lines


def _has(listed: Collection[str], name: str) -> bool:
    plain = _ALSO.sub("", name.partition(":")[0])
    return plain in listed or _REDUCED.sub("", plain) in listed


def _instead(name: str, listed: Collection[str]) -> str | None:
    """The same counter under the name that this GPU has for it."""
    others = tables()["nowhere"].get(name, "").split("|")
    for old, new in tables()["renamed"].items():
        if name.startswith(old):
            others.append(new + name.removeprefix(old))
    return next((other for other in others if other and _has(listed, other)), None)


def passes(
    counters: Sequence[str], arch: str, fits: Callable[[tuple[str, ...]], bool | None] = lambda _: None
) -> tuple[tuple[str, ...], ...]:
    """The counters in as few groups as the hardware's blocks allow, in the order given.

    Each counter goes into the first group that has room in every block it needs. fits: asks the profiler itself; a group
    that it refuses is halved.
    """
    groups: list[list[str]] = []
    used: list[dict[str, set[str]]] = []
    for counter in counters:
        needs = _slots(counter, arch)
        place = next((n for n, blocks in enumerate(used) if _room(blocks, needs, arch)), len(groups))
        if place == len(groups):
            groups.append([])
            used.append({})
        groups[place].append(counter)
        for block, events in needs.items():
            used[place].setdefault(block, set()).update(events)
    return tuple(part for group in groups for part in _halved(tuple(group), fits))


def _halved(group: tuple[str, ...], fits: Callable[[tuple[str, ...]], bool | None]) -> list[tuple[str, ...]]:
    if len(group) < 2 or fits(group) is not False:
        return [group]
    middle = len(group) // 2
    return _halved(group[:middle], fits) + _halved(group[middle:], fits)


def _slots(counter: str, arch: str) -> dict[str, set[str]]:
    """Block → events that a counter needs there; several for a derived one."""
    derived = next((d for d in tables()["derived"] if d["name"] == counter and arch.startswith(tuple(d["on"]))), None)
    found: dict[str, set[str]] = {}
    for event in derived["of"] if derived else [_REDUCED.sub("", counter.partition(":")[0])]:
        channel = _ALSO.search(event)  # a channel has its own slots
        block = event.partition("_")[0]
        block = tables()["shares"].get(_family(arch), {}).get(block, block)
        found.setdefault(block + (channel[0] if channel else ""), set()).add(event)
    return found


def _room(blocks: Mapping[str, set[str]], needs: Mapping[str, set[str]], arch: str) -> bool:
    limits = tables()["limits"][_family(arch)]
    return all(
        len(blocks.get(block, set()) | events) <= limits.get(_ALSO.sub("", block), 1) for block, events in needs.items()
    )


def _family(arch: str) -> str:
    """Of gfx1100 that is gfx11; of an architecture that we have no limits for, that with the strictest."""
    return next((name for name in tables()["limits"] if name != "gfx9" and arch.startswith(name)), "gfx9")
