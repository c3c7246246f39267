"""What it runs on: devices, their peaks, the environment."""

from rung.hardware.device import Device, pick
from rung.hardware.environment import environment
from rung.hardware.peaks import Peaks, peaks_of

__all__ = ["Device", "Peaks", "environment", "peaks_of", "pick"]
