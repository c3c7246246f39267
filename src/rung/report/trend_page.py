"""The trends of measurements as a page, each with its picture: figures with their intervals in their order, and the levels between changes."""

from __future__ import annotations

from itertools import pairwise

from rung.records.history import Series, Trend
from rung.report.embedded import Links, page_of
from rung.report.history import figure, figure_interval, moment
from rung.report.svg import dot, line, positive, round_values, svg, text
from rung.report.trend import axis_of, change_line, count_line, differences_of, heading, tick


def page(trend: Trend, nav: Links = ()) -> str:
    """Every series of a trend: its picture, and what changed. nav: as in `page_of`; then each measurement leads to its entry, too."""
    from markupsafe import Markup

    sections = [
        {
            "title": heading(series),
            "count": count_line(series),
            "chart": Markup(chart(series)),
            "changes": [
                {"said": change_line(change, series), "differs": differences_of(change)} for change in series.changes
            ],
            "points": [
                (point, moment(point.created), figure_interval(point, series.unit))
                for point in reversed(series.points if nav else ())
            ],
            "name": series.name,
        }
        for series in trend.series
    ]
    scripts = ("page", "tables", "export")
    return page_of("trend.html", scripts, nav=nav, sections=sections, false_alarms=trend.false_alarms)


_TOP, _PLOT, _BELOW = 14.0, 220.0, 26.0  # pixels
_LEFT, _WIDE = 8.0, 90.0  # percent


def chart(series: Series) -> str:
    """ "" where no figure has a place on a scale."""
    points = [point for point in series.points if positive(point.value)]
    if not points:
        return ""
    axis, unit = axis_of(series), series.unit

    def x(place: float) -> float:
        return _LEFT + _WIDE * (place + 0.5) / len(points)

    def y(value: float) -> float:
        return _TOP + _PLOT * (1 - axis.place(value))

    body = []
    for value in round_values(axis.low, axis.high, axis.log):
        body += [line(0, y(value), 100, y(value), "grid"), text(tick(value, unit), 0, y(value) - 4, "tick")]
    edges = [0, *(change.at for change in series.changes), len(points)]
    levels = [change.before for change in series.changes] + [change.after for change in series.changes[-1:]]
    for (begin, end), level in zip(pairwise(edges), levels, strict=False):
        body.append(line(x(begin - 0.4), y(level), x(end - 0.6), y(level), "stair"))
    for change in series.changes:
        at = x(change.at - 0.5)
        body.append(line(at, _TOP, at, _TOP + _PLOT, "reference"))
        body.append(text(change_line(change, series).partition(", ")[0], at, _TOP - 3, "tick", "middle"))
    for place, point in enumerate(points):
        low, high = positive(point.low), positive(point.high)
        if low and high:
            body.append(line(x(place), y(low), x(place), y(high), "whisker"))
        tags = f" [{', '.join(point.tags)}]" if point.tags else ""
        title = f"entry {point.entry}, {moment(point.created)}: {figure_interval(point, unit)}{tags}"
        body.append(dot(x(place), y(point.value), 3.2, "kept", title))
    bottom = _TOP + _PLOT
    body.append(line(0, bottom, 100, bottom, "axis"))
    body.append(text(moment(points[0].created)[:10], _LEFT, bottom + 17, "tick"))
    body.append(text(moment(points[-1].created)[:10], 100, bottom + 17, "tick", "end"))
    last = figure(points[-1].value, unit)
    return svg(bottom + _BELOW, "trend", f"{series.name} over {len(points)} measurements, the last {last}", body)
