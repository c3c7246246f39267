"""The GPUs: which, their driver, power caps, clocks, partitions, and who else uses them."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from rung.hardware.doctor.machine import Machine
from rung.records.doctor import NOTE, OK, UNKNOWN, WARN, Line

_AMD = "0x1002"
# Fields that every version of the last years knows: one that it does not know fails the whole query.
_FIELDS = ("name", "driver_version", "compute_cap", "power.limit", "power.default_limit", "persistence_mode", "mig.mode.current", "clocks.max.sm")  # fmt: skip
_VISIBLE = {"amd": ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"),
            "nvidia": ("CUDA_VISIBLE_DEVICES",)}  # fmt: skip
_KERNEL = "Linux kernel documentation, GPU driver, amdgpu (power and monitoring)"


@dataclass(frozen=True)
class Here:
    """The GPUs that the drivers show: vendor "amd", "nvidia" or ""; archs of AMD's, one each; cards: their sysfs folders;
    users: process numbers that AMD's driver knew before we asked anything that uses a GPU ourselves."""

    vendor: str
    count: int
    archs: list[str] = field(default_factory=list)
    cards: list[Path] = field(default_factory=list)
    users: list[str] = field(default_factory=list)


def look(machine: Machine) -> Here:
    nodes = [
        dict(re.findall(r"^(\w+) (\d+)$", machine.text(node / "properties") or "", re.MULTILINE))
        for node in machine.found("/sys/class/kfd/kfd/topology/nodes", "*")
    ]
    versions = [int(node.get("gfx_target_version", 0)) for node in nodes if int(node.get("simd_count", 0))]
    cards = [c / "device" for c in machine.found("/sys/class/drm", "card*") if c.name[4:].isdigit()]
    amd = [card for card in cards if machine.text(card / "vendor") == _AMD]
    if versions or machine.text("/sys/module/amdgpu/initstate"):
        archs = [f"gfx{v // 10000}{v // 100 % 100:x}{v % 100:x}" for v in versions if v]
        users = [p.name for p in machine.found("/sys/class/kfd/kfd/proc", "*") if p.name.isdecimal()]
        return Here("amd", len(versions) or len(amd), archs, amd, users)
    cards = machine.found("/proc/driver/nvidia/gpus", "*")
    if cards or machine.text("/proc/driver/nvidia/version") is not None or machine.which("nvidia-smi"):
        devices = [p for p in machine.found("/dev", "nvidia*") if p.name[6:].isdigit()]
        return Here("nvidia", len(cards) or len(devices))
    return Here("", 0)


def ask(machine: Machine) -> dict[str, Future[str | None]]:
    smi = machine.which("nvidia-smi")
    if not smi:
        return {}
    form = "--format=csv,noheader,nounits"
    return {
        "gpus": machine.ask([smi, f"--query-gpu={','.join(_FIELDS)}", form]),
        "processes": machine.ask([smi, "--query-compute-apps=pid,process_name,used_memory", form]),
    }


def lines(machine: Machine, here: Here, asked: dict[str, Future[str | None]]) -> Iterator[Line]:
    if not here.vendor:
        matters = "everything runs on the CPU; in a container, pass the GPU in (--device /dev/kfd, --gpus all)"
        yield Line("GPU", "GPU", "none found", NOTE, None, matters)
        return
    yield from _amd(machine, here) if here.vendor == "amd" else _nvidia(machine, here, asked)
    yield from _visible(machine, here)


def _amd(machine: Machine, here: Here) -> Iterator[Line]:
    version, kernel = machine.text("/sys/module/amdgpu/version"), machine.text("/proc/sys/kernel/osrelease")
    yield Line("GPU", "driver", f"amdgpu {version}" if version else f"amdgpu of Linux {kernel or '?'}", OK)
    yield Line("GPU", "GPUs", together(here.archs) or f"{here.count} AMD, of unknown architecture",
               OK if here.archs else UNKNOWN)  # fmt: skip
    if not machine.may("/dev/kfd", os.R_OK | os.W_OK):
        yield Line("GPU", "/dev/kfd", "may not be opened", WARN, None, "without it no ROCm program runs",
                   ("sudo usermod -aG render,video $USER  # and log in again",), "ROCm installation guide, prerequisites")  # fmt: skip
    yield from _power_cap([_amd_cap(machine, card) for card in here.cards], "sudo amd-smi set --gpu GPU --power-cap WATTS",
                          _KERNEL)  # fmt: skip
    levels = [machine.text(card / "power_dpm_force_performance_level") for card in here.cards]
    if known := [level for level in levels if level]:
        auto = set(known) == {"auto"}
        matters = "" if auto else "the driver does not choose the clocks itself: figures hold only for this setting"
        yield Line("GPU", "clocks", together(known), OK if auto else NOTE, auto, matters,
                   () if auto else ("sudo amd-smi set --gpu all --perf-level AUTO",), _KERNEL)  # fmt: skip
    for name, usual in (("compute", "SPX"), ("memory", "NPS1")):
        modes = [m for card in here.cards if (m := machine.text(card / f"current_{name}_partition"))]
        if modes:
            whole = set(modes) == {usual}
            matters = "" if whole else "each device is a part of a chip and has a part of its peaks"
            yield Line("GPU", f"{name} partition", together(modes), OK if whole else NOTE, whole, matters,
                       () if whole else (f"sudo amd-smi set --{name}-partition {usual}",), "AMD GPU partitioning guide")  # fmt: skip
    yield _others(here.users)


def _amd_cap(machine: Machine, card: Path) -> tuple[float, float] | None:
    """Watts that are set, and that would be by default."""
    for monitor in sorted(card.glob("hwmon/hwmon*")):
        cap = machine.number(monitor / "power1_cap")
        usual = machine.number(monitor / "power1_cap_default") or machine.number(monitor / "power1_cap_max")
        if cap and usual:
            return cap / 1e6, usual / 1e6
    return None


def _nvidia(machine: Machine, here: Here, asked: dict[str, Future[str | None]]) -> Iterator[Line]:
    answer = asked["gpus"].result() if "gpus" in asked else None
    cells = [[cell.strip() for cell in row] for row in csv.reader((answer or "").splitlines())]
    gpus = [dict(zip(_FIELDS, row, strict=True)) for row in cells if len(row) == len(_FIELDS)]
    told = re.search(r"Module\D*(\d+(?:\.\d+)+)", machine.text("/proc/driver/nvidia/version") or "")
    version = told[1] if told else gpus[0]["driver_version"] if gpus else None
    yield Line("GPU", "driver", f"NVIDIA {version or '?'}", OK if version else UNKNOWN)
    if not gpus:
        yield Line("GPU", "GPUs", f"{here.count or '?'} NVIDIA; nvidia-smi did not answer", UNKNOWN)
        return
    named = [f"{gpu['name']} (sm{gpu['compute_cap'].replace('.', '')})" for gpu in gpus]
    yield Line("GPU", "GPUs", together(named))
    caps = [(_watts(gpu["power.limit"]), _watts(gpu["power.default_limit"])) for gpu in gpus]
    yield from _power_cap(
        [(a, b) if a and b else None for a, b in caps], "sudo nvidia-smi -i GPU -pl WATTS", "nvidia-smi manual"
    )
    yield Line("GPU", "clocks", together([f"{gpu['clocks.max.sm']} MHz at most" for gpu in gpus]))
    keeps = [gpu["persistence_mode"] for gpu in gpus]
    if "Disabled" in keeps:
        yield Line("GPU", "persistence mode", together(keeps), NOTE, True,
                   "the driver unloads when it is unused, so the first call of a program takes seconds",
                   ("sudo nvidia-smi -pm 1",), "NVIDIA driver persistence guide")  # fmt: skip
    if "Enabled" in (parts := [gpu["mig.mode.current"] for gpu in gpus]):
        yield Line("GPU", "MIG", together(parts), NOTE, False, "each device is a part of a chip and has a part of its peaks",
                   (), "NVIDIA MIG user guide")  # fmt: skip
    answer = asked["processes"].result() if "processes" in asked else None
    if answer is None:
        yield Line("GPU", "other processes", "nvidia-smi did not answer", UNKNOWN)
    else:
        yield _others([row[0].strip() for row in csv.reader(answer.splitlines()) if row and row[0].strip().isdecimal()])


def _watts(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None


def _power_cap(caps: list[tuple[float, float] | None], command: str, source: str) -> Iterator[Line]:
    known = [cap for cap in caps if cap]
    if not known:
        yield Line("GPU", "power cap", "not shown by the driver", UNKNOWN, source=source)
        return
    said = [("?" if cap is None else f"{cap[0]:.0f} W" if cap[0] == cap[1] else f"{cap[0]:.0f} W of {cap[1]:.0f} W")
            for cap in caps]  # fmt: skip
    lower = {i: cap[1] for i, cap in enumerate(caps) if cap and cap[0] < cap[1]}
    change = tuple(command.replace("GPU", str(i)).replace("WATTS", f"{usual:.0f}") for i, usual in lower.items())
    matters = "under heavy work, clocks fall sooner than they must" if lower else ""
    default = all(cap == usual for cap, usual in known)
    yield Line("GPU", "power cap", together(said), WARN if lower else OK, default, matters, change, source)


def _others(pids: list[str]) -> Line:
    if not pids:
        return Line("GPU", "other processes", "none")
    shown = ", ".join(pids[:8]) + (f" and {len(pids) - 8} more" if len(pids) > 8 else "")
    return Line("GPU", "other processes", f"{len(pids)} (pid {shown})", WARN, None,
                "they take a share of the GPU from what you measure", (f"ps -o pid,user,etime,cmd -p {','.join(pids[:8])}",))  # fmt: skip


def _visible(machine: Machine, here: Here) -> Iterator[Line]:
    chosen = {name: machine.environ[name] for name in _VISIBLE[here.vendor] if name in machine.environ}
    if not chosen:
        yield Line("GPU", "visibility", f"all {here.count or ''} GPUs".replace("  ", " "), OK, True)
        return
    value = ", ".join(f"{name}={text}" for name, text in chosen.items())
    twice = len([name for name in chosen if name != "GPU_DEVICE_ORDINAL"]) > 1 and len(set(chosen.values())) > 1
    none = any(text.strip() in ("", "-1") for text in chosen.values())
    matters = "no GPU is visible" if none else "programs see only these GPUs, numbered from 0"
    if twice:
        matters = "several of them apply in turn: each numbers the GPUs that the one before left visible"
    yield Line("GPU", "visibility", value, WARN if twice or none else NOTE, False, matters,
               tuple(f"unset {name}" for name in chosen if twice or none), "ROCm documentation, GPU isolation" if here.vendor == "amd" else "CUDA programming guide")  # fmt: skip


def together(values: list[str]) -> str:
    """ "8 x 750 W"; where they differ, the most frequent one and then each of the others: "7 x 750 W, GPU 3: 600 W"."""
    if len(values) < 2:
        return "".join(values)
    usual, count = Counter(values).most_common(1)[0]
    if count == 1:
        return ", ".join(f"GPU {i}: {value}" for i, value in enumerate(values))
    others = [f"GPU {i}: {value}" for i, value in enumerate(values) if value != usual]
    return ", ".join([f"{count} x {usual}", *others])
