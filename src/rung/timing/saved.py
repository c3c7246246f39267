"""Measurements that were kept: two of them, as files or in the history, against each other; and what the climb that wrote a recipe measured,
beside a measurement of now."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from rung.errors import InputError, UsageError
from rung.hardware.environment import differences
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
        found = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} could not be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({error}); {wrote}") from error
    rows = found.get("benchmarks", found) if isinstance(found, dict) else found
    rows = [row for row in (rows if isinstance(rows, list) else [rows]) if not _is_partial(row)]
    try:
        kept = msgspec.convert(rows, list[Kept])
    except msgspec.ValidationError as error:
        raise InputError(f"{path} holds no measurement ({error}); {wrote}") from error
    if not kept or any(min(row.time.value, row.time.low, row.time.high) <= 0 for row in kept):
        raise InputError(f"{path} holds no measurement; {wrote}")
    return {_name(row): row for row in kept}


def _is_partial(row: object) -> bool:
    return isinstance(row, dict) and row.get("status", "complete") != "complete"


def _name(row: Kept) -> str:
    return " ".join([row.test or row.target or row.workload, *(f"{k}={v}" for k, v in row.point.items())])


def against(row: Bench | Kept, base: Kept | None) -> Change | None:
    """How a measurement differs from an earlier one: `change` of the median (a share, positive where it is slower),
    and whether their 95 % intervals are `apart`; None without an earlier one."""
    if not base:
        return None
    old, new = base.time, row.time
    apart = new.low > old.high or new.high < old.low
    return Change(before=old.value, after=new.value, change=new.value / old.value - 1, apart=apart)


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
    return _saved(str(a), str(b), rows, old, new, environments, [TWO_TIMES])


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
        found[" ".join(words)] = Kept(time=Interval(value=figure.value, low=low, high=high))
    return found


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
