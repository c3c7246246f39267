"""The trends of measurements as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rung.report.embedded import Links, page_of
from rung.report.history import figure_interval, moment
from rung.report.trend import change_line, count_line, differences_of, heading
from rung.report.trend_chart import chart


def page(trend: Mapping[str, Any], nav: Links = ()) -> str:
    """Every series of a trend: its picture, and what changed. nav: as in `page_of`; then each measurement leads to its entry, too."""
    from markupsafe import Markup

    sections = [
        {
            "title": heading(series),
            "count": count_line(series),
            "chart": Markup(chart(series)),
            "changes": [
                {"said": change_line(change, series), "differs": differences_of(change)} for change in series["changes"]
            ],
            "points": [
                (point, moment(point["created"]), figure_interval(point | {"unit": series["unit"]}))
                for point in reversed(series["points"] if nav else ())
            ],
            "name": series["name"],
        }
        for series in trend["series"]
    ]
    scripts = ("page", "tables", "export")
    return page_of("trend.html", scripts, nav=nav, sections=sections, false_alarms=trend["false_alarms"])
