"""Is this machine set up to be fast, and to measure honestly? Probes that read and never fail (docs/doctor.md)."""

from rung.hardware.doctor.audit import audit
from rung.hardware.doctor.line import Line
from rung.hardware.doctor.machine import Machine

__all__ = ["Line", "Machine", "audit"]
