"""The analyses by name: what `rung analyze --show` and `rung query` know. A new one is one line here.

Each is a function `(trace, *, steps) -> table` in a file of its own. Its docstring says what a row is, and has a line `column: meaning`
for each column that COLUMNS does not explain. Times are integer nanoseconds in columns ending in `_ns`, sizes end in `_bytes`, shares
are fractions ending in `share`.
"""

from __future__ import annotations

import inspect
import re
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from rung.errors import UsageError

if TYPE_CHECKING:
    import polars as pl

    from rung.trace.table import Trace


class Analysis(NamedTuple):
    question: str
    where: str  # "module:function", imported when it is asked for


ANALYSES = {
    "findings": Analysis("What should be done first?", "rung.analysis.findings:findings"),
    "targets": Analysis("Are the most important figures on target?", "rung.analysis.targets:targets"),
    "timeline": Analysis("How busy was each GPU, and with what?", "rung.analysis.timeline:timeline"),
    "completeness": Analysis(
        "What is not in the figures, or counted separately?", "rung.analysis.overview:completeness"
    ),
    "critical_path": Analysis("Which work sets the pace?", "rung.analysis.critical_path:critical_path"),
    "what_if": Analysis("How much faster would it be without some of the work?", "rung.analysis.what_if:what_if"),
    "communication": Analysis(
        "What do collectives cost a step, and how fast are they?", "rung.analysis.communication:communication"
    ),
    "collectives": Analysis(
        "How long did each collective take, wait and hide?", "rung.analysis.collectives:collectives"
    ),
    "skew": Analysis("Do the ranks arrive together, and is one missing?", "rung.analysis.skew:skew"),
    "stragglers": Analysis("Which rank was late, when, and what did it do?", "rung.analysis.stragglers:stragglers"),
    "slow_groups": Analysis("Which group of ranks has a slow link?", "rung.analysis.slow_groups:slow_groups"),
    "scaling": Analysis(
        "How much do ranks lose to imbalance, communication and their hosts?", "rung.analysis.scaling:scaling"
    ),
    "categories": Analysis("What kind of work takes the GPU's time?", "rung.analysis.spending:categories"),
    "kernels": Analysis("Which kernels take the GPU's time?", "rung.analysis.spending:kernels"),
    "ops": Analysis("Which operators, at which shapes, take the GPU's time?", "rung.analysis.spending:ops"),
    "modules": Analysis("Which kinds of nn.Modules take the GPU's time?", "rung.analysis.modules:modules"),
    "layers": Analysis("Which nn.Modules, one by one, take the GPU's time?", "rung.analysis.modules:layers"),
    "call_sites": Analysis("Which lines of Python take the GPU's time?", "rung.analysis.spending:call_sites"),
    "launches": Analysis("Does the host keep the GPU busy?", "rung.analysis.launches:launches"),
    "runtime": Analysis("What does the host spend on calls of the GPU's runtime?", "rung.analysis.launches:runtime"),
    "syncs": Analysis("Where does the host stop and wait for the GPU?", "rung.analysis.launches:syncs"),
    "durations": Analysis("How long are the GPU events (histogram)?", "rung.analysis.spending:durations"),
    "queue": Analysis("How much launched work waits for the GPU, over time?", "rung.analysis.launches:queue"),
    "compilation": Analysis(
        "Was something compiled, captured, loaded or allocated that should have been ready?",
        "rung.analysis.compilation:compilation",
    ),
    "idle": Analysis("Why is the GPU idle?", "rung.analysis.gaps:idle"),
    "gaps": Analysis("When is the GPU idle, gap by gap, and why?", "rung.analysis.gaps:gaps"),
    "streams": Analysis("What does each stream wait for?", "rung.analysis.streams:streams"),
    "memory": Analysis("How much memory was used, at most?", "rung.analysis.memory:memory"),
    "memory_peak": Analysis("What held the memory at the peak?", "rung.analysis.memory:memory_peak"),
    "memory_timeline": Analysis("How much memory was used, over time?", "rung.analysis.memory:memory_timeline"),
    "copies": Analysis("What is copied, in which direction, and how fast?", "rung.analysis.spending:copies"),
    "roofline": Analysis("How close is each operator to what the GPU can do?", "rung.analysis.roofline:roofline"),
    "serving": Analysis(
        "How fast are prefill and decode of an inference server, and how near to the roof?",
        "rung.analysis.serving:serving",
    ),
    "serving_steps": Analysis("What is each step of an inference server?", "rung.analysis.serving:serving_steps"),
    "counters": Analysis("What do the hardware counters say of each kernel?", "rung.analysis.counters:counters"),
    "counter_roofline": Analysis(
        "How close is each kernel to each roof, by hardware counters?", "rung.analysis.counters:counter_roofline"
    ),
    "dispatch_counters": Analysis(
        "What do the counters say of each dispatch?", "rung.analysis.counters:dispatch_counters"
    ),
    "counter_formulas": Analysis(
        "What does each counter figure mean, and which counters does it lack?", "rung.analysis.counters:formulas"
    ),
}


def table(name: str, trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """The answer of one analysis. Raises UsageError where there is none of this name."""
    from rung.analysis.once import answers

    known = answers(trace)
    if (name, steps) not in known:
        known[name, steps] = getattr(*_place(name))(trace, steps=steps)
    return known[name, steps]


# What a column means wherever it occurs, unless the analysis says otherwise.
COLUMNS = {
    "rank": "the process in its distributed run",
    "device": "the GPU, as the runtime counts",
    "step": "the profiler's step",
    "category": "the kind of work (`categories.toml`, and your own)",
    "detail": "the kind within the category, as in attention, backward",
    "cumulative_share": "the share of this row and all rows above it",
    "dims": "the shapes of its inputs, as recorded",
    "dtypes": "their dtypes, as recorded",
    "strides": "their strides, as recorded",
    "call_site": "the innermost function of your program and its libraries around it, if stacks were recorded",
    "collective": "the kind, as in all_reduce",
    "group": "the process group",
    "group_size": "how many ranks the group has",
    "dtype": "of the data",
    "size_bytes": "as nccl-tests counts it: the buffer of all_reduce, broadcast and reduce; the larger side of all_gather and reduce_scatter",
}


class Described(NamedTuple):
    """rows: what a row of the table is, and what holds for all columns. columns: names, as many as share a meaning, and the meaning."""

    rows: str
    columns: dict[tuple[str, ...], str]


def described(name: str) -> Described:
    """What the docstring of an analysis says of its table."""
    text = inspect.getdoc(getattr(*_place(name))) or ""
    lines = re.compile(r"^([a-z]\w*(?:, [a-z]\w*)*): (.+(?:\n    .+)*)\n?", re.MULTILINE)
    columns = {tuple(found[1].split(", ")): " ".join(found[2].split()) for found in lines.finditer(text)}
    return Described(lines.sub("", text).strip(), columns)


def check_name(name: str) -> None:
    """Raises UsageError where no analysis has this name, with the one that is like it."""
    if name not in ANALYSES:
        near = get_close_matches(name, ANALYSES, 1)
        known = f"did you mean {near[0]}?" if near else f"there are {', '.join(ANALYSES)}."
        raise UsageError(f"there is no analysis {name!r}; {known}")


def _place(name: str) -> tuple[object, str]:
    check_name(name)
    module, function = ANALYSES[name].where.split(":")
    return import_module(module), function
