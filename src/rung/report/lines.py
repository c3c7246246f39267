"""Short answers for the terminal: a measured baseline, a run in a list."""

from __future__ import annotations

from rung.records.climb import Baseline, ClimbRun, Facts
from rung.records.progress import Now
from rung.report import units
from rung.report.terminal import breakdown_lines
from rung.report.words import as_measured, recompilations, standing


def baseline_lines(baseline: Baseline) -> list[str]:
    """How long the untouched workload takes, and where the time goes."""
    lines = [
        f"baseline: {units.duration_interval(baseline.time)} a step; first run "
        f"{units.seconds(baseline.first_run_seconds)}; peak memory {units.data_size(units.peak(baseline.memory))}"
    ]
    if baseline.steady is False:
        lines.append("  note: it never became steady while warming up; the machine, or the workload, drifts.")
    names = baseline.without_gradient or []
    if names:
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        lines.append(f"  note: {len(names)} trainable parameters get no gradient: {shown}")
    parts = as_measured(baseline.breakdown, baseline.time)
    return lines + [f"  {line}" for line in breakdown_lines(parts)]


def graph_lines(facts: Facts) -> list[str]:
    """Where Dynamo breaks the graph, and what it captures again for a second batch of one shape, in the user's source;
    nothing where it captures one graph, once."""
    breaks, again = facts.graph_breaks, recompilations(facts)
    lines = []
    if breaks:
        lines.append(f"  note: torch.compile breaks the graph in {len(breaks)} place{'s' if len(breaks) > 1 else ''}:")
        lines += [f"    {units.clean(text)}" for text in breaks]
    if again:
        lines.append("  note: a second batch of the same shape is compiled anew:")
        lines += [f"    {text}" for text in again]
    return lines


def now_line(now: Now) -> str:
    """What a climb has and does at this moment, for a terminal's last line."""
    parts = [f"best so far {now.best} ({units.seconds(now.age)} ago)" if now.best else "no recipe yet"]
    for what, names in (("in the background", now.background), ("next", now.following)):
        if names:
            parts.append(f"{what}: {', '.join(map(units.clean, names))}")
    return " · ".join(parts)


def run_line(run: ClimbRun) -> str:
    """A run in a list: where, what, how it stands and what it gave."""
    manifest, result = run.manifest, run.result
    gain = units.interval(result.speedup) if result and result.speedup else "no speedup"
    status = f", {units.clean(result.status)}" if result and result.status else ""
    ended = gain + status + (", ended early" if manifest.why else "")
    outcome = ended if manifest.status == "complete" else standing(run)
    what = f"{manifest.workload.name} ({manifest.workload.mode}, {manifest.numerics})"
    return "  ".join(units.one_line(part) for part in (run.directory, what, outcome))
