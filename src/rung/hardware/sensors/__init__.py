"""What a GPU says of itself while it works: power, energy, clocks, temperature, throttling."""

from rung.hardware.sensors.find import identity, sensor_for, sensors_here
from rung.hardware.sensors.reading import Reading, Sensor, joules
from rung.hardware.sensors.watch import Watch

__all__ = ["Reading", "Sensor", "Watch", "identity", "joules", "sensor_for", "sensors_here"]
