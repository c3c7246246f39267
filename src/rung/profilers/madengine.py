"""The profiling part of a madengine configuration (`--additional-context`): which presets and sensors its tools stand for."""

from __future__ import annotations

import ast
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rung.errors import InputError
from rung.files import read_text
from rung.profilers.presets import Preset, preset
from rung.profilers.tools import PROFILERS

TOOLS = {
    "rocprof": "trace",
    "rocprofv3": "trace",
    "rpd": "trace",
    "rocm_trace_lite": "lightweight",
    "rocm_trace_lite_default": "trace",
    "rocprof_hip_only": "lightweight",
    "rocprof_sys": "full",
    "rocprofv3_compute": "compute",
    "rocprofv3_memory": "memory",
    "rocprofv3_communication": "communication",
    "rocprofv3_full": "full",
    "rocprofv3_lightweight": "lightweight",
    "rocprofv3_agent": "trace",
    "rocprofv3_agent_counter": "trace",
    "rocprofv3_perfetto": "perfetto",
    "rocprofv3_api_overhead": "api-overhead",
    "rocprofv3_pc_sampling": "pc-sampling",
}
_WITHOUT_COUNTERS = ("rocprof_sys",)  # --sys-trace: everything that is traced, and no counters
_WITH_COUNTERS = {"rocprofv3_agent_counter": "mix"}
_SENSORS = {"gpu_info_power_profiler": "power", "gpu_info_vram_profiler": "vram"}
_LIBRARIES = {
    "rocblas_trace": {"ROCBLAS_LAYER": "6"},
    "miopen_trace": {"MIOPEN_ENABLE_LOGGING_CMD": "1"},
    "tensile_trace": {"TENSILE_DB": "0x8000"},
    "rccl_trace": {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,COLL", "RCCL_KERNEL_COLL_TRACE_ENABLE": "1"},
    "hipblaslt_trace": {"HIPBLASLT_LOG_LEVEL": "2"},
}
_NOTHING = ("therock_check", "test_tools_A", "test_tools_B")
_SWITCHES = tuple(f"{lib}_TRACE" for lib in ("ROCBLAS", "MIOPEN", "TENSILE", "RCCL", "HIPBLASLT"))
# Of a context's keys, what is read here, or says nothing to a profiler; `docker_env_vars` are those of its container.
_KEYS = ("tools", "env_vars", "docker_env_vars", "distributed", "slurm", "gpu_vendor", "guest_os", "debug")
_SENSOR_SETTINGS = ("POWER_", "VRAM_", "RTL_MODE")


@dataclass(frozen=True)
class Asked:
    """preset: what to record; rate: of the sensors, seconds a reading; processes: how many torchrun is to start."""

    preset: Preset
    rate: float = 0.1
    processes: int = 1
    notes: tuple[str, ...] = field(default=())

    def launched(self, command: tuple[str, ...]) -> tuple[str, ...]:
        """The command in as many processes as the file wants; one that a launcher begins stays as it is."""
        if self.processes < 2 or not command or Path(command[0]).name in ("torchrun", "mpirun", "srun", "accelerate"):
            return command
        launcher = ("torchrun", "--standalone", "--nproc-per-node", str(self.processes))
        if Path(command[0]).name.startswith("python"):  # torchrun starts Python itself
            return (*launcher, *command[1:])
        return (*launcher, "--no-python", *command)


def read(path: Path) -> Asked:
    """What a file asks for. InputError where it is no JSON (or a Python literal), or names a
    tool that nobody knows."""
    context = _parsed(path)
    notes: list[str] = []
    chosen: list[Preset] = []
    sample: list[str] = []
    env: dict[str, str] = {}
    rate = 0.1
    tools = context.get("tools", [])
    if not isinstance(tools, list) or not all(isinstance(t, dict) and isinstance(t.get("name"), str) for t in tools):
        raise InputError(f'{path}: tools must be a list of objects with a name, as in {{"name": "rocprofv3_compute"}}.')
    for tool in tools:
        name, variables = tool["name"], _variables(path, tool.get("env_vars", {}))
        if name in _SENSORS:
            sample.append(_SENSORS[name])
            prefix = _SENSORS[name].upper()
            rate = _seconds(path, variables.get(f"{prefix}_SAMPLING_RATE", str(rate)))
            if (devices := variables.get(f"{prefix}_DEVICE", "all")) != "all":
                notes.append(f"{prefix}_DEVICE is {devices}: all GPUs are sampled, each apart.")
        elif name in _LIBRARIES:
            env |= _LIBRARIES[name]
        elif name in TOOLS or "cmd" in tool:
            chosen.append(_custom(path, tool) if "cmd" in tool else _tool(name))
        elif name in _NOTHING:
            notes.append(f"{name} records nothing and was left out.")
        else:
            raise InputError(
                f"{path}: there is no tool {name!r}; known are {', '.join([*TOOLS, *_SENSORS, *_LIBRARIES])}."
            )
        env |= variables
    if len(chosen) > 1:
        notes.append(
            f"one profiler at a time: {chosen[0].name} is run, {', '.join(p.name for p in chosen[1:])} left out."
        )
    base = chosen[0] if chosen else replace(preset("lightweight"), sources=("kernels",))
    if not chosen:
        notes.append("the file names no profiler: kernels are traced.")
    shared = {**_variables(path, context.get("docker_env_vars", {})), **_variables(path, context.get("env_vars", {}))}
    env = {**base.env, **shared, **env}
    asked = replace(base, env=_variables_that_work(env, notes), sample=tuple(dict.fromkeys([*base.sample, *sample])))
    processes = _processes(path, context, notes)
    if others := [key for key in context if key not in _KEYS]:
        notes.append(f"{', '.join(others)}: of madengine's own running of the model, left out.")
    return Asked(asked, rate, processes, tuple(notes))


def _tool(name: str) -> Preset:
    found = preset(TOOLS[name])
    if name in _WITHOUT_COUNTERS:
        return replace(found, counters="", env={})
    return replace(found, counters=_WITH_COUNTERS[name]) if name in _WITH_COUNTERS else found


def _custom(path: Path, tool: Mapping[str, Any]) -> Preset:
    """A tool's own `cmd`: a profiler and its options, with or without `--` and madengine's wrapper before it."""
    try:
        words = shlex.split(str(tool["cmd"]))
    except ValueError as error:
        raise InputError(
            f"{path}: cmd {tool['cmd']!r} cannot be split into words ({error}): close what it opens."
        ) from None
    while words and (words[0] in ("bash", "sh") or words[0].endswith("rocprof_wrapper.sh")):
        words.pop(0)
    if words and words[0].startswith("-"):
        words.insert(0, "rocprofv3")
    program = words[0].rpartition("/")[2] if words else ""
    program = {"rocprof-sys-run": "rocprof-sys", "rocprofv2": "rocprof"}.get(program, program)
    if program not in PROFILERS or program == "torch":
        raise InputError(f"{path}: cmd {tool['cmd']!r} is not a profiler that is known: {', '.join(PROFILERS[1:])}.")
    options = words[1:]
    if options and options[-1] == "--":
        options.pop()
    kept: list[str] = []
    formats: list[str] = []
    option = ""
    for word in options:
        if word.startswith("-"):
            option = word
        # Where it writes is ours to say; an option that no version ever had would end the run before it began.
        if option in ("-d", "-o", "--output-directory", "--output-file", "--perfetto-trace-filename"):
            continue
        if option in ("-f", "--output-format"):
            formats += [] if word == option else [word.lower()]
        else:
            kept.append(word)
    what = "a command of the file's own"
    return Preset(str(tool["name"]), what, tool=program, sources=(), extra=tuple(kept), formats=tuple(formats))


def _seconds(path: Path, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.001 <= value < 3600:
        raise InputError(f"{path}: a sampling rate of {text!r} is none: give seconds a sample, 0.001 or more.")
    return value


def _variables(path: Path, given: Any) -> dict[str, str]:
    if not isinstance(given, dict):
        raise InputError(f"{path}: env_vars must be an object of names and texts.")
    return {str(name): str(value) for name, value in given.items()}


def _variables_that_work(env: Mapping[str, str], notes: list[str]) -> dict[str, str]:
    """RCCL reads NCCL_DEBUG, and nothing reads RCCL_DEBUG; settings of madengine's own scripts are ours by now."""
    found = {
        name: value for name, value in env.items() if name not in _SWITCHES and not name.startswith(_SENSOR_SETTINGS)
    }
    if "RCCL_DEBUG" in found:
        found.setdefault("NCCL_DEBUG", found["RCCL_DEBUG"])
        del found["RCCL_DEBUG"]
        notes.append("RCCL_DEBUG is read by nothing; NCCL_DEBUG is set instead.")
    return found


def _processes(path: Path, context: Mapping[str, Any], notes: list[str]) -> int:
    distributed, slurm = context.get("distributed") or {}, context.get("slurm")
    try:
        count, nodes = int(distributed.get("nproc_per_node", 1)), int(distributed.get("nnodes", 1))
    except (AttributeError, TypeError, ValueError):
        raise InputError(
            f'{path}: distributed must hold numbers, as in {{"launcher": "torchrun", "nnodes": 1, "nproc_per_node": 4}}.'
        ) from None
    if slurm:
        notes.append("slurm: this is not submitted; start the same command with srun, once a node.")
    if distributed.get("launcher", "torchrun") != "torchrun" and (count > 1 or nodes > 1):
        notes.append(f"launcher {distributed['launcher']!r} is not known here: give the whole command yourself.")
        return 1
    if nodes > 1:
        notes.append(
            "more than one node: give the torchrun command with its --nnodes, --node-rank and --master-addr yourself."
        )
        return 1
    return count


def _parsed(path: Path) -> dict[str, Any]:
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} could not be read: {error}.") from None
    try:
        found = json.loads(text)
    except ValueError:
        try:
            found = ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            raise InputError(f"{path} is not JSON: give the file of madengine's --additional-context.") from None
    if not isinstance(found, dict):
        raise InputError(f'{path} must hold an object, as in {{"tools": [...]}}.')
    return found
