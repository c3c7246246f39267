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

SYS, PROC = Path("/sys"), Path("/proc")
CROWDED = 0.8  # processes that want to run, for each of the machine's CPUs
PATIENCE = 2.0  # seconds for a driver's tool


def state(device: Device) -> tuple[dict[str, Any], dict[str, Any]]:
    """What stays as it is until somebody changes it (CPU governor, NUMA balancing, huge pages, and of a GPU its driver,
    power cap in W, highest clock in MHz and modes), and what changes by itself (load, the share of the CPUs that is
    busy, and of a GPU its clock in MHz, temperature in °C and the number of other processes on it)."""
    gpu = {"nvidia": _nvidia, "amd": _amd}.get(device.vendor)
    gpu_settings, gpu_now = gpu(device) if gpu else ({}, {})
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


def _nvidia(device: Device) -> tuple[dict[str, Any], dict[str, Any]]:
    names = ("driver_version", "power.limit", "clocks.max.sm", "persistence_mode", "mig.mode.current", "clocks.sm",
             "temperature.gpu")  # fmt: skip
    asked = ["nvidia-smi", "-i", _pci(device) or str(device.index)]
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


def _amd(device: Device) -> tuple[dict[str, Any], dict[str, Any]]:
    card = SYS / "bus/pci/devices" / _pci(device)
    cap = next((_number(_line(p)) for p in sorted(card.glob("hwmon/hwmon*/power1_cap"))), None)
    heat = next((_number(_line(p)) for p in sorted(card.glob("hwmon/hwmon*/temp1_input"))), None)
    clocks = _lines(card / "pp_dpm_sclk")  # "1: 2100Mhz *": the star marks the present one
    megahertz = [_number(line.partition(":")[2].lower().partition("mhz")[0]) for line in clocks]
    current = next((m for m, line in zip(megahertz, clocks, strict=True) if "*" in line), None)
    return (
        {"gpu_driver": _line(SYS / "module/amdgpu/version"), "gpu_power_cap": cap and cap / 1e6,
         "gpu_clock_most": max((m for m in megahertz if m), default=None),
         "gpu_performance_level": _line(card / "power_dpm_force_performance_level"),
         "gpu_partition": _line(card / "current_compute_partition")},
        {"gpu_clock": current, "gpu_temperature": heat and heat / 1e3,
         "gpu_other_processes": _others([p.name for p in SYS.glob("class/kfd/kfd/proc/[0-9]*")])},
    )  # fmt: skip


def _pci(device: Device) -> str:
    """The PCI address of a GPU ("0000:c1:00.0"), by which driver and kernel know it; empty where torch does not tell."""
    import torch

    p = torch.cuda.get_device_properties(device.index)
    bus, slot = getattr(p, "pci_bus_id", None), getattr(p, "pci_device_id", None)
    if bus is None or slot is None:
        return ""
    return f"{getattr(p, 'pci_domain_id', 0):04x}:{bus:02x}:{slot:02x}.0"


def _others(pids: Sequence[str]) -> int:
    """How many of these processes are not this one or its parents. One in another container may have our number."""
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
