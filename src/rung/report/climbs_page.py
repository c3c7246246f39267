"""Several climbs as one page."""

from __future__ import annotations

from collections.abc import Sequence

from rung.records.measured import Ratio
from rung.report.climbs import MARKS, OUTCOMES, Climb, tried
from rung.report.embedded import Links, page_of
from rung.report.forest_chart import effect, forest


def page(climbs: Sequence[Climb], nav: Links = ()) -> str:
    """The page as text. nav: as in `page_of`."""
    from markupsafe import Markup

    names, left = tried(climbs)
    seen = {climb.rungs[name].verdict for climb in climbs for name in names if name in climb.rungs}
    return page_of(
        "climbs.html",
        ("page", "tables", "export"),
        nav=nav,
        climbs=climbs,
        names=names,
        left=left,
        marks=MARKS,
        legend=[(verdict, what) for verdict, what in OUTCOMES.items() if verdict in seen],
        forests=[
            (title, Markup(_forest(climbs, [getattr(climb, key) for climb in climbs], title)))
            for title, key in (
                ("Over the untouched model", "speedup"),
                ("Over the best plain torch.compile", "over_plain"),
            )
            if any(getattr(climb, key) for climb in climbs)
        ],
    )


def _forest(climbs: Sequence[Climb], estimates: Sequence[Ratio | None], title: str) -> str:
    rows = [
        effect(
            f"{number} {climb.model}, {climb.status}",
            estimate,
            css="kept" if climb.status == "confirmed" else "tried",
        )
        for number, (climb, estimate) in enumerate(zip(climbs, estimates, strict=True), 1)
        if estimate
    ]
    return forest([row for row in rows if row], f"Speedups: {title.lower()}")
