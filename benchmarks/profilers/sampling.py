"""What sampling costs: `python sampling.py [--seconds 5]` prints a row a rate.

Of this machine's GPUs where their sensors can be read; else of eight made GPUs, as the amdgpu driver shows them in /sys: the same
code reads files of an ordinary disk, which leaves out what the driver itself takes to answer.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from rung.hardware.sensors import Sensor, sensors_here
from rung.hardware.sensors.sysfs import Sysfs
from rung.profilers.sampling import Sampling

FILES = {
    "vendor": "0x1002", "mem_info_vram_used": "1024", "mem_info_vram_total": "206141652992", "gpu_busy_percent": "87",
    "mem_busy_percent": "31", "pp_dpm_sclk": "0: 132Mhz\n1: 2100Mhz *", "pp_dpm_mclk": "0: 900Mhz\n1: 1300Mhz *",
    "hwmon/hwmon1/power1_input": "612000000", "hwmon/hwmon1/power1_cap": "750000000",
    "hwmon/hwmon1/temp2_input": "61000", "hwmon/hwmon1/freq1_input": "2100000000",
}  # fmt: skip


def made(root: Path, gpus: int = 8) -> list[Sensor]:
    for gpu in range(gpus):
        for name, text in FILES.items():
            path = root / f"card{gpu}" / "device" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
    return [Sysfs(None, gpu, root) for gpu in range(gpus)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5.0, help="of each rate")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        sensors = sensors_here()
        source = sensors[0].source if sensors else "made files of amdgpu"
        sensors = sensors or made(Path(folder) / "drm")
        print(f"{len(sensors)} GPUs, {source}")
        for rate in (1, 10, 100):
            with Sampling(Path(folder) / str(rate), rate, sensors) as watched:
                time.sleep(seconds)
            print(f"{rate:>4} rounds/s asked: {watched.overhead}")


if __name__ == "__main__":
    main()
