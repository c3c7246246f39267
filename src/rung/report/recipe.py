"""A recipe as the changes that it makes, in the form of a diff."""

from __future__ import annotations

from rung.records.measured import Ratio
from rung.records.recipe import Applied
from rung.report import units
from rung.report.words import STATUSES


def recipe_lines(found: Applied, path: str) -> list[str]:
    """path: of the recipe, as a shell takes it."""
    lines = ["--- the model as it is", f"+++ rung.apply(model, {path})"]
    lines += [f"+ export {name}={units.clean(value)}" for name, value in found.variables.items()]
    width = max((len(c.rung) for c in found.changes), default=0)
    lines += [f"+ {c.rung:<{width}}  {units.clean(c.changes)}  [{c.contract}]" for c in found.changes]
    if not found.changes:
        lines.append("  nothing: the recipe has no rungs")
    for key, words in (("elements_at_most", "at most"), ("elements_at_least", "at least")):
        if key in found.original:
            count = units.count(found.original[key])
            lines.append(f"  inputs of {words} {count} elements: the model as it is, which was faster there")
    if found.shapes:
        lines.append(f"  {found.shapes}")
    measured = found.measured
    if speedup := units.number(measured.get("speedup")):
        gain = Ratio(value=speedup, low=measured.get("low"), high=measured.get("high"))
        lines.append(f"measured where it was made: {units.interval(gain)}")
    if found.status:
        lines.append(STATUSES[found.status])
    if found.variables:
        lines.append("note: variables are read when a process starts; rung.apply cannot set them afterwards.")
    if found.fits:
        lines.append(f"fits {found.fits}: made for such a model and mode, with this torch, on this device")
    lines += [f"note: {units.clean(text)}" for text in found.differs]
    if found.untold:
        of = ", ".join(found.untold)
        lines.append(f"note: the recipe does not say what it was made for ({of}), so whether it fits is not known.")
    return lines
