"""The history of a measurement: one thing, measured again and again in one way on one machine, and where its level changed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from rung.hardware.environment import differences
from rung.measure.change_points import FALSE_ALARMS, change_points
from rung.measure.distributions import normal_quantile
from rung.records.history import Changed, Entry, Measured, Point, Series

_ERRORS = 2 * normal_quantile(0.975)  # a 95 % interval is so many standard errors wide
Found = tuple[Entry, Measured]


def series_of(
    entries: Sequence[Entry],
    *,
    name: str = "time",
    target: str = "",
    options: Mapping[str, str] | None = None,
    of: str = "",
    hosts_together: bool = False,
    false_alarms: float = FALSE_ALARMS,
) -> list[Series]:
    """The series that the entries hold, those with the newest figure first.

    Args:
        entries: With their environments, newest first, as the history gives them.
        name: Of the figure: time, memory or speedup.
        target: With the absolute path of its file. "": every target.
        options: What a series' options must have, and may have more.
        of: The command that measured. "": every one.
        hosts_together: One series a device, whatever the host is called.
        false_alarms: The largest share of unchanging series in which a change may be found.
    """
    wanted = options or {}
    groups: dict[str, list[Found]] = {}
    for entry in entries:
        for figure in entry.measured:
            fits = figure.name == name and target in ("", figure.target) and of in ("", entry.of)
            if fits and all(figure.options.get(option) == value for option, value in wanted.items()):
                groups.setdefault(_key(entry, figure, hosts_together), []).append((entry, figure))
    return [_series(found[::-1], hosts_together, false_alarms) for found in groups.values()]


def _key(entry: Entry, figure: Measured, hosts_together: bool) -> str:
    same = [entry.of, figure.target, figure.options, figure.variant, entry.device, "" if hosts_together else entry.host]
    return json.dumps(same, sort_keys=True)


def _series(found: Sequence[Found], hosts_together: bool, false_alarms: float) -> Series:
    entry, figure = found[-1]
    return Series(
        of=entry.of,
        name=figure.name,
        target=figure.target,
        options=figure.options,
        variant=figure.variant,
        unit=figure.unit,
        device=entry.device,
        host=None if hosts_together else entry.host,
        points=[
            Point(entry=e.id, created=e.created, value=m.value, low=m.low, high=m.high, tags=e.tags) for e, m in found
        ],
        changes=_changes(found, false_alarms),
    )


def _changes(found: Sequence[Found], false_alarms: float) -> list[Changed]:
    """In logarithms: a share counts, whatever the level is."""
    logs = [math.log(figure.value) for _, figure in found]
    changes = []
    for change in change_points(logs, [_error(figure) for _, figure in found], false_alarms=false_alarms):
        around = [found[k][0].environment or {} for k in (change.at - 1, change.at)]
        changes.append(
            Changed(
                at=change.at,
                entry=found[change.at][0].id,
                before=math.exp(change.before),
                after=math.exp(change.after),
                change=math.exp(change.after - change.before) - 1,
                p=change.p,
                differs=differences(around),
            )
        )
    return changes


def _error(figure: Measured) -> float:
    """Standard error of the figure's logarithm; 0 where no interval tells it."""
    if figure.low is None or figure.high is None or figure.low <= 0:
        return 0.0
    return math.log(figure.high / figure.low) / _ERRORS
