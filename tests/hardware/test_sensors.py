"""Sensors: the same figures from NVML, amdsmi and sysfs, and what is missing stays missing."""

from __future__ import annotations

import json
import os
import struct
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from rung.hardware.device import Device
from rung.hardware.sensors import Reading, Watch, commands, identity, joules, sensor_for, sensors_here
from rung.hardware.sensors.amdsmi import AmdSmi
from rung.hardware.sensors.commands import AmdSmiCommand, RocmSmiCommand
from rung.hardware.sensors.kfd import bus_of
from rung.hardware.sensors.nvml import Nvml
from rung.hardware.sensors.sysfs import Sysfs
from rung.records.measured import Range


def fake_amdsmi(power: dict[str, Any], **more: Any) -> Any:
    """As amdsmi answers: dicts, "N/A" for what a GPU does not have, an exception for what it does not know at all."""
    smi = types.ModuleType("amdsmi")

    def refused(*_: Any) -> Any:
        raise RuntimeError("AMDSMI_STATUS_NOT_SUPPORTED")

    handles = {"a": "0000:05:00.0", "b": "0000:0C:00.0"}
    answers = {
        "amdsmi_init": lambda: None,
        "amdsmi_get_processor_handles": lambda: list(handles),
        "amdsmi_get_gpu_device_bdf": handles.__getitem__,
        "amdsmi_get_power_info": lambda gpu: power | {"gpu": gpu},
        "amdsmi_get_energy_count": refused,
        "amdsmi_get_violation_status": refused,
        "amdsmi_get_clock_info": lambda gpu, kind: {"clk": {"GFX": 2100, "MEM": 1300}[kind], "max_clk": 2100},
        "amdsmi_get_temp_metric": lambda gpu, spot, metric: 61,
        "amdsmi_get_gpu_vram_usage": lambda gpu: {"vram_used": 512, "vram_total": 196592},
        "amdsmi_get_gpu_activity": lambda gpu: {"gfx_activity": 87, "umc_activity": 31, "mm_activity": "N/A"},
        "AmdSmiClkType": types.SimpleNamespace(GFX="GFX", MEM="MEM"),
        "AmdSmiTemperatureType": types.SimpleNamespace(HOTSPOT=1),
        "AmdSmiTemperatureMetric": types.SimpleNamespace(CURRENT=0),
    } | more
    for name, answer in answers.items():
        setattr(smi, name, answer)
    return smi


def test_amdsmi_reads_the_power_that_the_generation_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    mi300 = fake_amdsmi({"current_socket_power": 612, "average_socket_power": "N/A", "power_limit": 750})
    monkeypatch.setitem(sys.modules, "amdsmi", mi300)
    sensor = AmdSmi(None, 0)
    assert sensor.limit == 750
    seen = sensor.read()
    assert (seen.power, seen.core, seen.memory, seen.celsius) == (612, 2100, 1300, 61)
    assert seen.energy is None
    assert (seen.used, seen.total, seen.busy, seen.memory_busy) == (512 * 2**20, 196592 * 2**20, 0.87, 0.31)
    assert seen.throttled == ()
    mi200 = fake_amdsmi({"current_socket_power": "N/A", "average_socket_power": 301, "power_limit": 560_000_000})
    monkeypatch.setitem(sys.modules, "amdsmi", mi200)
    assert AmdSmi(None, 1).read().power == 301
    assert AmdSmi(None, 1).limit == 560


def test_amdsmi_counts_energy_and_names_what_holds_the_clocks_down(monkeypatch: pytest.MonkeyPatch) -> None:
    smi = fake_amdsmi(
        {"current_socket_power": 700},
        amdsmi_get_energy_count=lambda gpu: {"energy_accumulator": 2_000_000, "counter_resolution": 15.3, "timestamp": 1},
        amdsmi_get_violation_status=lambda gpu: {"active_ppt_pwr": True, "active_socket_thrm": False, "active_hbm_thrm": "N/A"},
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    seen = AmdSmi(None, 0).read()
    assert seen.energy == pytest.approx(30.6)
    assert seen.throttled == ("power cap",)


def test_a_gpu_is_found_by_its_bus_address_because_visibility_variables_renumber(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    smi = fake_amdsmi({"current_socket_power": 1})
    asked: list[str] = []
    smi.amdsmi_get_power_info = lambda gpu: asked.append(gpu) or {"current_socket_power": 1}
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    AmdSmi("0000:0c:00.0", 0).read()
    assert set(asked) == {"b"}


def card(root: Path, number: int, bus: str, files: dict[str, str]) -> None:
    device = root / "devices" / bus
    (device / "hwmon" / "hwmon3").mkdir(parents=True)
    (device / "vendor").write_text("0x1002\n")
    for name, text in files.items():
        (device / name if name.startswith(("pp_", "mem_", "gpu_")) else device / "hwmon" / "hwmon3" / name).write_text(
            text
        )
    (root / f"card{number}").mkdir()
    (root / f"card{number}" / "device").symlink_to(device)


def test_sysfs_is_read_where_there_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "card0" / "device").mkdir(parents=True)  # a display adapter of another vendor
    (tmp_path / "card0" / "device" / "vendor").write_text("0x1a03\n")
    card(tmp_path, 1, "0000:05:00.0", {"power1_average": "301000000\n", "power1_cap": "560000000\n", "temp1_input": "43000\n",
                                       "temp2_input": "51000\n", "pp_dpm_sclk": "0: 500Mhz\n1: 1700Mhz *\n", "pp_dpm_mclk": "0: 1600Mhz *\n"})  # fmt: skip
    memory = {"mem_info_vram_used": "1024\n", "mem_info_vram_total": "4096\n", "gpu_busy_percent": "87\n"}
    card(tmp_path, 10, "0000:0c:00.0", memory | {"power1_input": "612000000\n", "freq1_input": "2100000000\n"})
    old = Sysfs(None, 0, tmp_path)
    seen = old.read()
    assert (old.limit, seen.power, seen.core, seen.memory, seen.celsius) == (560, 301, 1700, 1600, 51)
    new = Sysfs("0000:0C:00.0", 0, tmp_path).read()
    assert (new.power, new.core, new.memory, new.celsius) == (612, 2100, None, None)
    assert (new.used, new.total, new.busy, new.memory_busy) == (1024, 4096, 0.87, None)
    assert (old.bus, seen.used, seen.busy) == ("0000:05:00.0", None, None)
    with pytest.raises(LookupError):
        Sysfs("0000:ff:00.0", 0, tmp_path)
    (tmp_path / "devices" / "0000:05:00.0" / "hwmon" / "hwmon3" / "power1_average").write_text("99000000\n")
    assert old.read().power == 99  # anew at every reading


def test_nvml_units_are_milliwatts_and_millijoules(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = types.ModuleType("pynvml")

    class NVMLError(Exception):
        pass

    def not_supported(*_: Any) -> Any:
        raise NVMLError

    answers = {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetEnforcedPowerLimit": lambda gpu: 700_000,
        "nvmlDeviceGetTotalEnergyConsumption": not_supported,
        "nvmlDeviceGetPowerUsage": lambda gpu: 266_500,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda gpu: 0x4 | 0x1,
        "nvmlDeviceGetClockInfo": lambda gpu, kind: {1: 1980, 2: 2619}[kind],
        "nvmlDeviceGetTemperature": lambda gpu, spot: 44,
        "nvmlDeviceGetPciInfo": lambda gpu: types.SimpleNamespace(busId="00000000:1B:00.0"),
        "nvmlDeviceGetMemoryInfo": lambda gpu: types.SimpleNamespace(used=10, total=80),
        "nvmlDeviceGetUtilizationRates": lambda gpu: types.SimpleNamespace(gpu=99, memory=40),
    }
    for name, answer in answers.items():
        setattr(nvml, name, answer)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    sensor = Nvml("GPU-1", None, 0)
    assert (sensor.limit, sensor.bus) == (700, "0000:1b:00.0")
    seen = sensor.read()
    assert (seen.used, seen.total, seen.busy, seen.memory_busy) == (10, 80, 0.99, 0.4)
    assert (seen.energy, seen.power, seen.core, seen.memory, seen.celsius) == (None, 266.5, 1980, 2619, 44)
    assert seen.throttled == ("power cap",)  # an idle bit holds nothing down
    # As of a driver before 535, whose library lacks the newer name.
    monkeypatch.setattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", not_supported)
    monkeypatch.setattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", lambda gpu: 0x20, raising=False)
    assert sensor.read().throttled == ("temperature",)


def metrics(version: int, *fields: tuple[int, str, int]) -> bytes:
    """A gpu_metrics table of format 1: fields are offset, form and value."""
    table = bytearray(struct.pack("<HBB", 512, 1, version) + bytes(508))
    for offset, form, value in fields:
        struct.pack_into(form, table, offset, value)
    return bytes(table)


def test_sysfs_says_what_holds_the_clocks_down_and_counts_energy(tmp_path: Path) -> None:
    """MI200 states it by bits, MI300 counts for how long it did: what grew since the reading before."""
    card(tmp_path, 0, "0000:05:00.0", {"power1_average": "301000000\n"})
    card(tmp_path, 1, "0000:0c:00.0", {"power1_input": "612000000\n"})
    old, new = (tmp_path / "devices" / bus / "gpu_metrics" for bus in ("0000:05:00.0", "0000:0c:00.0"))
    old.write_bytes(metrics(3, (112, "<Q", 1 << 0 | 1 << 36 | 1 << 34)))
    seen = Sysfs(None, 0, tmp_path).read()
    assert seen.throttled == ("power cap", "temperature", "temperature of the memory")
    assert seen.energy is None
    old.write_bytes(metrics(3, (112, "<Q", 2**64 - 1)))  # not supported
    assert Sysfs(None, 0, tmp_path).read().throttled == ()

    new.write_bytes(metrics(7, (24, "<Q", 5 * 2**16), (48, "<I", 70), (60, "<I", 2**32 - 1)))
    sensor = Sysfs(None, 1, tmp_path)
    seen = sensor.read()
    assert (seen.energy, seen.throttled) == (5.0, ())  # 70 cycles ago, nobody knows when
    new.write_bytes(metrics(7, (24, "<Q", 6 * 2**16), (48, "<I", 71), (60, "<I", 2**32 - 1)))
    seen = sensor.read()
    assert (seen.energy, seen.throttled) == (6.0, ("power cap",))
    assert sensor.read().throttled == ()
    for strange in (b"", b"\x04", metrics(9), metrics(6)[:20], struct.pack("<HBB", 512, 2, 3) + bytes(508)):
        new.write_bytes(strange)
        assert (sensor.read().energy, sensor.read().throttled) == (None, ())


@pytest.mark.parametrize("newer", [True, False])
def test_nvml_memory_in_use_is_without_what_the_driver_keeps(monkeypatch: pytest.MonkeyPatch, newer: bool) -> None:
    class NVMLError(Exception):
        pass

    def memory(gpu: object, version: int | None = None) -> object:
        """Of an older driver the second form is not known."""
        if version == 2 and not newer:
            raise NVMLError
        return types.SimpleNamespace(used=1000 if version == 2 else 1500, total=80_000)

    nvml = types.ModuleType("pynvml")
    for name, answer in {"NVMLError": NVMLError, "nvmlInit": lambda: None, "nvmlDeviceGetHandleByIndex": lambda index: index,
                         "NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2, "NVML_TEMPERATURE_GPU": 0, "nvmlMemory_v2": 2,
                         "nvmlDeviceGetMemoryInfo": memory}.items():  # fmt: skip
        setattr(nvml, name, answer)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert Nvml(None, None, 0).read().used == (1000 if newer else 1500)


def test_no_sensor_is_no_error() -> None:
    assert sensor_for(None) is None
    assert sensor_for({"vendor": "amd", "uuid": None, "bus": "0000:ff:00.0"}) is None


def driver(root: Path, *buses: int) -> Path:
    """/sys of a host whose driver lists two CPUs, then GPUs on these buses."""
    for node, place in enumerate([0, 0, *(bus << 8 for bus in buses)]):
        folder = root / f"class/kfd/kfd/topology/nodes/{node}"
        folder.mkdir(parents=True)
        (folder / "properties").write_text(
            f"cpu_cores_count 0\nsimd_count {1024 if place else 0}\nlocation_id {place}\ndomain 0\n"
        )
        (folder / "gpu_id").write_text(f"{place}\n")
    return root


@pytest.mark.parametrize(
    ("variables", "count", "bus"),
    [
        ({}, 3, "05"),
        ({}, 2, None),  # something hides a GPU, and who knows which
        ({"ROCR_VISIBLE_DEVICES": "2,0"}, 2, "75"),
        ({"HIP_VISIBLE_DEVICES": "1,2", "CUDA_VISIBLE_DEVICES": "0"}, 2, "65"),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": " 0 , 2"}, 2, "65"),
        ({"ROCR_VISIBLE_DEVICES": "2,1,0", "HIP_VISIBLE_DEVICES": "1,0"}, 2, "65"),
        ({"ROCR_VISIBLE_DEVICES": "GPU-36a1", "HIP_VISIBLE_DEVICES": "0"}, 1, None),
        ({"HIP_VISIBLE_DEVICES": "0,1,7"}, 2, None),
    ],
)
def test_torch_s_number_of_an_amd_gpu_leads_to_its_address_where_that_is_certain(
    variables: dict[str, str], count: int, bus: str | None, tmp_path: Path
) -> None:
    found = bus_of(1, count, variables, driver(tmp_path, 0x75, 0x05, 0x65))
    assert found == (f"0000:{bus}:00.0" if bus else None)


def test_torch_before_2_9_says_no_address_and_a_gpu_that_may_be_another_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: types.SimpleNamespace(name="MI300X"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setitem(sys.modules, "amdsmi", fake_amdsmi({"current_socket_power": 1}))
    device = Device("cuda", 0, "amd", "MI300X", "gfx942", 1, 304)
    places = driver(tmp_path, 0x05, 0x0C)
    monkeypatch.setattr("rung.hardware.sensors.find.bus_of", lambda *words: bus_of(*words, places))
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    monkeypatch.delenv("ROCR_VISIBLE_DEVICES", raising=False)
    found = sensor_for(identity(device))
    assert found is not None
    assert found.bus == "0000:0c:00.0"
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "GPU-36a1")
    assert sensor_for(identity(device)) is None


class Scripted:
    source, limit = "nvml", 700.0

    def __init__(self, *readings: Reading) -> None:
        self.readings = list(readings)

    def read(self) -> Reading:
        return self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]


def test_energy_is_the_counters_difference_and_gaps_between_entries_do_not_count() -> None:
    watch = Watch(Scripted(Reading(0.0, 100.0, 50, 1980), Reading(2.0, 500.0, 150, 1900, throttled=("power cap",)),
                           Reading(9.0, 900.0, 60, 1980), Reading(10.0, 1000.0, 60, 1980)), every=60)  # fmt: skip
    for _ in range(2):
        with watch:
            pass
    seen = watch.summary()
    assert seen is not None
    assert (seen.seconds, seen.energy) == (3.0, 500.0)
    assert seen.power == pytest.approx(500 / 3)
    assert seen.core == Range(median=1980, low=1900, high=1980)
    assert seen.throttled == {"power cap": 0.25}


def test_without_a_counter_energy_is_the_integral_of_the_power() -> None:
    watch = Watch(Scripted(Reading(0.0, power=100.0), Reading(4.0, power=200.0)), every=60)
    with watch:
        pass
    seen = watch.summary()
    assert seen is not None
    assert seen.energy == pytest.approx(600)
    assert Watch(None).summary() is None


# ---- amd-smi and rocm-smi: stand-ins that answer as both generations do, and accept nothing else ------------------


def stand_in(folder: Path, name: str, answers: dict[str, Any], before: str = "") -> None:
    """An executable that answers these argument lists, and fails for all others."""
    cases = "\n".join(
        f"if [ \"$*\" = '{words}' ]; then cat <<'END'\n{before}{json.dumps(answer, indent=4)}\nEND\nexit 0; fi"
        for words, answer in answers.items()
    )
    path = folder / name
    path.write_text(f'#!/bin/sh\n{cases}\necho "unrecognized arguments: $*" >&2; exit 2\n')
    path.chmod(0o755)


def amd_smi(*, newer: bool) -> dict[str, Any]:
    def of(value: float, unit: str) -> Any:
        return {"value": value, "unit": unit}

    gpus = [{"gpu": 0, "bdf": "0000:05:00.0"}, {"gpu": 1, "bdf": "0000:0C:00.0"}]
    limit = {"max_power": of(750, "W"), "socket_power": of(600, "W")}
    metric = {
        "gpu": 0,
        "usage": {"gfx_activity": of(87, "%"), "umc_activity": of(31, "%")},
        "power": {"socket_power": of(142, "W")} if newer else {"average_socket_power": 142},
        "clock": {"gfx_0": {"clk": of(2100, "MHz")}, "mem_0": {"clk": of(1300, "MHz")}},
        "temperature": {"edge": "N/A", "hotspot": of(51, "C")},
        "mem_usage": {"total_vram": of(196592, "MB"), "used_vram": of(1000, "MB")},
    }
    idle = {"gpu": 1, "power": {"socket_power": "N/A"}}
    answers: dict[str, Any] = {
        "list --json": gpus,
        "metric -p -c -t -u -m --json": [metric, idle],
        "static --limit --json": [{"gpu": 0, "limit": {"ppt0": {"socket_power_limit": 600}} if newer else limit}],
    }
    return {words: {"gpu_data": rows} if newer and "list" not in words else rows for words, rows in answers.items()}


@pytest.mark.parametrize("newer", [False, True], ids=["rocm6", "rocm7"])
def test_amd_smi_of_both_generations_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer: bool) -> None:
    stand_in(tmp_path, "amd-smi", amd_smi(newer=newer), before="[WARN] the driver is older than this tool\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    sensor = AmdSmiCommand("0000:05:00.0", 7)
    seen = sensor.read()
    assert (sensor.limit, sensor.bus) == (600, "0000:05:00.0")
    assert (seen.power, seen.core, seen.memory, seen.celsius) == (142, 2100, 1300, 51)
    assert (seen.busy, seen.memory_busy, seen.used, seen.total) == (0.87, 0.31, 1000 * 2**20, 196592 * 2**20)
    assert AmdSmiCommand(None, 1).read().power is None  # "N/A"
    with pytest.raises(LookupError):
        AmdSmiCommand(None, 2)


def test_rocm_smi_writes_numbers_as_text_and_a_second_die_has_no_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {"Average Graphics Package Power (W)": "301.0", "sclk clock speed:": "(1700Mhz)", "mclk clock speed:": "(1600Mhz)",
             "Temperature (Sensor edge) (C)": "43.0", "Temperature (Sensor junction) (C)": "51.0", "GPU use (%)": "99",
             "GPU Memory Read/Write Activity (%)": "12", "VRAM Total Memory (B)": "68702699520",
             "VRAM Total Used Memory (B)": "10960896"}  # fmt: skip
    second = first | {"Average Graphics Package Power (W)": "N/A (Secondary die)"}
    metrics = "--showpower --showclocks --showtemp --showuse --showmemuse --showmeminfo vram --json"
    bus = {"card0": {"PCI Bus": "0000:C1:00.0"}, "card1": {"PCI Bus": "0000:C6:00.0"}}
    stand_in(tmp_path, "rocm-smi", {"--showbus --json": bus, metrics: {"card0": first, "card1": second, "system": {}}})
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    seen = RocmSmiCommand("0000:c1:00.0", 0).read()
    assert (seen.power, seen.core, seen.memory, seen.celsius, seen.busy) == (301, 1700, 1600, 51, 0.99)
    assert (seen.used, seen.total) == (10960896, 68702699520)
    assert RocmSmiCommand(None, 1).read().power is None


def test_a_command_that_hangs_or_fails_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, "amd-smi", {"list --json": [{"gpu": 0, "bdf": "0000:05:00.0"}]})
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert AmdSmiCommand(None, 0).read().power is None
    (tmp_path / "amd-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(commands, "LIMIT", 0.3)
    commands._answers.cache_clear()
    with pytest.raises(LookupError):
        AmdSmiCommand(None, 0)


def test_a_way_that_sees_the_gpu_and_not_its_power_gives_way_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = fake_amdsmi({"current_socket_power": "N/A"})
    monkeypatch.setitem(sys.modules, "amdsmi", blind)
    stand_in(tmp_path, "amd-smi", amd_smi(newer=True))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setitem(sys.modules, "pynvml", None)  # no NVIDIA GPU
    commands._answers.cache_clear()
    assert [sensor.source for sensor in sensors_here()] == ["amd-smi", "amd-smi"]
    found = sensor_for({"vendor": "amd", "uuid": None, "bus": "0000:05:00.0"})
    assert found is not None
    assert found.source == "amd-smi"


def test_what_a_gpu_took_is_counted_or_else_what_it_said_last() -> None:
    assert joules(Reading(1.0, energy=50.0, power=10.0), Reading(3.0, energy=80.0, power=40.0)) == 30.0
    assert joules(Reading(1.0, power=10.0), Reading(3.0, power=40.0)) == 80.0
    assert joules(Reading(1.0, energy=50.0), Reading(3.0, energy=50.0)) is None  # a counter that stands still
