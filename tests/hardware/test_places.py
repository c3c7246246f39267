"""Programs that are installed and not on PATH."""

from rung.hardware.places import tool_folders, which


def program(folder, name):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)
    return str(folder / name)


def test_path_comes_first_then_where_the_vendors_install(tmp_path):
    ncu = program(tmp_path / "usr/local/cuda/bin", "ncu")
    rocprofv3 = program(tmp_path / "opt/rocm/bin", "rocprofv3")
    program(tmp_path / "opt/nvidia/nsight-systems/2024.6.2/bin", "nsys")
    newer = program(tmp_path / "opt/nvidia/nsight-systems/2025.1.1/bin", "nsys")
    assert which("ncu", {}, tmp_path) == ncu
    assert which("rocprofv3", {"PATH": "/nowhere"}, tmp_path) == rocprofv3
    assert which("nsys", {}, tmp_path) == newer
    own = program(tmp_path / "mine", "ncu")
    assert which("ncu", {"PATH": str(tmp_path / "mine")}, tmp_path) == own


def test_without_a_path_the_current_folder_is_not_looked_into(tmp_path, monkeypatch):
    program(tmp_path, "ncu")
    monkeypatch.chdir(tmp_path)
    assert which("ncu", {}, tmp_path / "empty") is None


def test_the_variables_name_other_folders(tmp_path):
    program(tmp_path / "opt/rocm-7.0/bin", "x")
    assert tool_folders({"ROCM_PATH": "/opt/rocm-7.0"}, tmp_path) == [tmp_path / "opt/rocm-7.0/bin"]
