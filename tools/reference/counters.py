"""Hardware counters: the figures that are computed from them, and the presets that collect them."""

from __future__ import annotations

from reference.markdown import code, page, sentence, table
from rung.analysis.counters.formulas import Form, Metric, formulas
from rung.profilers.counters import named
from rung.profilers.plan import OVERHEADS
from rung.profilers.presets import presets
from rung.toml import shipped

UNITS = {
    "_share": "fraction",
    "_bytes": "bytes",
    "_gb_per_s": "10⁹ bytes/s",
    "_per_s": "10¹² FLOP/s",
    "flops": "FLOP",
    "_ops": "operations",
    "_mhz": "MHz",
    "_latency": "cycles",
}


def counters() -> str:
    found, sets = formulas(), shipped("profilers/counters.toml")["sets"]
    facts = list(dict.fromkeys(name for of in found.arch.values() for name in of))
    return page(
        "Counters",
        "`rung profile --preset NAME` collects hardware counters. `rung analyze WORKLOAD --show counters` computes the figures below from "
        "them, one row for each kernel. A figure whose counters were not collected is null.",
        "`--show counter_formulas` lists the counters that your trace lacks. [Hardware counters](../internals/counters.md) explains "
        "verdicts and roofs.",
        "## Presets of `rung profile`",
        "A preset chooses the profiler and what it collects. `rung profile --preset NAME --dry-run -- PROGRAM` prints the commands.",
        table(
            ["preset", "what it answers", "profiler", "collects", "overhead"],
            [[code(p.name), sentence(p.says), code(p.tool), p.collects(), p.overhead] for p in presets().values()],
        ),
        table(["overhead", "what it means"], [[code(name), sentence(text)] for name, text in OVERHEADS.items()]),
        "## Counter sets",
        "`A` or `B` means the first of them that the GPU has. Rung reports counters that the GPU lacks and leaves them out.",
        table(
            ["set", "what it is for", "counters"],
            [
                [code(name), sentence(text["says"]), ", ".join(f"`{c}`".replace("|", "` or `") for c in named(name))]
                for name, text in sets.items()
            ],
        ),
        "## Figures",
        "Over several dispatches Rung adds up both sides of a ratio before it divides. A formula in lower case names a fact of the GPU "
        "or another figure: `ns` is the duration of the dispatch, and `cycles` is `GRBM_GUI_ACTIVE` of one XCD.",
        table(
            ["figure", "unit", "meaning", "formula", "definition"],
            [
                [code(name), _unit(name), sentence(metric.means), _formula(metric), metric.source]
                for name, metric in found.metrics.items()
            ],
        ),
        "## Facts of an architecture",
        "Facts that the trace states take precedence over these.",
        table(
            ["architecture", *facts],
            [
                [code(arch), *(f"{of[name]:g}" if name in of else "" for name in facts)]
                for arch, of in found.arch.items()
            ],
        ),
        "## Other names of a counter",
        table(
            ["in formulas", "in traces"], [[code(n), ", ".join(map(code, names))] for n, names in found.alias.items()]
        ),
    )


def _unit(name: str) -> str:
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), "number")


def _formula(metric: Metric) -> str:
    if metric.total:
        return f"sum of {', '.join(map(code, metric.total))}"
    return "<br>".join(_form(form) for form in metric.forms)


def _form(form: Form) -> str:
    """NVIDIA's traces state no architecture, so that `$` matches them alone."""
    text = f"({form.over}) / ({form.under})" if form.under else form.over
    return code(text) + {"": "", "$": " on NVIDIA"}.get(form.arch, f" on `{form.arch}`")
