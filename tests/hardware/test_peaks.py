"""The peaks of a GPU are found by its name as drivers give it, else by its architecture; users add their own."""

import pytest

from rung.errors import InputError, UsageError
from rung.hardware.device import Device
from rung.hardware.peaks import find, known, named, peaks_of, peaks_of_properties


@pytest.fixture(autouse=True)
def _no_file_of_the_user(monkeypatch, tmp_path):
    monkeypatch.delenv("RUNG_PEAKS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("device", "row"),
    [
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("AMD Instinct MI250X / MI250", "MI250X"),
        ("AMD Instinct MI355X OAM", "MI355X"),
        ("AMD Radeon RX 7900 XTX", "RX 7900 XTX"),
        ("AMD Radeon RX 7900 XT", "RX 7900 XT"),
        ("AMD Radeon RX 9070", "RX 9070"),
        ("AMD Radeon RX 9070 XT", "RX 9070 XT"),
        ("AMD Radeon PRO W7800", "PRO W7800"),
        ("MI300X_A1", "MI300X"),  # as rocprof-compute writes it
        ("NVIDIA GH200 480GB", "GH200"),  # of the host's memory
        ("Tesla V100-SXM2-16GB", "V100 SXM2"),
        ("AMD Radeon AI PRO R9700", "AI PRO R9700"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2"),
        ("Tesla V100-PCIE-16GB", "V100 PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA A100-PG509-200", "A100 40GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
    ],
)
def test_names_of_drivers(device, row):
    assert find(device).name == row
    assert peaks_of(Device("cuda", 0, "", device, "", 0, 0)).name == row


def test_of_two_chips_with_one_name_the_number_of_units_decides(tmp_path, monkeypatch):
    both = "AMD Instinct MI250X / MI250"  # libdrm's name of PCI device 0x740C
    assert find(both, "gfx90a", 104).name == "MI250"
    assert find(both, "gfx90a", 110).name == "MI250X"
    own = tmp_path / "own.toml"
    own.write_text("[[gpu]]\nname = 'Mine'\nmatch = 'MI250'\nmemory = 10\nbandwidth = 100\nvector = { fp32 = 1 }\n")
    monkeypatch.setenv("RUNG_PEAKS", str(own))
    assert find(both, "gfx90a", 104).name == "Mine"  # a row of the user's that states no units stands


def test_a_chip_that_is_not_listed_has_no_peaks():
    assert find("NVIDIA H20", "sm90", 78) is None
    assert find("AMD Instinct MI455X", "gfx950", 256) is None  # another chip, though the architecture fits
    assert find("AMD Radeon Graphics", "gfx1036", 1) is None
    assert peaks_of(Device("cpu", 0, "cpu", "MI300X", "gfx942", 0, 304)) is None


@pytest.mark.parametrize(
    ("name", "arch", "units", "gib"),
    [
        ("NVIDIA GB300", "sm103", 152, 279),
        ("NVIDIA GH200 144G HBM3e", "sm90", 132, 144),
        ("AMD Radeon RX 9070 GRE", "gfx1201", 24, 12),
        ("AMD Radeon PRO W7800 48GB", "gfx1100", 35, 48),
        ("NVIDIA A100-SXM-64GB", "sm80", 124, 64),
        ("Tesla V100S-PCIE-32GB", "sm70", 80, 32),
    ],
)
def test_another_device_whose_name_holds_that_of_a_listed_one_has_no_peaks(name, arch, units, gib):
    assert find(name, arch, units, gib << 30) is None
    assert find(name) is None


def test_a_device_whose_memory_is_not_that_of_its_name_has_no_peaks_unless_it_is_a_part(tmp_path, monkeypatch):
    h100 = ("NVIDIA H100", "sm90")
    assert find(*h100, 132, 85_028_765_696).name == "H100"
    assert find(*h100, 132, 64 << 30) is None
    assert find(*h100, 16, 10 << 30).name == "H100, 16 of 132 units"  # MIG
    assert find("AMD Instinct MI300X", "gfx942", 38, 192 << 30).units == 38  # CPX, which may use all of it
    assert find("", "sm90", 132, 64 << 30) is None
    assert find("Tesla V100-PCIE-32GB", "sm70", 80, 32 << 30).name == "V100 PCIe"
    assert find("AMD Radeon 8060S", "gfx1151", 20, 64 << 30).name == "Radeon 8060S"
    own = tmp_path / "own.toml"
    own.write_text("[[gpu]]\nname = 'Mine'\nmatch = 'H100'\nmemory = 10\nbandwidth = 100\nvector = { fp32 = 1 }\n")
    monkeypatch.setenv("RUNG_PEAKS", str(own))
    assert find(*h100, 132, 64 << 30).name == "Mine"


def test_a_device_without_a_name_is_told_by_its_architecture_units_and_memory():
    mi300x = {"name": "", "totalGlobalMem": 206141652992, "computeMajor": 9, "computeMinor": 4, "warpSize": 64}
    assert peaks_of_properties(mi300x | {"numSms": 304}).name == "MI300X"
    assert peaks_of_properties(mi300x | {"numSms": 304, "totalGlobalMem": 274877906944}).name == "MI325X"
    generic = {"name": "AMD Radeon Graphics", "computeMajor": 9, "computeMinor": 0, "warpSize": 64, "numSms": 104}
    assert peaks_of_properties(generic).arch == "gfx90a"
    assert peaks_of_properties({"gcnArch": "gfx950:sramecc+:xnack-", "numSms": 256}).arch == "gfx950"
    assert peaks_of_properties({"computeMajor": 9, "computeMinor": 0, "warpSize": 32, "numSms": 132}).arch == "sm90"
    for hostile in ({}, {"name": 7, "numSms": "x"}, {"computeMajor": [], "warpSize": 64}, {"gcnArch": {}}):
        assert peaks_of_properties(hostile) is None


def test_of_chips_that_nothing_tells_apart_the_slowest_is_taken_and_all_are_named():
    unknown = find("", "gfx942", 304)
    assert (unknown.name, unknown.bandwidth) == ("MI300X or MI325X", find("MI300X").bandwidth)
    assert find("", "gfx942", 304, 256 << 30).name == "MI325X"
    alike = find("", "gfx950", 256, 288 << 30)  # in memory as well
    assert (alike.name, alike.rate("bf16")) == ("MI350X or MI355X", find("MI350X").rate("bf16"))
    assert find("", "gfx90a", 104).name in ("MI210", "MI250")  # of the same figures


def test_a_torch_device_is_told_by_its_memory_too():
    generic = Device("cuda", 0, "amd", "AMD Radeon Graphics", "gfx942", 256 << 30, 304)
    assert peaks_of(generic).name == "MI325X"


def test_a_partition_has_its_part_of_the_chip():
    whole, part = find("AMD Instinct MI300X", units=304), find("AMD Instinct MI300X", units=38)
    assert part.rate("bf16") == pytest.approx(whole.rate("bf16") / 8)
    assert part.bandwidth == pytest.approx(whole.bandwidth / 8)
    assert "38 of 304" in part.name
    assert find("NVIDIA H100 80GB HBM3", units=128).name == "H100"  # a few units fewer: the same figures hold


def test_a_precision_without_a_unit_runs_at_the_next_wider_rate():
    assert named("MI300X").rate("fp4") == named("MI300X").rate("fp8")
    assert named("MI210").rate("fp8") == named("MI210").rate("fp16")
    assert named("V100 SXM2").rate("bf16") == named("V100 SXM2").vector["fp32"]
    assert named("H100").rate("fp32") == 67e12
    assert named("H100").rate("bf16", matrix=False) == pytest.approx(133.8e12)
    assert named("MI210").rate("tf32") == named("MI210").rate("fp32")


@pytest.mark.parametrize("name", ["MI350X", "MI355X"])
def test_three_bfloat16_products_stand_in_for_a_tf32_unit(name):
    assert named(name).rate("tf32") == pytest.approx(named(name).rate("bf16") / 3, rel=1e-3)


def test_every_row_is_plausible_and_says_where_it_is_from():
    rows = known()
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert row.source
        assert row.arch
        assert row.units
        assert find(row.name) is not None
        assert 1e11 < row.bandwidth < 1e13
        assert 2**33 < row.memory < 2**39
        assert row.rate("fp16") >= row.rate("fp32")
        assert row.rate("fp8") >= row.rate("fp16")
        assert all(value <= row.rate(name) for name, value in row.measured.items() if name in row.matrix)
        assert row.measured.get("bandwidth", 0) <= row.bandwidth
        assert bool(row.measured) == bool(row.measured_source)
        assert row.measured_source or not row.measured_checked
    unchecked = {row.name for row in rows if not row.checked}
    assert {"H100 NVL", "GH200", "RX 7900 GRE"} <= unchecked  # nobody has opened these data sheets
    assert not {"MI210", "MI300X", "H100", "H200", "A100 80GB"} & unchecked


def test_a_document_says_whose_figures_they_are_and_how_far_they_were_checked():
    assert named("MI300X").origin["checked"].startswith("all but cache_bandwidth")
    assert named("MI355X").origin["measured_checked"] == ""
    assert set(named("H200").origin) == {"name", "source", "checked", "measured_source", "measured_checked"}


def test_asking_by_name():
    assert named("mi300x").name == "MI300X"
    assert named("NVIDIA H100 80GB HBM3").name == "H100"
    with pytest.raises(UsageError, match="'mi300' is known; did you mean MI300A or MI300X\\? To add one"):
        named("mi300")
    with pytest.raises(UsageError, match=r"no GPU named 'MI9'.*MI300X"):
        named("MI9")


def test_rows_of_the_user_come_first(tmp_path, monkeypatch):
    own = tmp_path / "own.toml"
    row = "[[gpu]]\nname = 'Mine'\nmatch = 'MI300X'\nmemory = 10\nbandwidth = 100\nvector = { fp32 = 1 }\n"
    own.write_text(row)
    assert find("AMD Instinct MI300X").name == "MI300X"
    monkeypatch.setenv("RUNG_PEAKS", str(own))
    assert find("AMD Instinct MI300X").name == "Mine"
    assert find("NVIDIA H200").name == "H200"
    (tmp_path / "rung").mkdir()
    (tmp_path / "rung" / "peaks.toml").write_text(row.replace("Mine", "Configured"))
    monkeypatch.delenv("RUNG_PEAKS")
    assert find("AMD Instinct MI300X").name == "Configured"


@pytest.mark.parametrize(
    "text",
    ["not toml [", "x = 1", "[[gpu]]\nname='a'", "gpu = 3", "[[gpu]]\nname='a'\nmatch='('\nmemory=1\nbandwidth=1"],
)
def test_a_file_of_the_user_that_is_wrong_is_an_input_error(tmp_path, monkeypatch, text):
    own = tmp_path / "own.toml"
    own.write_text(text)
    monkeypatch.setenv("RUNG_PEAKS", str(own))
    with pytest.raises(InputError, match="not a list of GPUs"):
        known()
    monkeypatch.setenv("RUNG_PEAKS", str(tmp_path / "none.toml"))
    with pytest.raises(InputError, match="cannot be read"):
        known()
