"""ROCm or CUDA, and the build of torch: its version from its files, the rest from a process that imports it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from rung.hardware.doctor.gpus import Here
from rung.hardware.doctor.machine import Machine
from rung.records.doctor import NOTE, OK, UNKNOWN, WARN, Line

# Python looks first into the current folder, where a stranger's torch.py may lie.
_ASK = """
import sys
sys.path[:] = filter(None, sys.path)
import json, torch
found = {"count": torch.cuda.device_count(), "archs": torch.cuda.get_arch_list(), "threads": torch.get_num_threads()}
print(json.dumps(found))
"""


def ask(machine: Machine, here: Here) -> Future[str | None] | None:
    """Starts to import torch where there may be a GPU for it: an import takes seconds."""
    made = build(machine)
    return machine.ask([machine.python, "-c", _ASK]) if machine.torch and (here.vendor or len(made) > 1) else None


def lines(machine: Machine, here: Here, asked: Future[str | None] | None) -> Iterator[Line]:
    folder = machine.environ.get("ROCM_PATH", "/opt/rocm")
    rocm = machine.text(f"{folder}/.info/version")
    if rocm or here.vendor == "amd":
        yield Line("software", "ROCm", f"{rocm} in {folder}" if rocm else f"none in {folder}", OK if rocm else NOTE, None,
                   "" if rocm else "torch's wheels bring their libraries; profilers and SMI tools are missing")  # fmt: skip
    toolkit = re.search(
        r'"cuda"\s*:\s*{[^}]*"version"\s*:\s*"([\d.]+)"', machine.text("/usr/local/cuda/version.json") or ""
    )
    if toolkit:
        yield Line("software", "CUDA toolkit", toolkit[1])
    yield from _torch(machine, here, asked)


def rocm_version(machine: Machine) -> tuple[int, ...] | None:
    """(6, 4, 1), from the installation or from torch's build."""
    installed = machine.text(f"{machine.environ.get('ROCM_PATH', '/opt/rocm')}/.info/version")
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", installed or build(machine).get("hip") or "")
    return tuple(int(part or 0) for part in found.groups()) if found else None


def build(machine: Machine) -> dict[str, str]:
    """What torch/version.py states: version, cuda, hip."""
    text = machine.text(machine.torch / "version.py") if machine.torch else None
    stated = re.findall(r"^(__version__|cuda|hip)(?:\s*:[^=]*)?\s*=\s*'([^']*)'", text or "", re.MULTILINE)
    return {name.strip("_"): value for name, value in stated}


def _torch(machine: Machine, here: Here, asked: Future[str | None] | None) -> Iterator[Line]:
    if machine.torch is None:
        yield Line("software", "torch", "not installed", NOTE, None, "reading traces needs none; running workloads does",
                   ("# pip install torch, from the index of your ROCm or CUDA version",), "pytorch.org, Get Started")  # fmt: skip
        return
    stated = build(machine)
    vendor = "amd" if stated.get("hip") else "nvidia" if stated.get("cuda") else ""
    made = {"amd": f"ROCm {stated.get('hip')}", "nvidia": f"CUDA {stated.get('cuda')}", "": "CPU only"}[vendor]
    wrong = bool(here.vendor) and vendor != here.vendor
    matters = "this build cannot use the GPUs here" if wrong else ""
    yield Line("software", "torch", f"{stated.get('version', '?')}, built for {made}", WARN if wrong else OK, None, matters,
               ("# pip install torch, from the index of your ROCm or CUDA version",) if wrong else ())  # fmt: skip
    if re.match(r"7\.2\.", stated.get("hip", "")):
        matters = "with ROCm 7.2.0 and 7.2.1, traces of torch.profiler lack kernels of HIP graphs; a wheel has its own copy of these libraries"
        yield Line("software", "torch's profiler", "needs the libraries of ROCm 7.2.2 or later", NOTE, None, matters,
                   ("# install a build with them, or set the environment to preload those of a newer ROCm",),
                   "ROCm 7.2.2 release notes (ROCm/ROCm#6102)")  # fmt: skip
    if asked is None:
        return
    answer = _answer(asked.result())
    if answer is None:
        matters = "importing it is slow or fails; --wait 30 waits longer"
        yield Line("software", "torch's GPUs", "torch did not answer in time", UNKNOWN, None, matters)
        return
    count, archs = answer.get("count"), answer.get("archs") or []
    if here.vendor or count:
        few = isinstance(count, int) and count < here.count
        yield Line("software", "torch's GPUs", f"{count} of {here.count}" if here.count else str(count),
                   WARN if not count else NOTE if few else OK, None,
                   "" if not few else "torch sees fewer than the driver: visibility variables, rights, or partitions")  # fmt: skip
    lacking = sorted({arch for arch in here.archs if archs and arch not in archs})
    if lacking:
        yield Line("software", "torch's kernels", f"none for {', '.join(lacking)} (built for {', '.join(archs)})", WARN, False,
                   "kernels are missing or compiled at the first call", ("# install a build for this architecture",),
                   "torch.cuda.get_arch_list()")  # fmt: skip


def _answer(text: str | None) -> dict[str, Any] | None:
    """The last line, as warnings may stand before it."""
    try:
        found = json.loads((text or "").strip().splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return found if isinstance(found, dict) else None
