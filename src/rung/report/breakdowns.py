"""Where a step's time goes, in words: every report shows the parts by the same ones, in the same order."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from rung.records.analyze import Breakdown
from rung.records.measured import Figure
from rung.report import units

# The order of the legend; every report shows the parts with the same words.
PARTS = {
    "gemm": "matrix products",
    "attention": "attention",
    "convolution": "convolution",
    "pointwise": "pointwise",
    "optimizer": "optimizer",
    "communication": "communication",
    "copy": "copies",
    "other": "other kernels",
    "launch_gap": "waiting for a launch",
    "idle": "idle",
}
ON_THE_HOST = {"other": "other operators", "launch_gap": "Python and dispatch"}


def part(key: str, clock: str | None = None) -> str:
    """The words for a part. On the host's clock there are operators and no kernels, and what lies outside of them is not a
    wait for a launch."""
    here = {**PARTS, **ON_THE_HOST} if clock == "cpu" else PARTS
    return here.get(key, units.clean(key))


def kind(category: str, clock: str | None = None) -> str:
    """A category of work in the words of the part that it belongs to: elementwise -> "pointwise: elementwise"."""
    from rung.analysis.breakdown import part_of  # polars, which the page of a climb does without

    if category not in PARTS and part_of(category) == "pointwise":
        return f"{PARTS['pointwise']}: {category}"
    return part(category, clock)


def kind_column(categories: Iterable[str], clock: str | None = None) -> list[str]:
    """Categories of work in those words, all as wide as the longest."""
    words = [kind(category, clock) for category in categories]
    width = max(map(len, words), default=0)
    return [word.ljust(width) for word in words]


def parts(breakdown: Breakdown | None) -> list[tuple[str, str, float]]:
    """(key, title, ns per step) of the parts that take any time; unknown ones last, under their own name."""
    if breakdown is None:
        return []
    found = breakdown.parts
    order = [*PARTS, *(key for key in found if key not in PARTS)]
    known = ((key, part(key, breakdown.clock), units.number(found.get(key))) for key in order)
    return [(key, title, value) for key, title, value in known if value is not None and value > 0]


def as_measured(breakdown: Breakdown | None, time: Figure | None) -> Breakdown | None:
    """The breakdown of a step that takes this time: the profiled one took another time, and its shares are what is known."""
    taken, measured = parts(breakdown), units.number(time.value) if time else None
    whole = sum(value for _, _, value in taken)
    if breakdown is None or not measured or not whole:
        return breakdown
    scaled = {key: value * measured / whole for key, _, value in taken}
    return replace(breakdown, parts=scaled, step_ns=measured)


def bottleneck(breakdown: Breakdown | None, whole: str = "step") -> str:
    """Such as "matrix products, 42% of the step"; "" where there is none."""
    if breakdown is None or not breakdown.bottleneck:
        return ""
    key = breakdown.bottleneck
    title = part(key, breakdown.clock)
    other = {"launch_gap": "idle", "idle": "launch_gap"}.get(key)  # the share is of both
    taken = units.number(breakdown.parts.get(other)) or 0.0 if other else 0.0
    if other and taken >= 0.01 * (units.number(breakdown.step_ns) or 0.0) > 0:
        title += f" and {part(other, breakdown.clock)}"
    return f"{title}, {units.percent(breakdown.share)} of the {whole}"


def per_step(breakdown: Breakdown) -> str:
    """Such as "310 kernels, 290 launches, 48 matrix products per step", without the last words of a single step, and without
    what there was none of, as kernels on a CPU."""
    counts = (
        (breakdown.kernels, "kernel", "s"),
        (breakdown.launches, "launch", "es"),
        (breakdown.gemms, "matrix product", "s"),
    )
    found = [
        f"{units.count(count)} {one}{'' if count == 1 else more}" for count, one, more in counts if units.number(count)
    ]
    return f"{', '.join(found)}{' per step' if breakdown.steps != 1 else ''}" if found else ""
