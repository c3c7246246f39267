"""The rungs of the ladder in words: as a list, one by one, as the table of docs/reference/rungs.md, and as the changes that a recipe makes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rung.program import program
from rung.records.climb import Attempt
from rung.records.measured import Ratio
from rung.records.recipe import Applied, ListedRung
from rung.report import units
from rung.report.layout import styled, wrap
from rung.report.units import wrapped
from rung.report.words import meaning
from rung.rungs import Rung

SOME_GPUS = ("AMD GPUs", "NVIDIA GPUs", "sm", "gfx")  # what says more than that it needs a GPU
LEVELS = {
    1: "format and environment",
    2: "compile and graphs",
    3: "rewrites of the graph",
    4: "Triton kernels",
    5: "one architecture",
}
NUMERICS = {  # what a rung may do to results: to those of another precision only where the user allowed it
    "exact": "The same numbers are computed in the same way.",
    "reassociated": "Other kernels of the same precision may run, so sums may be added in another order.",
    "tf32": "Matrix products of float32 may use TF32.",
    "bf16": "Parts of the model may run in bfloat16.",
    "fp8": "Linear layers may run in FP8, or with weights in int8.",
}


@dataclass
class Outcomes:
    """What came of a rung in climbs: of how many attempts that were decided it was kept, alone or in a bundle."""

    kept: int = 0
    decided: int = 0

    def __str__(self) -> str:
        return f"{self.kept} of {self.decided}" if self.decided else ""


def outcomes(attempts: Iterable[Attempt]) -> dict[str, Outcomes]:
    """By rung. A member of a bundle counts as its bundle does, unless it was found to do nothing."""
    found: dict[str, Outcomes] = {}
    for attempt in attempts:
        if attempt.verdict not in ("kept", "reverted", "no-op") or not attempt.log:
            continue
        for name in attempt.members or [attempt.rung]:
            one = found.setdefault(name, Outcomes())
            one.decided += 1
            one.kept += attempt.verdict == "kept" and name not in (attempt.without or ())
    return found


def needs(rung: Rung) -> str:
    told = list(rung.needs)
    if any(need.startswith(SOME_GPUS) for need in told):
        told = [need for need in told if need != "a GPU"]
    return "; ".join(told)


def listed(rung: Rung, seen: Outcomes | None) -> ListedRung:
    return ListedRung(
        name=rung.name,
        level=rung.level,
        title=rung.title,
        changes=rung.changes,
        numerics=rung.contract,
        needs=list(rung.needs),
        effect=rung.effect,
        replaces=list(rung.replaces),
        spares=rung.improves,
        kept=seen.kept if seen else 0,
        decided=seen.decided if seen else 0,
    )


def list_lines(rungs: Sequence[Rung], seen: Mapping[str, Outcomes], width: int, color: bool) -> list[str]:
    """A row a rung, below its level: what it is, how often it was kept here where any was tried, and what it needs, as far as a line
    has room for it."""
    counts = {rung.name: str(seen.get(rung.name, "")) for rung in rungs}
    name_width = max(len(rung.name) for rung in rungs)
    kept_width = max(map(len, ["kept here", *counts.values()])) if any(counts.values()) else 0
    free = width - 2 - name_width - 2 - (kept_width + 2 if kept_width else 0)
    title_width = min(max(len(rung.title) for rung in rungs), free // 2)

    def row(name: str, title: str, kept: str, needed: str) -> str:
        cells = [f"  {name:<{name_width}}", f"{title:<{title_width}}", *([f"{kept:<{kept_width}}"] if kept_width else []), needed]  # fmt: skip
        return "  ".join(cells).rstrip()

    lines = [styled(row("rung", "what it does", "kept here", "needs"), "dim", color)]
    for level in sorted({rung.level for rung in rungs}):
        lines += ["", styled(f"Level {level}: {LEVELS[level]}", "bold", color)]
        for rung in (r for r in rungs if r.level == level):
            title, *rest = wrap(rung.title, title_width)
            lines.append(row(rung.name, title, counts[rung.name], _short_needs(rung, free - title_width - 2)))
            lines += [row("", line, "", "") for line in rest]
    return [*lines, "", *wrapped(f"All about one, and what it may do to numbers: {program()} rungs NAME", width)]


def _short_needs(rung: Rung, width: int) -> str:
    """Its needs without what stands in brackets, cut at a word where a line has no room for all."""
    first, *rest = wrap(re.sub(r" \(.*?\)", "", needs(rung)), width)
    return f"{wrap(first, width - 4)[0].rstrip(';')} ..." if rest else first


def rung_lines(rung: Rung, seen: Outcomes | None, width: int) -> list[str]:
    """All that is known of one rung before it is tried."""
    of = {
        "what": rung.title,
        "level": f"{rung.level}, {LEVELS[rung.level]}",
        "changes": rung.changes,
        "numerics": f"{rung.contract}: {_lower(NUMERICS[rung.contract])}",
        "needs": needs(rung) or "nothing",
        "shows by": rung.effect,
        "is for": "a shorter step" if rung.improves == "step" else f"less of: {rung.improves}",
        "replaces": ", ".join(rung.replaces),
        "kept here": f"{seen} times that it was tried" if seen else "",
    }
    lines = [rung.name]
    for head, text in of.items():
        if text:
            lines += wrapped(text, width, f"  {head:<9} ", " " * 12)
    return lines


def _lower(sentence: str) -> str:
    """As part of another one."""
    return f"{sentence[0].lower()}{sentence[1:].rstrip('.')}"


def markdown(rungs: Sequence[Rung]) -> str:
    """A table of docs/reference/rungs.md."""
    lines = ["| rung | what it does | numerics | needs |", "|---|---|---|---|"]
    for rung in rungs:
        lines.append(f"| `{rung.name}` | {rung.changes} | {rung.contract} | {needs(rung) or '–'} |")
    return "\n".join(lines)


def recipe_lines(found: Applied, path: str) -> list[str]:
    """path: of the recipe, as a shell takes it."""
    lines = ["--- the untouched model", f"+++ rung.apply(model, {path})"]
    lines += [f"+ export {name}={units.clean(value)}" for name, value in found.variables.items()]
    width = max((len(c.rung) for c in found.changes), default=0)
    lines += [f"+ {c.rung:<{width}}  {units.clean(c.changes)}  [{c.contract}]" for c in found.changes]
    if not found.changes:
        lines.append("  nothing: the recipe has no rungs")
    contracts = dict.fromkeys(change.contract for change in found.changes)
    lines += [f"  [{name}]: {_lower(NUMERICS[name])}" for name in contracts if name in NUMERICS and name != "exact"]
    most, least = (found.original.get(f"elements_at_{end}") for end in ("most", "least"))
    of_other_shapes = found.shapes
    if most is not None and least == most + 2:
        lines.append(
            "  inputs of another size than the measured one run on the untouched model: nothing was verified there"
        )
        most = least = None
        of_other_shapes = ""  # they are not compiled
    for words, count in (("at most", most), ("at least", least)):
        if count is not None:
            lines.append(
                f"  inputs of {words} {units.count(count)} elements run on the untouched model, which was faster there"
            )
    if of_other_shapes:
        lines.append(f"  {of_other_shapes}")
    measured = found.measured
    if speedup := units.number(measured.get("speedup")):
        gain = Ratio(value=speedup, low=measured.get("low"), high=measured.get("high"))
        lines.append(f"measured in the climb: {units.interval(gain)}")
    if found.status:
        lines.append(meaning(found.status, found.mode))
    if found.variables:
        lines.append("note: variables are read when a process starts; rung.apply cannot set them afterwards.")
    if found.fits:
        lines.append(f"fits {found.fits}: made for this model structure, mode, torch and device")
    lines += [f"note: {units.clean(text)}" for text in found.differs]
    if found.untold:
        of = ", ".join(found.untold)
        lines.append(
            f"note: the recipe does not state what it was made for ({of}), so Rung cannot tell whether it fits."
        )
    return lines
