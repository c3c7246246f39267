"""What a trace says, on one screen."""

from __future__ import annotations

from rung.analysis.analyses import table
from rung.analysis.kernel_names import readable
from rung.analysis.overview import overview
from rung.records.analyze import Breakdown, Counted, Finding, OfRank, Overview
from rung.records.record import record_of
from rung.report import breakdowns, units
from rung.report.findings import findings_lines
from rung.report.headlines import headlines
from rung.report.ranks import across_lines, mean_of_ranks, rank_lines
from rung.report.tables import shortened
from rung.report.terminal import breakdown_lines
from rung.trace import Trace

TOP = 10
NOTHING = (
    "The trace has no timed event: nothing ran while the profiler recorded, or its schedule never reached an active step. "
    "Record again around the work."
)
UNKNOWN = "number unknown"  # how a reader ends what it could not count


def answer(trace: Trace, steps: int, note: str = "") -> Overview:
    """The overview of a trace, its findings and its headlines. steps: by how many its figures are divided; note: what there is to say
    of that."""
    found = overview(trace, steps=steps)
    found.notes += [note] if note else []
    found.findings = record_of(list[Finding], table("findings", trace, steps=steps).to_dicts())
    without = () if trace.counters.height else ("counters",)  # its formulas take as long to read as a small trace
    found.headlines = headlines(lambda name: table(name, trace, steps=steps), steps, without)
    return found


def analyze_lines(found: Overview, width: int = 100, top: int | None = None) -> list[str]:
    """The bottleneck and what to do first; the GPUs, where the time went and the kernels that took most of it (of several
    ranks beside each other); then a sentence of each analysis.

    top: how many kernels, 0 for all that the overview has; left out, few.
    """
    lines = _facts(found, width)
    many, findings = found.ranks > 1, found.findings
    steps, record = found.steps, step_of(found)
    what = "step" if steps > 1 else "recording"
    if record and record.bottleneck:
        clock = f" ({units.clean(record.clock).upper()} time{', mean of the ranks' if many else ''})"
        text = f"{breakdowns.bottleneck(record, what)}{clock}."
        if findings and findings[0].finding == "straggler":  # what the ranks' own times cannot show
            text = f"{findings[0].what}, {units.percent(round(findings[0].share, 2))} of the {what}. Most time: {text}"
        lines += ["", *units.wrapped(f"Bottleneck: {text}", width, rest="  ")]
    if findings:
        lines += ["", *findings_lines(findings, width)]
    elif found.merged:
        lines += ["", "Do first: nothing stands out between ranks. For what one rank can do: rung analyze ITS_TRACE"]
    elif record and record.clock == "gpu":
        lines += ["", "Do first: nothing stands out (--show targets,roofline has the figures)."]
    if many and found.across:
        for block in (rank_lines(found, width), across_lines(found.across, steps, width, top)):
            lines += ["", *block] if block else []
    else:
        for part in found.parts:
            lines += ["", *_part(part, width, steps, top)]
    said = found.headlines
    if said:
        margin = max(map(len, said)) + 2
        lines.append("")
        for name, text in said.items():
            lines += units.wrapped(f"{name:<{margin}}{units.clean(text)}", width, rest=" " * margin)
        lines.append("As tables: rung analyze PATH --show NAME,NAME (--show list: all of them)")
    return lines


def step_of(found: Overview) -> Breakdown | None:
    """Where the time of a step goes, of several ranks in their mean; None where there is nothing to break down."""
    if found.ranks > 1:
        return mean_of_ranks(found.across, found.steps) if found.across else None
    return found.parts[0].breakdown if found.parts else None


def _facts(found: Overview, width: int) -> list[str]:
    """What the trace is, and what there is to know before its figures are read."""
    gpus = f", {units.clean(', '.join(found.gpus))}" if found.gpus else ""
    counters = f", {units.count(found.counters)} counter values" if found.counters else ""
    steps = f", {found.steps} steps" if found.steps > 1 else ""
    many = f", {found.ranks} ranks" if found.ranks > 1 else ""
    head = f"{found.format}, {units.count(found.events)} events{counters}{steps}{many}{gpus}"
    source = f"{units.clean(found.source)}:"
    lines = [f"{source} {head}"] if len(source) + 1 + len(head) <= width else [source, *units.wrapped(head, width, "  ", "  ")]  # fmt: skip
    for in_table, where in ((False, "not in the table"), (True, "also counted")):
        rows = [row for row in found.completeness if row.in_table is in_table]
        if rows:
            lines += units.wrapped(f"{where}: {', '.join(map(_counted, rows))}", width, rest="  ")
    for note in found.notes:
        lines += units.wrapped(f"note: {units.clean(note)}", width, rest="  ")
    if not found.events and not found.counters:
        lines += units.wrapped(NOTHING, width)
    return lines


def _counted(row: Counted) -> str:
    time = f" ({units.duration(row.time_ns)})" if row.time_ns else ""
    many = "" if row.what.endswith(UNKNOWN) else f"{units.count(row.events)} x "
    return f"{many}{units.clean(row.what)}{time}"


def _part(part: OfRank, width: int, steps: int, top: int | None) -> list[str]:
    lines = []
    record = part.breakdown
    for row in part.timeline:
        total = max(row.total_ns, 1)
        times = {
            "computation": row.computation_ns,
            "exposed communication": row.exposed_communication_ns,
            "exposed copies": row.exposed_memcpy_ns,
            "idle": row.idle_ns,
        }
        said = [
            f"{what} {units.percent(round(ns / total, 3))}"
            for what, ns in times.items()
            if ns or what in ("computation", "idle")
        ]
        kernels = f"{units.count(row.kernels)} kernel{'s' if row.kernels != 1 else ''}"
        text = f"GPU {row.device}: {units.duration(row.total_ns)}, of it {', '.join(said)}; {kernels}"
        lines += units.wrapped(text, width, rest="  ")
    if record is None:
        return [*lines, "it has no GPU events and no operators, so there is no time to break down."]
    what = f"A step, the mean of {steps}" if steps > 1 else "The recording"
    lines.append(f"{what}: {units.duration(record.step_ns)}")
    for line in breakdown_lines(record, bottleneck=False):
        lines += units.wrapped(line, width, "  ", "    ") if line.startswith("Note") else [f"  {line}"]  # fmt: skip
    if record.top:
        lines.append("  most time:")
        most = record.top[: TOP if top is None else top or None]
        longest = max(len(units.duration(ns)) for _, _, ns, _ in most)
        kinds = breakdowns.kind_column((category for _, category, _, _ in most), record.clock)
        for kind, (title, _, ns, count) in zip(kinds, most, strict=True):
            share = ns / record.step_ns if record.step_ns else 0.0
            start = f"    {units.duration(ns):>{longest}}  {share:>4.0%}  {kind} {_times(count):>6} x  "
            lines.append(start + shortened(readable(units.one_line(title)), max(20, width - len(start))))
    return lines


def _times(count: float) -> str:
    """How often in a step: "0.5", "36", "1.2 k"."""
    return f"{count:.2g}" if count < 10 and count != int(count) else units.count(count)
