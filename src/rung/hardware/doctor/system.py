"""The host: NUMA balancing, IOMMU, huge pages, shared memory, CPU governor, load."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from rung.hardware.doctor.gpus import Here
from rung.hardware.doctor.machine import Machine
from rung.hardware.state import crowded
from rung.records.doctor import NOTE, OK, UNKNOWN, WARN, Line

SMALL_SHM = 1 << 30  # bytes: NVIDIA's NCCL guide asks for --shm-size=1g; Docker gives 64 MiB unless told otherwise
_TUNING = "AMD Instinct MI300X workload and system optimization guides"


def lines(machine: Machine, here: Here) -> Iterator[Line]:
    yield from _numa(machine)
    if here.vendor:
        yield from _iommu(machine, here)
    yield from _huge_pages(machine)
    yield from _shared_memory(machine)
    yield from _governor(machine)
    yield from _load(machine)


def _numa(machine: Machine) -> Iterator[Line]:
    value = machine.number("/proc/sys/kernel/numa_balancing")
    if value is None:
        yield Line("system", "NUMA balancing", "not shown", UNKNOWN)
        return
    nodes = len(machine.found("/sys/devices/system/node", "node[0-9]*"))
    costs = value != 0 and nodes > 1
    matters = "the kernel unmaps pages to see which CPUs use them, which stalls the host; measure with and without"
    yield Line("system", "NUMA balancing", f"{'on' if value else 'off'}, {nodes or '?'} NUMA node{'s' if nodes != 1 else ''}",
               WARN if costs else OK, (value != 0) == (nodes > 1), matters if costs else "",
               ("sudo sysctl kernel.numa_balancing=0",) if costs else (), _TUNING)  # fmt: skip


def _iommu(machine: Machine, here: Here) -> Iterator[Line]:
    words = (machine.text("/proc/cmdline") or "").split()
    chosen = [word for word in words if re.match(r"(amd_|intel_)?iommu(\.\w+)?=", word)]
    types = {machine.text(group / "type") for group in machine.found("/sys/kernel/iommu_groups", "*")} - {None}
    on = bool(machine.found("/sys/class/iommu", "*"))
    through = "iommu=pt" in chosen or "iommu.passthrough=1" in chosen or types == {"identity"}
    off = not on or any(word.endswith("iommu=off") for word in chosen)
    value = "off" if off else "on, passthrough" if through else "on, translating"
    value += f" ({' '.join(chosen)})" if chosen else ""
    if off or through or here.vendor != "amd":
        yield Line("system", "IOMMU", value, OK, not chosen, source=_TUNING)
        return
    matters = "the IOMMU translates every transfer between GPUs, network and host; large multi-GPU nodes may fail or slow down"
    change = ("# add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub, then: sudo update-grub && sudo reboot",)
    yield Line("system", "IOMMU", value, WARN if here.count > 1 else NOTE, not chosen, matters, change, _TUNING)


def _huge_pages(machine: Machine) -> Iterator[Line]:
    text = machine.text("/sys/kernel/mm/transparent_hugepage/enabled") or ""
    chosen = re.search(r"\[(\w+)\]", text)
    if not chosen:
        yield Line("system", "huge pages", "not shown", UNKNOWN)
        return
    never = chosen[1] == "never"
    matters = "large host buffers take many small pages, which slows copies and data loading"
    yield Line("system", "huge pages", chosen[1], NOTE if never else OK, chosen[1] == "madvise", matters if never else "",
               ("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",) if never else (),
               "Linux kernel documentation, transparent hugepages")  # fmt: skip


def _shared_memory(machine: Machine) -> Iterator[Line]:
    size = machine.size("/dev/shm")
    if size is None:
        return
    small = size < SMALL_SHM
    matters = (
        "workers of a DataLoader and ranks on one host exchange data through it, and fail or hang where it is full"
    )
    yield Line("system", "shared memory", f"{size / 2**20:.0f} MiB in /dev/shm", NOTE if small else OK, None,
               matters if small else "",
               ("# start the container with --shm-size=8g or --ipc=host, or: sudo mount -o remount,size=8G /dev/shm",) if small else (),
               "NCCL documentation, troubleshooting; PyTorch, docker image")  # fmt: skip


def _governor(machine: Machine) -> Iterator[Line]:
    files = machine.found("/sys/devices/system/cpu", "cpu[0-9]*/cpufreq/scaling_governor")
    counted = Counter(filter(None, (machine.text(file) for file in files)))
    if not counted:
        yield Line("system", "CPU governor", "not shown (a virtual machine, or the firmware's choice)", UNKNOWN)
        return
    fast = set(counted) == {"performance"}
    slow = "powersave" in counted and machine.text("/sys/devices/system/cpu/intel_pstate/status") != "active"
    matters = "the host's clock has to rise before it launches kernels at full speed, so timings scatter"
    yield Line("system", "CPU governor", ", ".join(f"{name} ({count})" if len(counted) > 1 else name for name, count in counted.items()),
               OK if fast else WARN if slow else NOTE, None, "" if fast else matters,
               () if fast else ("sudo cpupower frequency-set -g performance",),
               "Linux kernel documentation, CPU performance scaling")  # fmt: skip


def _load(machine: Machine) -> Iterator[Line]:
    numbers = re.findall(r"[\d.]+", machine.text("/proc/loadavg") or "")[:3]
    cpus = len(re.findall(r"^cpu\d", machine.text("/proc/stat") or "", re.MULTILINE))
    if len(numbers) < 3 or not cpus:
        yield Line("system", "load", "not shown", UNKNOWN)
        return
    said = crowded([float(n) for n in numbers], cpus)
    yield Line("system", "load", f"{numbers[0]} in the last minute, {cpus} CPUs", WARN if said else OK, None, said or "",
               ("top -o %CPU  # which processes",) if said else (), "Linux kernel documentation, /proc/loadavg")  # fmt: skip
