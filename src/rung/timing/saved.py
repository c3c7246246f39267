"""Measurements that were kept: two of them, as files or in the history, against each other; and what the climb that wrote a recipe measured,
beside a measurement of now."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from rung.errors import InputError, UsageError
from rung.hardware.environment import differences
from rung.measure.stats import FEWEST
from rung.recipes.recipe import Recipe
from rung.records.bench import Bench, Benchmarks, Change, Climbed, ClimbFigures, Kept
from rung.records.climb import Result
from rung.records.compare import Saved, SavedRow
from rung.records.history import Entry
from rung.records.measured import Interval
from rung.records.record import plain, record_of
from rung.renamed import with_current_names
from rung.runs import to_json
from rung.side import Side

TWO_TIMES = (
    "two processes at two times: what the machine did in between is part of the change; `rung compare A B` on the "
    "targets runs both together."
)


def document(rows: Sequence[Bench]) -> str:
    """The file of a test session's measurements, each with its `test`."""
    return to_json(plain(Benchmarks(benchmarks=list(rows))))


def read(path: Path) -> dict[str, Kept]:
    """The measurements of a file that `--rung-save` or `rung bench --json` wrote, by the name of test or workload."""
    wrote = "give what `rung bench --json` or `pytest --rung-save` wrote."
    try:
        decoded = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} could not be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error}); {wrote}") from error
    rows = decoded.get("benchmarks", decoded) if isinstance(decoded, dict) else decoded
    rows = [row for row in (rows if isinstance(rows, list) else [rows]) if not _is_partial(row)]
    try:
        kept = msgspec.convert(rows, list[Kept])
    except msgspec.ValidationError as error:
        raise InputError(f"{path} holds no measurement ({error}); {wrote}") from error
    if not kept or any(min(row.time.value, row.time.low, row.time.high) <= 0 for row in kept):
        raise InputError(f"{path} holds no measurement; {wrote}")
    found: dict[str, Kept] = {}
    for row in kept:
        if (name := _name(row)) in found:
            raise InputError(
                f"{path} holds two measurements of {name}, which nothing tells apart; measure and save them anew, each under a name of its own."
            )
        found[name] = row
    return found


def _is_partial(row: object) -> bool:
    return isinstance(row, dict) and row.get("status", "complete") != "complete"


def _name(row: Kept) -> str:
    return " ".join([row.test or row.target or row.workload, *(f"{k}={v}" for k, v in row.point.items())])


def against(row: Kept, base: Kept | None) -> Change | None:
    """How a measurement differs from an earlier one: `change` of the median (a share, positive where it is slower),
    and whether their 95 % intervals are `apart`, which takes enough samples of both; None without an earlier one."""
    if not base:
        return None
    old, new = base.time, row.time
    apart = (new.low > old.high or new.high < old.low) and not (_weak(base) or _weak(row))
    return Change(before=old.value, after=new.value, change=new.value / old.value - 1, apart=apart)


def kept_of(row: Bench) -> Kept:
    """A measurement of now, as one that was read."""
    return msgspec.convert(plain(row), Kept)


def doubts(name: str, old: Kept, new: Kept, sides: tuple[str, str] = ("A", "B")) -> list[str]:
    """Why a change may mean nothing: too few samples, or different work. sides: what the old and the new measurement are called."""
    found = []
    for side, row in zip(sides, (old, new), strict=True):
        if why := _weak(row):
            found.append(f"{name}: {side} {why}: no difference is clear.")
    a, b = _work(old), _work(new)
    differing = {what: (a[what], b[what]) for what in a if what in b and a[what] != b[what]}
    return found + [
        f"{name}: {' and '.join(sides)} measured different work: {what} {before} and {after}."
        for what, (before, after) in differing.items()
    ]


def _weak(row: Kept) -> str:
    """Why no difference from this measurement is clear; empty where one may be."""
    if not row.measured:
        return "was measured with a preset that only tries"
    count = row.count if row.samples is None else len(row.samples)
    if count is None or count >= FEWEST:
        return ""
    return f"has {count} sample{'' if count == 1 else 's'}, and {FEWEST} are needed"


def _work(row: Kept) -> dict[str, str]:
    """What two measurements of the same work have in common, as far as it is known."""
    options = None if row.options is None else [f"{name}={value}" for name, value in sorted(row.options.items())]
    lists = {"options": options, "rungs": row.rungs}
    ranks = (row.over_ranks or {}).get("ranks")
    timer = row.timer or {}
    known = {
        "target": row.target,
        "mode": row.mode,
        **{what: " ".join(values) or "none" for what, values in lists.items() if values is not None},
        "timer": timer.get("name"),
        "caches": ("cold" if timer.get("cold") else "warm") if timer else None,
        "ranks": str(len(ranks)) if isinstance(ranks, list) else "1" if row.mode else None,
    }
    return {what: str(value) for what, value in known.items() if value}


def compare_saved(a: Path, b: Path) -> Saved:
    """Two files of measurements: the change of everything that both have, and what differs in their environments."""
    old, new = read(a), read(b)
    if len(old) == len(new) == 1:  # two measurements are meant for each other, whatever they are called
        old = {next(iter(new)): next(iter(old.values()))}
    both = [name for name in new if name in old]
    if not both:
        raise InputError(f"{a} and {b} have no measurement in common.")
    rows = [_row(name, old, new) for name in both]
    environments = [side[both[0]].environment or {} for side in (old, new)]
    warnings = [doubt for name in both for doubt in doubts(name, old[name], new[name])]
    return _saved(str(a), str(b), rows, old, new, environments, [*warnings, TWO_TIMES])


def _saved(
    a: str,
    b: str,
    rows: list[SavedRow],
    old: Mapping[str, Kept],
    new: Mapping[str, Kept],
    environments: Sequence[Mapping[str, object]],
    warnings: list[str],
) -> Saved:
    signs: set[Literal["slower", "faster"]] = {"slower" if row.change > 0 else "faster" for row in rows if row.apart}
    return Saved(
        a=a,
        b=b,
        verdict=signs.pop() if len(signs) == 1 else "mixed" if signs else "inconclusive",
        rows=rows,
        only_in={"a": [n for n in old if n not in new], "b": [n for n in new if n not in old]},
        differs=differences(environments),
        warnings=warnings,
    )


def compare_entries(a: Entry, b: Entry) -> Saved:
    """The change of every time that two entries of the history both have. Raises UsageError where there is none."""
    old, new = _times(a), _times(b)
    warnings = [TWO_TIMES]
    if len(old) == len(new) == 1 and old.keys() != new.keys():
        warnings = [f"A is of something else: {next(iter(old))}", *warnings]
        old = {next(iter(new)): next(iter(old.values()))}
    rows = [_row(name, old, new) for name in new if name in old]
    warnings += [doubt for row in rows for doubt in doubts(row.name, old[row.name], new[row.name])]
    if not rows:
        raise UsageError(
            f"entries {a.id} and {b.id} have no time of the same thing; `rung runs show` shows what they have."
        )
    return _saved(
        f"entry {a.id}", f"entry {b.id}", rows, old, new, [a.environment or {}, b.environment or {}], warnings
    )


def _times(entry: Entry) -> dict[str, Kept]:
    """Of what has no interval, none is known: it may be anything."""
    found = {}
    for figure in (figure for figure in entry.measured if figure.name == "time"):
        words = [figure.target, *(f"{k}={v}" for k, v in (figure.options | figure.variant).items())]
        low, high = (0.0, math.inf) if figure.low is None or figure.high is None else (figure.low, figure.high)
        found[" ".join(words)] = Kept(time=Interval(value=figure.value, low=low, high=high), count=_count(entry))
    return found


def _count(entry: Entry) -> int | None:
    """How many samples the time of `rung bench` is of; None where the entry does not say it."""
    summary = (entry.document or {}).get("summary") if entry.of == "bench" else None
    count = summary.get("count") if isinstance(summary, Mapping) else None
    return count if isinstance(count, int) else None


@dataclass(frozen=True)
class Beside:
    """A session's measurements beside those that were saved. differs: in the environment, as in `Saved`; warnings: why changes may mean
    nothing."""

    differs: dict[str, list[Any]]
    warnings: list[str]


def beside(rows: Sequence[Bench], base: Mapping[str, Kept]) -> Beside:
    """What differs around the measurements that both have. rows: each with its `test`."""
    both = {row.test: kept_of(row) for row in rows if row.test and row.test in base}
    environments = [side[name].environment or {} for name in list(both)[:1] for side in (base, both)]
    sides = ("the saved run", "this run")
    warnings = [doubt for name, new in both.items() for doubt in doubts(name, base[name], new, sides)]
    return Beside(differences(environments), warnings)


def _row(name: str, old: Mapping[str, Kept], new: Mapping[str, Kept]) -> SavedRow:
    change = against(new[name], old[name])
    assert change is not None
    return SavedRow(name=name, before=change.before, after=change.after, change=change.change, apart=change.apart)


# How far processes of one program differ where a climb did not restart them often enough to tell.
USUAL_SPREAD = 0.03


def measured_by_the_climb(recipe: Path, side: Side) -> ClimbFigures | None:
    """From the result.json beside a recipe. None where there is no such file, or it is of another recipe, target or options."""
    made = Recipe.read(recipe)
    try:
        text = with_current_names((recipe.parent / "result.json").read_text(encoding="utf-8"))
        result = msgspec.json.decode(text, type=Result)
        same = Recipe.parse(result.recipe_text or "") == made and made.rungs == side.rungs
        if (
            not same
            or made.options_for(side.target, {}) != side.options
            or not made.workload
            or result.restarts is None
        ):
            return None
        time = record_of(Interval, (result.times or {})["best"])
        medians = [statistics.median(restart["candidate"]) for restart in result.restarts]
    except (OSError, ValueError, LookupError, InputError, msgspec.MsgspecError):  # no climb's folder, or a damaged one
        return None
    spread = max(medians) / min(medians) - 1 if len(medians) > 1 else USUAL_SPREAD
    return ClimbFigures(time=time, restarts=max(1, len(medians)), spread=spread, status=made.status)


def held_beside(climb: ClimbFigures, time: Interval) -> Climbed:
    """The climb's figures beside a time of now."""
    theirs, reach = climb.time, 1 + climb.spread
    agrees = time.low <= theirs.high * reach and theirs.low <= time.high * reach
    slower = time.value / theirs.value - 1
    return Climbed(
        time=theirs,
        restarts=climb.restarts,
        spread=climb.spread,
        status=climb.status,
        slower=slower,
        agrees=agrees,
    )
