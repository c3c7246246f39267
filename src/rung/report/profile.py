"""What was recorded and what it cost; the presets there are."""

from __future__ import annotations

import shlex
import textwrap

from rung.program import program
from rung.records.profile import Presets, Profile, SampledGpu, SampledRank, StepEnergy
from rung.report import units
from rung.report.over_ranks import aligned, extremes, ranks_left_out


def profile_lines(record: Profile, width: int = 100) -> list[str]:
    """The recording in a few lines: the profiler, where it is, the overhead, what was left out."""
    plan = record.plan
    lines = [f"{plan.profiler} {plan.version}".rstrip() + f": {plan.collects}"]
    folder = units.clean(record.folder)
    lines += [f"kept in {folder}", f"read it again: {program()} analyze {shlex.quote(folder)}"]
    if cost := record.overhead:
        recorded, bare = units.duration(cost.recorded_ns), units.duration(cost.bare_ns)
        lines.append(f"a step took {recorded} while it was recorded and {bare} otherwise ({_longer(cost.share)}; "
                     f"{_of(cost.steps)}): the times below are the recorded ones.")  # fmt: skip
    if record.sensors:
        lines += [_sensors(gpu) for gpu in record.sensors.gpus]
        lines += [_energy(record.sensors.step)] if record.sensors.step else []
    if record.ranks:
        lines += rank_sensor_lines(record.ranks)
    for note in record.notes:
        lines += textwrap.wrap(f"note: {units.clean(note)}", width, subsequent_indent="  ")
    return lines


def rank_sensor_lines(ranks: list[SampledRank]) -> list[str]:
    """A row a rank of what its GPU's sensors said, and a line about clocks that were held down."""
    if all(one.gpu is None for one in ranks):
        return []
    rows = [("rank", "host", "GPU", "power", "at most", "a step", "in use", "hottest", "clock")]
    for one in extremes(ranks, lambda one: (one.step and one.step.mean_w) or 0.0):
        gpu, step = one.gpu, one.step
        rows.append(
            (
                str(one.rank),
                units.clean(one.host),
                str(gpu.gpu) if gpu else units.NONE,
                _figure(step.mean_w if step else None, "W"),
                _figure(gpu.most_w if gpu else None, "W"),
                units.energy(step.energy_j if step else None),
                units.data_size(gpu.most_bytes) if gpu and gpu.most_bytes is not None else units.NONE,
                _figure(gpu.most_celsius if gpu else None, "°C"),
                _figure(gpu.core_mhz if gpu else None, "MHz"),
            )
        )
    lines = ["", *aligned(rows), *ranks_left_out(ranks)]
    lines.append("power, a step: of the steps without the profiler; in use: memory of the GPU, of all processes")
    spent = [one.step.energy_j for one in ranks if one.step and one.step.energy_j is not None]
    if len(spent) == len(ranks):
        lines.append(f"energy of a step: {units.energy(sum(spent))} over all ranks")
    return lines + [
        f"rank {one.rank} on {units.clean(one.host)}: {_held_down(one.gpu)}"
        for one in ranks
        if one.gpu and one.gpu.throttled
    ]


def _figure(value: float | None, unit: str) -> str:
    return units.NONE if value is None else f"{value:.0f} {unit}"


def _held_down(gpu: SampledGpu) -> str:
    return f"clocks held down in {gpu.throttled_share:.0%} of the samples ({units.clean(gpu.throttled or '')})"


def _longer(share: float) -> str:
    """By what share a recorded step took longer."""
    if share <= 0:
        return "within the noise"
    return f"{share:+.0%}" if share <= 1 else f"{units.ratio(1 + share)} as long"


def _of(steps: int) -> str:
    return "one step each" if steps == 1 else f"medians of {steps}"


def _energy(step: StepEnergy) -> str:
    over = f"{step.steps} steps without the profiler, {step.seconds:.2g} s"
    if step.energy_j is None:
        return f"energy of a step: not known, {step.samples} samples fell into {over}: give a higher --rate"
    return f"energy of a step: {step.energy_j:.3g} J on GPU {step.gpu} at {step.mean_w:.0f} W ({over})"


def _sensors(gpu: SampledGpu) -> str:
    """One GPU's sensors in a line; what it does not report is left out."""
    figures = ((gpu.mean_w, "W on average"), (gpu.most_w, "W at most"), (gpu.energy_j, "J"), (gpu.most_celsius, "°C at most"),
               (gpu.core_mhz, "MHz"))  # fmt: skip
    said = [f"{value:.0f} {unit}" for value, unit in figures if value is not None]
    said += [f"{gpu.most_bytes / 2**30:.2f} GiB in use at most"] if gpu.most_bytes is not None else []
    said += [_held_down(gpu)] if gpu.throttled else []
    return f"GPU {gpu.gpu}: {', '.join(said) or 'no sensor answered'}"


def preset_lines(listed: Presets, width: int = 100) -> list[str]:
    margin = max(len(row.name) for row in listed.presets) + 2
    lines = []
    for row in listed.presets:
        lines += textwrap.wrap(f"{row.name:<{margin}}{row.says}", width, subsequent_indent=" " * margin)
        told = f"{row.with_}: {row.collects}. Overhead: {row.overhead}. Read by: {row.read_by}."
        lines += textwrap.wrap(told, width, initial_indent=" " * margin, subsequent_indent=" " * margin)
    lines += ["", "overhead:"]
    for name, text in listed.overheads.items():
        lines += textwrap.wrap(f"  {name:<{margin - 2}}{text}", width, subsequent_indent=" " * margin)
    lines += ["", "here:"]
    for name, tool in listed.profilers.items():
        lines.append(f"  {name:<24}" + (f"{tool.path} ({tool.version})" if tool else "not on PATH"))
    return lines
