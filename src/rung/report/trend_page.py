"""The trends of measurements as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rung.report.embedded import page_of
from rung.report.trend import change_line, count_line, differences_of, heading
from rung.report.trend_chart import chart


def page(trend: Mapping[str, Any]) -> str:
    """Every series of a trend: its picture, and what changed."""
    from markupsafe import Markup

    sections = [
        {
            "title": heading(series),
            "count": count_line(series),
            "chart": Markup(chart(series)),
            "changes": [
                {"said": change_line(change, series), "differs": differences_of(change)} for change in series["changes"]
            ],
        }
        for series in trend["series"]
    ]
    return page_of("trend.html", ("page", "export"), sections=sections, false_alarms=trend["false_alarms"])
