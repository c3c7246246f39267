"""Is this machine set up to be fast, and to measure honestly? Probes that read and never fail (docs/how-to/check-the-machine.md), and all of them in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rung.hardware.doctor import caches, gpus, profilers, software, system, variables
from rung.hardware.doctor.machine import Machine
from rung.records.doctor import UNKNOWN, Line

__all__ = ["Machine", "audit"]


def audit(machine: Machine) -> list[Line]:
    """Every line of the audit. Nothing is changed, nothing raises: what cannot be read is a line of level "unknown"."""
    try:
        here = gpus.look(machine)
        asked = software.ask(machine, here), gpus.ask(machine)
        probes: tuple[tuple[str, Callable[[], Iterable[Line]]], ...] = (
            ("system", lambda: system.lines(machine, here)),
            ("variables", lambda: variables.lines(machine, here)),
            ("caches", lambda: caches.lines(machine, here)),
            ("profilers", lambda: profilers.lines(machine, here)),
            ("GPU", lambda: gpus.lines(machine, here, asked[1])),
            ("software", lambda: software.lines(machine, here, asked[0])),
        )
        found = {name: _safe(name, probe) for name, probe in probes}
        # What is asked of other processes is waited for last, and told first.
        order = ("GPU", "software", "system", "variables", "caches", "profilers")
        return [line for name in order for line in found[name]]
    finally:
        machine.close()


def _safe(name: str, probe: Callable[[], Iterable[Line]]) -> list[Line]:
    """A probe that meets something that nobody thought of costs its own lines, not the audit."""
    lines: list[Line] = []
    try:
        lines.extend(probe())
    except Exception as error:
        lines.append(Line(name, "probe", f"stopped: {type(error).__name__}: {error}", UNKNOWN))
    return lines
