"""Which profilers there are, of which version, and which GPUs they would look at."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from rung.hardware.places import which

# The executable of each choice of --with. rocprof is two programs: see `legacy`.
EXECUTABLES = {
    "rocprofv3": ("rocprofv3",),
    "rocprof": ("rocprof", "rocprofv2"),
    "rocprof-compute": ("rocprof-compute",),
    "rocprof-sys": ("rocprof-sys-run",),
    "rocprof-sys-sample": ("rocprof-sys-sample",),
    "rocprof-sys-instrument": ("rocprof-sys-instrument",),
    "rocprof-sys-python": ("rocprof-sys-python",),
    "nsys": ("nsys",),
    "ncu": ("ncu",),
}
Profiler = Literal["torch", "rocprofv3", "rocprof", "rocprof-compute", "rocprof-sys", "rocprof-sys-sample",
                   "rocprof-sys-instrument", "rocprof-sys-python", "nsys", "ncu"]  # fmt: skip
PROFILERS: tuple[str, ...] = get_args(Profiler)
ASSUMED = (7, 0)  # the ROCm that is planned for where none is installed
# rocprofiler-sdk's own version → ROCm's, for builds that do not say rocm_version.
_SDK = {(0, 4): (6, 2), (0, 5): (6, 3), (0, 6): (6, 4), (1, 0): (7, 0), (1, 1): (7, 1), (1, 2): (7, 2)}
_SECONDS = 20.0  # a profiler that takes longer to say its version is not waited for


@dataclass(frozen=True)
class Tool:
    """path: None where it is not installed and only planned for; version: ROCm's for AMD's tools, its own otherwise;
    assumed: whether nothing said the version, so that ASSUMED stands for it."""

    name: str
    path: Path | None
    version: tuple[int, ...] = ASSUMED
    legacy: str = ""  # of rocprof: 'v1' or 'v2'
    assumed: bool = False

    @property
    def command(self) -> str:
        """What to write into an argv."""
        return str(self.path or EXECUTABLES[self.name][0])

    @property
    def version_text(self) -> str:
        return ".".join(map(str, self.version))


def find(name: str) -> Tool | None:
    """The profiler on PATH or where its vendor installs it, or None. `name`: a key of EXECUTABLES."""
    for executable in EXECUTABLES[name]:
        path = which(executable)
        if path:
            legacy = _legacy(Path(path)) if name == "rocprof" else ""
            version = _version(name, path)
            return Tool(name, Path(path), version or ASSUMED, legacy, assumed=version is None)
    return None


def planned(name: str) -> Tool:
    """The profiler as it would be, for a plan on a machine without it."""
    own = name in ("nsys", "ncu")
    return Tool(name, None, () if own else ASSUMED, "v1" if name == "rocprof" else "", assumed=not own)


def _legacy(path: Path) -> str:
    """rocprof and rocprofv2 take other options: told by the name of the file, links followed."""
    return "v2" if "rocprofv2" in (path.name, path.resolve().name) else "v1"


def _version(name: str, path: str) -> tuple[int, ...] | None:
    if name in ("nsys", "ncu"):
        found = re.search(r"(\d{4})\.(\d+)", _said([path, "--version"]))
        return (int(found[1]), int(found[2])) if found else (0,)
    said = _said([path, "--version"]) if name == "rocprofv3" else ""
    if found := re.search(r"rocm_version:\s*(\d+)\.(\d+)", said):
        return int(found[1]), int(found[2])
    if found := re.search(r"^\s*version:\s*(\d+)\.(\d+)", said, re.MULTILINE):
        sdk = int(found[1]), int(found[2])
        if sdk in _SDK:
            return _SDK[sdk]
    return rocm_version(path)


def rocm_version(beside: str | None = None) -> tuple[int, ...] | None:
    """(7, 0) as `.info/version` of ROCm says; looked for beside a tool's own folder, in $ROCM_PATH, and in /opt/rocm."""
    # Of several ROCms, $ROCM_PATH may name another than the one whose tool is first on PATH.
    roots = [Path(beside).resolve().parent.parent] if beside else []
    roots += [Path(text) for text in (os.environ.get("ROCM_PATH"), "/opt/rocm") if text]
    for root in roots:
        try:
            found = re.match(r"(\d+)\.(\d+)", (root / ".info" / "version").read_text())
        except OSError:
            continue
        if found:
            return int(found[1]), int(found[2])
    return None


def _said(argv: list[str]) -> str:
    """What a program prints, on both streams; nothing where it fails or hangs."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False,
                              stdin=subprocess.DEVNULL)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def architectures(topology: Path = Path("/sys/class/kfd/kfd/topology/nodes")) -> list[str]:
    """'gfx942', … of AMD's GPUs as the kernel driver lists them; empty where there are none.

    gfx_target_version is major * 10000 + minor * 100 + stepping, and the name has minor and stepping in hex: 90402 is gfx942.
    """
    found = []
    for node in sorted(topology.glob("*/properties"), key=lambda path: (len(path.parent.name), path.parent.name)):
        try:
            version = re.search(r"^gfx_target_version (\d+)", node.read_text(), re.MULTILINE)
        except OSError:
            continue
        number = int(version[1]) if version else 0
        if number:
            found.append(f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}")
    return found


def available_counters(tool: Tool) -> dict[str, frozenset[str]]:
    """Architecture → names of the counters that this profiler can read there, as `rocprofv3-avail` says.

    Empty where that program is missing, fails or sees no GPU: then the tables of `counters.toml` decide.
    """
    path = _avail(tool)
    if not path:
        return {}
    found: dict[str, set[str]] = {}
    gpu = ""
    for line in _said([path, "info", "--pmc"]).splitlines():
        if name := re.match(r"\s*Name\s*:\s*(gfx\w+)", line):
            gpu = name[1]
        elif (counter := re.match(r"\s*Counter_Name\s*:\s*(\S+)", line)) and gpu:
            found.setdefault(gpu, set()).add(counter[1])
    return {gpu: frozenset(names) for gpu, names in found.items()}


def fits_one_pass(tool: Tool, counters: tuple[str, ...]) -> bool | None:
    """Whether the first GPU can read these at once, as `rocprofv3-avail pmc-check` says; None where it cannot be asked."""
    path = _avail(tool)
    if not path:
        return None
    checked = _checked(path, counters)
    # It ends alike where it sees no GPU: then it refuses one counter alone, too.
    if checked is False and len(counters) > 1 and not _checked(path, counters[:1]):
        return None
    return checked


def _checked(path: str, counters: tuple[str, ...]) -> bool | None:
    try:
        done = subprocess.run([path, "pmc-check", "-d", "0", *counters], capture_output=True, timeout=_SECONDS,
                              check=False, stdin=subprocess.DEVNULL)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.returncode == 0


def _avail(tool: Tool) -> str | None:
    """7.0 has rocprofv3-avail; versions before it rocprofv3_avail, which cannot be asked this way."""
    if tool.name != "rocprofv3" or tool.path is None or tool.version < (7, 0):
        return None
    beside = tool.path.parent / "rocprofv3-avail"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("rocprofv3-avail")
