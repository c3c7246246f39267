"""How a machine is set up: read where it can be, left out where it cannot, compared by what matters."""

import os
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rung.hardware import environment, pick, state
from rung.hardware.device import Device, cpu
from rung.hardware.environment import differences
from rung.hardware.state import crowded


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(state, "SYS", tmp_path / "sys")
    monkeypatch.setattr(state, "PROC", tmp_path / "proc")
    return tmp_path


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_kernel_s_settings_are_read_and_what_is_missing_is_left_out(kernel: Path) -> None:
    put(kernel, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
    put(kernel, "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    put(kernel, "proc/sys/kernel/numa_balancing", "1\n")
    settings, now = state.state(cpu())
    assert settings["cpu_governor"] == "powersave"
    assert settings["transparent_hugepage"] == "madvise"
    assert settings["numa_balancing"] == "1"
    assert "smt" not in settings
    assert "gpu_driver" not in settings
    assert len(now["load"]) == 3


def named(monkeypatch: pytest.MonkeyPatch, vendor: str, bus: str | None, uuid: str | None = None) -> Device:
    monkeypatch.setattr(state, "identity", lambda device: {"vendor": vendor, "uuid": uuid, "bus": bus})
    return replace(cpu(), kind="cuda", vendor=vendor)


def test_an_amd_gpu_is_read_from_the_kernel(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = named(monkeypatch, "amd", "0000:c1:00.0")
    card = "sys/bus/pci/devices/0000:c1:00.0"
    put(kernel, f"{card}/hwmon/hwmon3/power1_cap", "750000000\n")
    put(kernel, f"{card}/hwmon/hwmon3/temp1_input", "41000\n")
    put(kernel, f"{card}/pp_dpm_sclk", "0: 500Mhz\n1: 1207Mhz *\n2: 2100Mhz\n")
    put(kernel, f"{card}/current_compute_partition", "SPX\n")
    put(kernel, "sys/module/amdgpu/version", "6.10.5\n")
    settings, now = state.state(device)
    assert (settings["gpu_power_cap"], settings["gpu_clock_most"]) == (750, 2100)
    assert (settings["gpu_driver"], settings["gpu_partition"]) == ("6.10.5", "SPX")
    assert (now["gpu_clock"], now["gpu_temperature"]) == (1207, 41)
    put(kernel, f"{card}/hwmon/hwmon3/temp2_input", "45000\n")  # the junction, which MI300 has alone
    assert state.state(device)[1]["gpu_temperature"] == 45


def test_processes_on_an_amd_gpu_are_those_that_hold_its_memory(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = named(monkeypatch, "amd", "0000:c1:00.0")
    for node, (place, number) in enumerate(((0xC100, 1111), (0xC600, 2222)), start=1):
        folder = f"sys/class/kfd/kfd/topology/nodes/{node}"
        put(kernel, f"{folder}/properties", f"simd_count 1216\nlocation_id {place}\ndomain 0\n")
        put(kernel, f"{folder}/gpu_id", f"{number}\n")
    users = "sys/class/kfd/kfd/proc"
    for pid, here, elsewhere in ((99999991, 0, 4096), (99999992, 4096, 0)):
        put(kernel, f"{users}/{pid}/vram_1111", f"{here}\n")
        put(kernel, f"{users}/{pid}/vram_2222", f"{elsewhere}\n")
    assert state.state(device)[1]["gpu_other_processes"] == 1
    for number in (1111, 2222):  # a driver that does not say who holds what
        for path in kernel.glob(f"{users}/*/vram_{number}"):
            path.unlink()
    assert "gpu_other_processes" not in state.state(device)[1]


def test_a_gpu_is_asked_for_by_its_address_or_uuid_and_never_by_torch_s_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    fake_tool(tmp_path, monkeypatch, f'echo "$2" >> {asked}')
    state.state(named(monkeypatch, "nvidia", None, "GPU-1"))
    state.state(named(monkeypatch, "nvidia", "0000:41:00.0", "GPU-1"))
    state.state(named(monkeypatch, "nvidia", None))
    assert asked.read_text().split() == ["GPU-1", "0000:41:00.0"]


def fake_tool(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # the package is not installed
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_an_nvidia_gpu_is_asked_through_its_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_tool(
        tmp_path,
        monkeypatch,
        '[ "$2" = 0000:41:00.0 ] || exit 9\ncase "$3" in\n--query-gpu*) echo "570.1, 700.00, 1980, Enabled, [N/A], 1755, 38";;\n'
        "*) echo 1; echo 99999999;;\nesac",
    )
    settings, now = state.state(named(monkeypatch, "nvidia", "0000:41:00.0"))
    assert (settings["gpu_driver"], settings["gpu_power_cap"], settings["gpu_clock_most"]) == ("570.1", 700, 1980)
    assert (now["gpu_clock"], now["gpu_temperature"], now["gpu_other_processes"]) == (1755, 38, 2)


def test_an_nvidia_gpu_is_asked_through_the_library_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_tool(tmp_path, monkeypatch, f"touch {tmp_path / 'asked'}")
    nvml = types.ModuleType("pynvml")
    for name, answer in {
        "NVMLError": OSError, "NVML_CLOCK_SM": 1, "NVML_TEMPERATURE_GPU": 0, "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid, "nvmlSystemGetDriverVersion": lambda: "570.1",
        "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: 700_000, "nvmlDeviceGetMaxClockInfo": lambda gpu, kind: 1980,
        "nvmlDeviceGetClockInfo": lambda gpu, kind: 1755, "nvmlDeviceGetTemperature": lambda gpu, kind: 38,
        "nvmlDeviceGetPersistenceMode": lambda gpu: 1,
        "nvmlDeviceGetComputeRunningProcesses": lambda gpu: [types.SimpleNamespace(pid=p) for p in (os.getpid(), 99999999)],
    }.items():  # fmt: skip
        setattr(nvml, name, answer)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    settings, now = state.state(named(monkeypatch, "nvidia", "0000:41:00.0", "GPU-1"))
    assert {name: value for name, value in settings.items() if name.startswith("gpu")} == {
        "gpu_driver": "570.1", "gpu_power_cap": 700, "gpu_clock_most": 1980, "gpu_persistence": "Enabled",
    }  # fmt: skip
    assert (now["gpu_clock"], now["gpu_temperature"], now["gpu_other_processes"]) == (1755, 38, 1)
    assert not (tmp_path / "asked").exists()


def test_a_brief_record_asks_no_other_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object, **__: object) -> None:
        raise AssertionError("another program was asked")

    monkeypatch.setattr(subprocess, "run", asked)
    monkeypatch.setattr(subprocess, "check_output", asked)
    found = environment(pick("cpu"), briefly=True)
    assert found["torch"] == torch.__version__
    assert "settings" not in found


@pytest.mark.parametrize("script", ["exit 1", "echo nothing of use", "sleep 60"], ids=["fails", "odd", "hangs"])
def test_a_tool_that_does_not_answer_costs_nothing_but_its_facts(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "PATIENCE", 0.3)
    fake_tool(tmp_path, monkeypatch, script)
    settings, now = state.state(named(monkeypatch, "nvidia", "0000:41:00.0"))
    assert "gpu_driver" not in settings
    assert now["load"]


def test_differences_name_what_was_set_and_not_what_changes_by_itself() -> None:
    a = environment(pick("cpu"))
    torch.backends.cudnn.benchmark = True
    try:
        b = environment(pick("cpu"))
    finally:
        torch.backends.cudnn.benchmark = False
    b["now"], b["time"] = {"load": [99.0]}, "later"
    b["variables"] = {**a["variables"], "OMP_NUM_THREADS": "7"}
    found = differences([a, b])
    assert found["blas.cudnn_benchmark"] == [False, True]
    assert found["variables.OMP_NUM_THREADS"][1] == "7"
    assert set(found) == {"blas.cudnn_benchmark", "variables.OMP_NUM_THREADS"}
    assert differences([a, a]) == {}


@pytest.mark.parametrize(("load", "cpus", "said"), [
    ([7.0, 0.0, 0.0], 8, "load average 7.0 on 8 CPUs"), ([6.0, 9.0, 9.0], 8, None), ([], 8, None),
])  # fmt: skip
def test_a_machine_whose_cpus_are_taken_is_named(load: list[float], cpus: int, said: str | None) -> None:
    found = crowded(load, cpus)
    assert found is None if said is None else found is not None and found.startswith(said)
