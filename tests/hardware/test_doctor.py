"""The audit on made machines: trees of /sys and /proc, stand-ins for commands; nothing is changed, nothing fails."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rung.hardware.doctor import Machine, audit, software
from rung.hardware.doctor.caches import lines as cache_lines
from rung.hardware.doctor.gpus import Here
from rung.hardware.doctor.variables import known
from rung.records.doctor import Line


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def command(folder: Path, name: str, script: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def mi300x(root: Path, gpus: int = 2, cap: int = 750) -> None:
    """A node of MI300X as the amdgpu driver shows it, set up well."""
    write(root, {
        "sys/module/amdgpu/version": "6.10.5", "proc/sys/kernel/osrelease": "6.8.0",
        "opt/rocm/.info/version": "6.4.1-83", "dev/kfd": "",
        "proc/sys/kernel/numa_balancing": "0", "proc/cmdline": "ro quiet iommu=pt",
        "sys/class/iommu/ivhd0/uevent": "", "proc/sys/kernel/perf_event_paranoid": "2",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "proc/mounts": "overlay / overlay rw 0 0", "proc/loadavg": "0.10 0.20 0.30 1/900 4242",
        "proc/stat": "cpu  1 2\ncpu0 1 2\ncpu1 1 2\nintr 5",
        "sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 96\nsimd_count 0\ngfx_target_version 0",
    })  # fmt: skip
    for i in range(2):
        (root / f"sys/devices/system/node/node{i}").mkdir(parents=True)
        write(root, {f"sys/devices/system/cpu/cpu{i}/cpufreq/scaling_governor": "performance"})
    for i in range(gpus):
        card = f"sys/class/drm/card{i}/device"
        write(root, {
            f"sys/class/kfd/kfd/topology/nodes/{i + 1}/properties": "simd_count 1216\ngfx_target_version 90402",
            f"{card}/vendor": "0x1002", f"{card}/power_dpm_force_performance_level": "auto",
            f"{card}/current_compute_partition": "SPX", f"{card}/current_memory_partition": "NPS1",
            f"{card}/hwmon/hwmon{i}/power1_cap": f"{cap}000000", f"{card}/hwmon/hwmon{i}/power1_cap_max": "750000000",
            f"dev/dri/renderD{128 + i}": "",
        })  # fmt: skip
    write(root, {"torch/version.py": "__version__ = '2.8.0+rocm6.4'\ncuda: Optional[str] = None\nhip: Optional[str] = '6.4.43482'"})  # fmt: skip
    for name in ("rocprofv3", "rocprof-compute"):
        command(root / "opt/rocm/bin", name, "exit 0")
    command(root / "bin", "python", """echo 'a warning'; echo '{"count": 2, "archs": ["gfx90a", "gfx942"]}'""")


def look(root: Path, environ: dict[str, str] | None = None, **more: object) -> dict[str, Line]:
    variables = {"PATH": str(root / "bin"), "HOME": "/home/u", "USER": "u"} | (environ or {})
    asked = {"python": str(root / "bin" / "python"), "torch": root / "torch", "wait": 20.0} | more
    found = audit(Machine(root, variables, **asked))  # type: ignore[arg-type]
    return {f"{line.group}/{line.name}": line for line in found}


def test_a_node_that_is_set_up_well_has_nothing_to_change(tmp_path: Path) -> None:
    mi300x(tmp_path)
    found = look(tmp_path, {"TORCHINDUCTOR_CACHE_DIR": "/home/u/inductor"})
    assert [line for line in found.values() if line.level in ("warn", "unknown", "note")] == []
    values = {name: line.value for name, line in found.items()}
    assert values["GPU/driver"] == "amdgpu 6.10.5"
    assert values["GPU/GPUs"] == "2 x gfx942"
    assert values["GPU/power cap"] == "2 x 750 W"
    assert values["software/ROCm"] == "6.4.1-83 in /opt/rocm"
    assert values["software/torch"] == "2.8.0+rocm6.4, built for ROCm 6.4.43482"
    assert values["software/torch's GPUs"] == "2 of 2"
    assert values["system/IOMMU"] == "on, passthrough (iommu=pt)"
    assert values["profilers/rocprofv3"].endswith("/opt/rocm/bin/rocprofv3")
    assert values["profilers/GPU counters"].startswith("may be read")


@pytest.mark.parametrize(
    ("files", "name", "value", "change"),
    [
        ({"proc/sys/kernel/numa_balancing": "1"}, "system/NUMA balancing", "on, 2 NUMA nodes", "sysctl kernel.numa_balancing=0"),
        ({"proc/cmdline": "ro quiet"}, "system/IOMMU", "on, translating", "iommu=pt"),
        ({"sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "powersave"}, "system/CPU governor",
         "performance (1), powersave (1)", "cpupower frequency-set -g performance"),
        ({"sys/class/drm/card1/device/hwmon/hwmon1/power1_cap": "500000000"}, "GPU/power cap",
         "GPU 0: 750 W, GPU 1: 500 W of 750 W", "set --gpu 1 --power-cap 750"),
        ({"sys/class/kfd/kfd/proc/4242/pasid": "1"}, "GPU/other processes", "1 (pid 4242)", "ps -o"),
        ({"torch/version.py": "__version__ = '2.13.0'\ncuda = '13.0'\nhip = None"}, "software/torch",
         "2.13.0, built for CUDA 13.0", "pip install torch"),
        ({"sys/class/kfd/kfd/topology/nodes/2/properties": "simd_count 1024\ngfx_target_version 90500"},
         "software/torch's kernels", "none for gfx950 (built for gfx90a, gfx942)", "install a build"),
        ({"proc/mounts": "server:/home /home nfs4 rw 0 0"}, "caches/Triton", "/home/u/.triton/cache, not there yet", "TRITON_CACHE_DIR"),
    ],
    ids=["numa", "iommu", "governor", "power-cap", "processes", "torch-build", "arch", "network-disk"],
)  # fmt: skip
def test_what_costs_speed_or_honesty_is_named_with_its_change(
    tmp_path: Path, files: dict[str, str], name: str, value: str, change: str
) -> None:
    mi300x(tmp_path)
    write(tmp_path, files)
    line = look(tmp_path)[name]
    assert (line.level, line.value) == ("warn", value)
    assert any(change in command for command in line.change)
    assert line.matters


def test_a_variable_at_its_default_changes_nothing_and_the_default_depends_on_rocm_and_the_gpu(tmp_path: Path) -> None:
    mi300x(tmp_path)
    both = {"HIP_FORCE_DEV_KERNARG": "1", "TORCH_BLAS_PREFER_HIPBLASLT": "1"}
    found = look(tmp_path, both)
    for name in both:
        assert (found[f"variables/{name}"].level, found[f"variables/{name}"].default) == ("ok", True)
        assert "changes nothing" in found[f"variables/{name}"].matters
    assert look(tmp_path)["variables/HIP_FORCE_DEV_KERNARG"].value == "unset (default 1)"
    write(tmp_path, {"opt/rocm/.info/version": "6.1.2"})
    for i in (1, 2):
        write(
            tmp_path, {f"sys/class/kfd/kfd/topology/nodes/{i}/properties": "simd_count 480\ngfx_target_version 90008"}
        )
    older = look(tmp_path, both)
    assert older["GPU/GPUs"].value == "2 x gfx908"
    for name in both:
        assert (older[f"variables/{name}"].level, older[f"variables/{name}"].default) == ("note", False)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("AMD_SERIALIZE_KERNEL", "3", "nothing overlaps"),
        ("HIP_FORCE_DEV_KERNARG", "0", "default 1"),
        ("RCCL_DEBUG", "INFO", "NCCL_DEBUG is meant"),
        ("TORCHINDUCTOR_FREEZNG", "1", "is TORCHINDUCTOR_FREEZING meant"),
    ],
)
def test_a_variable_that_slows_or_that_nobody_reads_is_a_warning(
    tmp_path: Path, name: str, value: str, says: str
) -> None:
    mi300x(tmp_path)
    line = look(tmp_path, {name: value})[f"variables/{name}"]
    assert line.level == "warn"
    assert says in line.matters
    assert line.change == (f"unset {name}",)


@pytest.mark.parametrize(
    ("rocm", "arch", "gpus", "level"),
    [("7.13.0", 90010, 2, "warn"), ("10.0.0", 90010, 4, "warn"), ("7.2.1", 90010, 2, "ok"), ("7.13.0", 90402, 2, "ok"),
     ("7.13.0", 90010, 1, "ok")],
)  # fmt: skip
def test_scratch_is_to_be_kept_where_small_collectives_need_it(
    tmp_path: Path, rocm: str, arch: int, gpus: int, level: str
) -> None:
    mi300x(tmp_path, gpus=gpus)
    write(tmp_path, {"opt/rocm/.info/version": rocm})
    for i in range(1, gpus + 1):
        node = {f"sys/class/kfd/kfd/topology/nodes/{i}/properties": f"simd_count 416\ngfx_target_version {arch}"}
        write(tmp_path, node)
    line = look(tmp_path)["variables/HSA_NO_SCRATCH_RECLAIM"]
    assert line.level == level
    if level == "warn":
        assert "5 to 10 times" in line.matters
        assert line.change == ("export HSA_NO_SCRATCH_RECLAIM=1",)
        assert look(tmp_path, {"HSA_NO_SCRATCH_RECLAIM": "1"})["variables/HSA_NO_SCRATCH_RECLAIM"].level == "note"


@pytest.mark.parametrize(
    ("name", "value", "level", "says"),
    [
        ("MIOPEN_FIND_ENFORCE", "2", "note", "5 DB_CLEAN removes results"),
        ("MIOPEN_FIND_ENFORCE", "SEARCH", "warn", "3 SEARCH tunes"),
        ("MIOPEN_FIND_MODE", "6", "note", "7 TRUST_VERIFY_FULL"),
        ("HIPBLASLT_ALLOW_TF32", "1", "note", "from 2.10 on nothing reads it"),
        ("TORCH_ROCM_FA_PREFER_CK", "1", "note", "gfx942 and gfx950 alone"),
        ("PYTORCH_MIOPEN_SUGGEST_NHWC_BATCHNORM", "1", "note", "batch normalization"),
    ],
)
def test_a_variable_says_what_its_values_do_and_which_versions_read_it(
    tmp_path: Path, name: str, value: str, level: str, says: str
) -> None:
    mi300x(tmp_path)
    line = look(tmp_path, {name: value})[f"variables/{name}"]
    assert line.level == level
    assert says in line.matters


def test_clocks_that_are_held_are_given_back_with_amd_smi(tmp_path: Path) -> None:
    mi300x(tmp_path)
    write(tmp_path, {"sys/class/drm/card0/device/power_dpm_force_performance_level": "manual"})
    assert look(tmp_path)["GPU/clocks"].change == ("sudo amd-smi set --gpu all --perf-level AUTO",)


@pytest.mark.parametrize(("hip", "noted"), [("7.2.26015", True), ("7.0.51831", False), ("7.13.60610", False)])
def test_a_build_of_rocm_7_2_may_lose_kernels_of_graphs_in_traces(tmp_path: Path, hip: str, noted: bool) -> None:
    mi300x(tmp_path)
    write(tmp_path, {"torch/version.py": f"__version__ = '2.11.0+rocm'\ncuda = None\nhip: Optional[str] = '{hip}'"})
    found = look(tmp_path)
    assert ("software/torch's profiler" in found) is noted
    assert not noted or "lack kernels of HIP graphs" in found["software/torch's profiler"].matters


def test_a_small_shared_memory_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mi300x(tmp_path)
    (tmp_path / "dev/shm").mkdir()
    for size, level in ((64 << 20, "note"), (64 << 30, "ok")):
        monkeypatch.setattr(Machine, "size", lambda self, name, size=size: size)
        line = look(tmp_path)["system/shared memory"]
        assert (line.level, line.value) == (level, f"{size >> 20} MiB in /dev/shm")
        assert ("--shm-size" in "".join(line.change)) is (level == "note")


def test_gpus_that_differ_are_named_and_the_others_counted(tmp_path: Path) -> None:
    mi300x(tmp_path, gpus=8)
    write(tmp_path, {"sys/class/drm/card3/device/hwmon/hwmon3/power1_cap": "600000000"})
    line = look(tmp_path)["GPU/power cap"]
    assert line.value == "7 x 750 W, GPU 3: 600 W of 750 W"
    assert line.change == ("sudo amd-smi set --gpu 3 --power-cap 750",)


def test_visibility_variables_that_apply_one_after_the_other_are_a_warning(tmp_path: Path) -> None:
    mi300x(tmp_path)
    assert look(tmp_path)["GPU/visibility"].value == "all 2 GPUs"
    assert look(tmp_path, {"HIP_VISIBLE_DEVICES": "1"})["GPU/visibility"].level == "note"
    twice = look(tmp_path, {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"})["GPU/visibility"]
    assert (twice.level, twice.default) == ("warn", False)
    assert look(tmp_path, {"HIP_VISIBLE_DEVICES": ""})["GPU/visibility"].matters == "no GPU is visible"


def test_a_torch_that_does_not_answer_costs_its_time_limit_and_its_line_only(tmp_path: Path) -> None:
    mi300x(tmp_path)
    slow = command(tmp_path / "bin", "python", "exec sleep 60")
    begun = time.monotonic()
    found = look(tmp_path, python=slow, wait=0.5)
    assert time.monotonic() - begun < 30
    assert found["software/torch's GPUs"].level == "unknown"
    assert found["software/torch"].value.startswith("2.8.0")  # its files are enough for that
    assert look(tmp_path, torch=None)["software/torch"].value == "not installed"


SMI = """case "$1" in
--query-gpu=*) echo 'NVIDIA H100 80GB HBM3, 570.86.15, 9.0, 600.00, 700.00, Disabled, [N/A], 1980';;
--query-compute-apps=*) echo '31337, python, 1024';;
*) exit 2;; esac"""


def test_an_nvidia_machine_is_read_from_proc_and_nvidia_smi(tmp_path: Path) -> None:
    command(tmp_path / "bin", "nvidia-smi", SMI)
    write(tmp_path, {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build",
                     "proc/driver/nvidia/gpus/0000:1b:00.0/information": "Model: NVIDIA H100",
                     "proc/driver/nvidia/params": "RmProfilingAdminOnly: 1"})  # fmt: skip
    found = look(tmp_path, torch=None)
    assert found["GPU/driver"].value == "NVIDIA 570.86.15"
    assert found["GPU/GPUs"].value == "NVIDIA H100 80GB HBM3 (sm90)"
    assert (found["GPU/power cap"].level, found["GPU/power cap"].value) == ("warn", "600 W of 700 W")
    assert found["GPU/power cap"].change == ("sudo nvidia-smi -i 0 -pl 700",)
    assert found["GPU/other processes"].value == "1 (pid 31337)"
    assert found["GPU/clocks"].value == "1980 MHz at most"
    assert found["GPU/persistence mode"].level == "note"
    assert found["profilers/GPU counters"].value.startswith("only root may read them")
    assert "variables/GPU_MAX_HW_QUEUES" not in found  # AMD's
    command(tmp_path / "bin", "nvidia-smi", "exit 9")
    assert look(tmp_path, torch=None)["GPU/GPUs"].level == "unknown"


def test_an_empty_machine_and_one_of_damaged_files_give_lines_and_no_error(tmp_path: Path) -> None:
    found = look(tmp_path, torch=None)
    assert found["GPU/GPU"].value == "none found"
    assert "profilers/rocprofv3" not in found
    mi300x(tmp_path / "bad")
    for path in sorted((tmp_path / "bad").rglob("*")):
        if path.is_file() and "bin" not in path.parts:
            path.write_bytes(b"\xff\x00 9 = {[(*")
    damaged = look(tmp_path / "bad")
    assert damaged
    assert not [line for line in damaged.values() if "stopped" in line.value]


def test_a_cache_in_the_temporary_folder_or_without_rights_is_said(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"HOME": "/home/u", "USER": "u"}, torch=None)
    found = {line.name: line for line in cache_lines(machine, Here("", 0))}
    assert (found["Inductor"].level, found["Inductor"].value) == ("note", "/tmp/torchinductor_u, not there yet")
    assert "MIOpen tuning" not in found
    if os.geteuid() == 0:
        return  # root may write everywhere
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    machine = Machine(tmp_path, {"TRITON_CACHE_DIR": "/closed/triton"}, torch=None)
    assert {line.name: line for line in cache_lines(machine, Here("", 0))}["Triton"].level == "warn"


def test_every_variable_says_what_when_and_whose_word() -> None:
    names = [row["name"] for row in known()]
    assert len(set(names)) == len(names)
    for row in known():
        assert row["for"] in ("amd", "nvidia", "any")
        assert all(row[key] for key in ("does", "when", "source")), row["name"]
        assert isinstance(row["default"], str)
        assert set(row) <= {"name", "for", "default", "else", "does", "when", "versions", "slow", "unread", "shown", "needed", "change", "source"}  # fmt: skip


@pytest.mark.parametrize(("load", "status"), [("1.20", "ok"), ("2.90", "warn"), (None, "unknown")])
def test_load_is_held_against_the_cpus(load: str | None, status: str, tmp_path: Path) -> None:
    mi300x(tmp_path)
    write(tmp_path, {"proc/loadavg": f"{load} 0.10 0.10 3/81 42" if load else "of another system"})
    line = look(tmp_path)["system/load"]
    assert line.level == status
    assert ("load average 2.9" in line.matters) == (status == "warn")


def test_torch_is_not_taken_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("here", "installed"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "torch.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').write({folder!r})")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "installed"))
    asked = software.ask(Machine(torch=tmp_path, wait=60), Here("amd", 1))
    assert asked is not None
    asked.result()
    assert (tmp_path / "ran").read_text() == "installed"
