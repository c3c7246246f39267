"""Which profilers are here, and may they read counters?"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping

from rung.hardware.doctor.gpus import Here
from rung.hardware.doctor.machine import Machine
from rung.records.doctor import NOTE, OK, UNKNOWN, WARN, Line

# Executables of one tool: any of them will do.
_TOOLS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "amd": {
        "rocprofv3": ("rocprofv3",),
        "rocprof (legacy)": ("rocprof", "rocprofv2"),
        "rocprof-compute": ("rocprof-compute", "omniperf"),
        "rocprof-sys": ("rocprof-sys-run", "rocprof-sys-sample", "omnitrace-run"),
        "amd-smi": ("amd-smi", "rocm-smi"),
    },
    "nvidia": {"Nsight Systems": ("nsys",), "Nsight Compute": ("ncu",), "nvidia-smi": ("nvidia-smi",)},
}
_NEEDED = ("rocprofv3", "Nsight Systems", "Nsight Compute")


def lines(machine: Machine, here: Here) -> Iterator[Line]:
    vendors = [here.vendor] if here.vendor else ["amd", "nvidia"]
    for vendor in vendors:
        for tool, names in _TOOLS[vendor].items():
            path = next(filter(None, map(machine.which, names)), None)
            if path:
                yield Line("profilers", tool, path)
            elif here.vendor and tool in _NEEDED:
                yield Line("profilers", tool, "not found", NOTE, None, "torch.profiler works without it; counters do not",
                           ("# it comes with ROCm: is its bin folder on the PATH?",) if vendor == "amd" else ())  # fmt: skip
    if here.vendor == "amd":
        yield _amd_counters(machine)
    if here.vendor == "nvidia":
        yield _nvidia_counters(machine)
    yield _perf(machine)


def _amd_counters(machine: Machine) -> Line:
    render = machine.found("/dev/dri", "renderD*")
    may = machine.may("/dev/kfd", os.R_OK | os.W_OK) and all(os.access(r, os.R_OK | os.W_OK) for r in render)
    if may:
        return Line("profilers", "GPU counters", "may be read (/dev/kfd and the render nodes can be opened)")
    return Line("profilers", "GPU counters", "/dev/kfd or a render node may not be opened", WARN, None,
                "no ROCm profiler works without them", ("sudo usermod -aG render,video $USER  # and log in again",),
                "ROCm installation guide, prerequisites")  # fmt: skip


def _nvidia_counters(machine: Machine) -> Line:
    setting = re.search(r"RmProfilingAdminOnly: (\d)", machine.text("/proc/driver/nvidia/params") or "")
    source = "NVIDIA, ERR_NVGPUCTRPERM"
    if not setting:
        return Line("profilers", "GPU counters", "the driver does not say who may read them", UNKNOWN, source=source)
    if setting[1] == "0":
        return Line("profilers", "GPU counters", "every user may read them", OK, False, source=source)
    if os.geteuid() == 0:
        return Line("profilers", "GPU counters", "only root may read them, which you are", OK, True, source=source)
    change = (
        "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nvidia-profiling.conf",
        "# and restart",
    )
    return Line("profilers", "GPU counters", "only root may read them", WARN, True, "ncu fails with ERR_NVGPUCTRPERM",
                change, source)  # fmt: skip


def _perf(machine: Machine) -> Line:
    value = machine.number("/proc/sys/kernel/perf_event_paranoid")
    if value is None:
        return Line("profilers", "perf_event_paranoid", "not shown", UNKNOWN)
    strict = value > 2 and os.geteuid() != 0
    return Line("profilers", "perf_event_paranoid", str(value), NOTE if strict else OK, value == 2,
                "sampling of the CPU (rocprof-sys-sample, nsys) needs 2 or less" if strict else "",
                ("sudo sysctl kernel.perf_event_paranoid=2",) if strict else (),
                "Linux kernel documentation, sysctl kernel")  # fmt: skip
