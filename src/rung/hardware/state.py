"""How the machine is set up and how busy it is: read from the kernel and the GPU's driver, within a second, never failing.

What cannot be read is left out; a record of an environment must not stand in a measurement's way.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rung.hardware.device import Device
from rung.hardware.sensors import identity
from rung.hardware.sensors.kfd import nodes
from rung.hardware.sensors.nvml import Nvml

SYS, PROC = Path("/sys"), Path("/proc")
CROWDED = 0.8  # processes that want to run, for each of the machine's CPUs
PATIENCE = 2.0  # seconds for a driver's tool


def state(device: Device) -> tuple[dict[str, Any], dict[str, Any]]:
    """What stays as it is until somebody changes it (CPU governor, NUMA balancing, huge pages, and of a GPU its driver,
    power cap in W, highest clock in MHz and modes), and what changes by itself (load, the share of the CPUs that is
    busy, and of a GPU its clock in MHz, temperature in °C and the number of other processes on it)."""
    read = {"nvidia": _nvidia, "amd": _amd}.get(device.vendor)
    # Torch's number is of the GPUs that it is shown: driver and kernel know a GPU by its address, NVIDIA's tool by its UUID, too.
    gpu = identity(device) if read else None
    gpu_settings, gpu_now = read(gpu) if read and gpu and (gpu["bus"] or gpu["uuid"]) else ({}, {})
    return _known({**_cpu_settings(), **gpu_settings}), _known({**_cpu_now(), **gpu_now})


def crowded(load: Sequence[float], cpus: int) -> str | None:
    """What is to be said of a machine whose CPUs are taken. load: processes that want to run, as the kernel averages them over
    1, 5 and 15 minutes; cpus: all of the machine's, as it counts for all of them, whatever a container may use."""
    if not load or load[0] <= CROWDED * cpus:
        return None
    return f"load average {load[0]:.1f} on {cpus} CPUs: host-bound timings will be slow and noisy."


def _known(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if value not in (None, "")}


def _cpu_settings() -> dict[str, Any]:
    return {
        "cpu_governor": _line(SYS / "devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "cpu_boost": _line(SYS / "devices/system/cpu/cpufreq/boost"),
        "smt": _line(SYS / "devices/system/cpu/smt/active"),
        "numa_nodes": len(list((SYS / "devices/system/node").glob("node[0-9]*"))) or None,
        "numa_balancing": _line(PROC / "sys/kernel/numa_balancing"),
        "transparent_hugepage": _chosen(_line(SYS / "kernel/mm/transparent_hugepage/enabled")),
        "cpus_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
    }


def _cpu_now() -> dict[str, Any]:
    import psutil

    try:
        return {"load": [round(x, 2) for x in os.getloadavg()], "cpu_busy": round(psutil.cpu_percent(0.05) / 100, 2)}
    except OSError:
        return {}


def _nvidia(gpu: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Through the library, where its package is installed: the tool is a process more, and slower."""
    try:
        settings, now, pids = Nvml(gpu["uuid"], gpu["bus"], 0).settings()
    except Exception:  # no package, no library, no such GPU: each in a type of its own
        return _nvidia_smi(gpu["bus"] or gpu["uuid"])
    return settings, {**now, "gpu_other_processes": _others(pids)}


def _nvidia_smi(gpu: str) -> tuple[dict[str, Any], dict[str, Any]]:
    names = ("driver_version", "power.limit", "clocks.max.sm", "persistence_mode", "mig.mode.current", "clocks.sm",
             "temperature.gpu")  # fmt: skip
    asked = ["nvidia-smi", "-i", gpu]
    lines = _output([*asked, f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"])
    values = [v.strip() for v in lines[0].split(",")] if lines else []
    if len(values) != len(names):
        return {}, {}
    driver, cap, most, persistence, mig, clock, heat = values
    pids = _output([*asked, "--query-compute-apps=pid", "--format=csv,noheader"])
    return (
        {"gpu_driver": driver, "gpu_power_cap": _number(cap), "gpu_clock_most": _number(most),
         "gpu_persistence": persistence, "gpu_mig": mig},
        {"gpu_clock": _number(clock), "gpu_temperature": _number(heat), "gpu_other_processes": _others(pids)},
    )  # fmt: skip


def _amd(gpu: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    bus = gpu["bus"]
    card = SYS / "bus/pci/devices" / bus
    cap = next((_number(_line(p)) for p in sorted(card.glob("hwmon/hwmon*/power1_cap"))), None)
    # The junction, the hottest spot. Of older GPUs there is the edge alone.
    heats = [p for spot in (2, 1) for p in sorted(card.glob(f"hwmon/hwmon*/temp{spot}_input"))]
    heat = next((_number(_line(p)) for p in heats), None)
    clocks = _lines(card / "pp_dpm_sclk")  # "1: 2100Mhz *": the star marks the present one
    megahertz = [_number(line.partition(":")[2].lower().partition("mhz")[0]) for line in clocks]
    current = next((m for m, line in zip(megahertz, clocks, strict=True) if "*" in line), None)
    return (
        {"gpu_driver": _line(SYS / "module/amdgpu/version"), "gpu_power_cap": cap and cap / 1e6,
         "gpu_clock_most": max((m for m in megahertz if m), default=None),
         "gpu_performance_level": _line(card / "power_dpm_force_performance_level"),
         "gpu_partition": _line(card / "current_compute_partition")},
        {"gpu_clock": current, "gpu_temperature": heat and heat / 1e3,
         "gpu_other_processes": _others(_users(bus))},
    )  # fmt: skip


def _users(bus: str) -> list[str] | None:
    """The processes that hold memory of a GPU: the driver lists each with all GPUs that it sees. None where an older one does not say."""
    names = [f"vram_{node.number}" for node in nodes(SYS) if node.bus == bus]
    folders = list(SYS.glob("class/kfd/kfd/proc/[0-9]*"))
    held = {folder.name: [_number(_line(folder / name)) for name in names] for folder in folders}
    if folders and not any(amount is not None for amounts in held.values() for amount in amounts):
        return None
    return [pid for pid, amounts in held.items() if any(amounts)]


def _others(pids: Sequence[str] | None) -> int | None:
    """How many of these processes are not this one or its parents. One in another container may have our number."""
    if pids is None:
        return None
    mine = {str(os.getpid()), str(os.getppid())}
    return sum(pid.strip().isdigit() and pid.strip() not in mine for pid in pids)


def _output(command: list[str]) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.strip().splitlines()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").strip().splitlines()
    except OSError:
        return []


def _line(path: Path) -> str | None:
    return next(iter(_lines(path)), None)


def _chosen(line: str | None) -> str | None:
    """ "always [madvise] never" -> "madvise"."""
    return line.partition("[")[2].partition("]")[0] if line and "[" in line else line


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
