"""Short answers for the terminal: a measured baseline, a bench, a run in a list."""

from __future__ import annotations

from typing import Any

from rung.report import units
from rung.report.terminal import breakdown_lines


def baseline_lines(baseline: dict[str, Any]) -> list[str]:
    """How long the untouched workload takes, and where the time goes."""
    lines = [
        f"baseline: {units.duration_interval(baseline['time'])} a step; first run "
        f"{units.seconds(baseline['first_run_seconds'])}; peak memory {units.data_size(units.peak(baseline['memory']))}"
    ]
    if not baseline.get("steady", True):
        lines.append("  note: it never became steady while warming up; the machine, or the workload, drifts.")
    names = baseline.get("without_gradient") or []
    if names:
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        lines.append(f"  note: {len(names)} trainable parameters get no gradient: {shown}")
    return lines + [f"  {line}" for line in breakdown_lines(baseline.get("breakdown"))]


def bench_lines(result: dict[str, Any]) -> list[str]:
    """One measurement: median, interval, throughput, memory; compile time apart."""
    step = result["time"]["value"]
    device = result["environment"]["device"]["name"]
    lines = [
        f"{result['workload']}, {result['mode']}, on {device}"
        + (f", with {' + '.join(result['rungs'])}" if result["rungs"] else ""),
        f"median step   {units.duration_interval(result['time'])}, 95 % interval, {len(result['samples'])} samples",
    ]
    lines += [
        f"throughput    {units.digits(n / step * 1e9)} {what}/s"
        for what, n in (("samples", result["samples_per_step"]), ("tokens", result["tokens_per_step"]))
        if n
    ]
    lines += [
        f"first run     {units.seconds(result['first_run_seconds'])} (compiling and loading; not part of the median)",
        f"warm-up       {result['warm_up_runs']} runs, {'then steady' if result['steady'] else 'and still not steady'}",
        f"peak memory   {units.data_size(units.peak(result['memory']))}",
    ]
    return lines


def run_line(data: dict[str, Any]) -> str:
    """A run in a list: where, what, how it stands and what it gave."""
    manifest, result = data["manifest"], data["result"] or {}
    gain = units.interval(result["speedup"]) if result.get("speedup") else "no speedup"
    outcome = gain if manifest["status"] == "complete" else manifest["status"]
    workload = manifest["workload"]
    return f"{data['directory']}  {workload['name']} ({workload['mode']}, {manifest['numerics']})  {outcome}"
