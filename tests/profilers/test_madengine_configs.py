"""Configurations written for madengine, as they are; presets of one's own."""

import json

import pytest

from rung.cli.main import main
from rung.errors import InputError
from rung.profilers import madengine
from rung.profilers.presets import _check, preset
from rung.profilers.tools import EXECUTABLES, PROFILERS
from rung.toml import shipped

# The shapes of the example configurations that it documents.
SLURM = {"partition": "amd", "nodes": 1, "gpus_per_node": 4, "time": "02:00:00", "output_dir": "o", "exclusive": True}
POWER = {"name": "gpu_info_power_profiler", "env_vars": {"POWER_DEVICE": "all", "POWER_SAMPLING_RATE": "0.2"}}
VRAM = {"name": "gpu_info_vram_profiler", "env_vars": {"VRAM_DEVICE": "all", "VRAM_SAMPLING_RATE": "0.1"}}
COMMON = {"gpu_vendor": "AMD", "guest_os": "UBUNTU"}
CONFIGS = {
    "compute_bound": (COMMON | {"tools": [{"name": "rocprofv3_compute"}, POWER]}, "compute", ("power",)),
    "memory_bound": (COMMON | {"tools": [{"name": "rocprofv3_memory"}, VRAM]}, "memory", ("vram",)),
    "comprehensive": (
        COMMON | {"tools": [{"name": "rocprofv3_full", "env_vars": {"RCCL_DEBUG": "INFO", "HSA_ENABLE_SDMA": "0"}},
                            POWER, VRAM, {"name": "miopen_trace"}, {"name": "rocblas_trace"}]}, "full", ("power", "vram")),
    "lightweight": (COMMON | {"tools": [{"name": "rocprofv3_lightweight"}]}, "lightweight", ()),
    "multi_gpu": (
        COMMON | {"slurm": SLURM, "distributed": {"launcher": "torchrun", "nnodes": 1, "nproc_per_node": 4},
                  "tools": [{"name": "rocprofv3_communication"}, POWER, VRAM]}, "communication", ("power", "vram")),
    "multi_node": (
        COMMON | {"slurm": SLURM | {"nodes": 2}, "distributed": {"launcher": "torchrun", "nnodes": 2, "nproc_per_node": 4},
                  "env_vars": {"NCCL_DEBUG": "INFO"}, "debug": False,
                  "tools": [{"name": "rocprofv3_communication"}, POWER, VRAM]}, "communication", ("power", "vram")),
    "rocm_trace_lite": (COMMON | {"tools": [{"name": "rocm_trace_lite"}]}, "lightweight", ()),
}  # fmt: skip


def written(folder, config):
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_the_documented_configurations_become_presets(name, tmp_path):
    config, expected, sample = CONFIGS[name]
    asked = madengine.read(written(tmp_path, config))
    assert asked.preset.name == expected
    assert asked.preset.sample == sample
    if name == "comprehensive":
        assert asked.preset.env["NCCL_DEBUG"] == "INFO"
        assert "RCCL_DEBUG" not in asked.preset.env
        assert asked.preset.env["ROCBLAS_LAYER"] == "6"
        assert any("RCCL_DEBUG is read by nothing" in note for note in asked.notes)
    assert asked.rate == (0.1 if name in ("memory_bound", "multi_gpu", "multi_node", "comprehensive")
                          else 0.2 if name == "compute_bound" else 0.1)  # fmt: skip
    assert asked.processes == (4 if name == "multi_gpu" else 1)
    assert any("srun" in note for note in asked.notes) == ("slurm" in config)


def test_sensors_of_some_gpus_are_sampled_with_the_rest_and_that_is_said(tmp_path):
    some = {"name": "gpu_info_power_profiler", "env_vars": {"POWER_DEVICE": "0,1"}}
    assert "POWER_DEVICE is 0,1: all GPUs" in madengine.read(written(tmp_path, {"tools": [some]})).notes[0]
    assert not any("DEVICE" in note for note in madengine.read(written(tmp_path, {"tools": [POWER]})).notes)


def test_variables_of_the_container_are_set_and_what_only_madengine_does_is_said(tmp_path):
    config = COMMON | {
        "docker_env_vars": {"A": "1", "B": 2},
        "env_vars": {"B": "3"},
        "k8s": {"gpu_count": 8},
        "tools": [],
    }
    asked = madengine.read(written(tmp_path, config))
    assert asked.preset.env == {"A": "1", "B": "3"}
    assert any(note.startswith("k8s: ") for note in asked.notes)
    assert not any("gpu_vendor" in note for note in asked.notes)


def test_a_command_is_started_in_as_many_processes_as_the_file_wants(tmp_path):
    asked = madengine.read(written(tmp_path, CONFIGS["multi_gpu"][0]))
    launcher = ("torchrun", "--standalone", "--nproc-per-node", "4")
    assert asked.launched(("/usr/bin/python3", "t.py", "--x")) == (*launcher, "t.py", "--x")
    assert asked.launched(("./app",)) == (*launcher, "--no-python", "./app")
    assert asked.launched(("torchrun", "t.py")) == ("torchrun", "t.py")
    assert asked.launched(()) == ()


def test_a_configuration_runs_unchanged_to_the_end(tools_on_path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tools_on_path("rocprofv3", "rocprofv3-avail")
    path = written(tmp_path, CONFIGS["compute_bound"][0])
    assert (
        main(["profile", "--madengine-config", str(path), "--arch", "gfx942", "--out", "o", "--json", "--", "true"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["analysis"]["counters"] > 0


@pytest.mark.parametrize(
    ("cmd", "tool", "extra", "formats"),
    [
        ("rocprofv3 --runtime-trace --", "rocprofv3", ("--runtime-trace",), ()),
        ("bash ../scripts/common/tools/rocprof_wrapper.sh --sys-trace --output-format json -d ./o --", "rocprofv3",
         ("--sys-trace",), ("json",)),
        ("rocprofv3 --hip-trace --perfetto-trace-filename m.pftrace --", "rocprofv3", ("--hip-trace",), ()),
        ("rocprof-sys-run --trace --", "rocprof-sys", ("--trace",), ()),
    ],
)  # fmt: skip
def test_a_command_of_the_files_own_keeps_its_options_and_gets_our_folder(cmd, tool, extra, formats, tmp_path):
    asked = madengine.read(written(tmp_path, {"tools": [{"name": "mine", "cmd": cmd}]}))
    assert (asked.preset.tool, asked.preset.extra, asked.preset.formats) == (tool, extra, formats)


def test_such_a_command_is_run(tools_on_path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tools_on_path("rocprofv3")
    path = written(tmp_path, {"tools": [{"name": "mine", "cmd": "rocprofv3 --runtime-trace -d x --"}]})
    assert main(["profile", "--madengine-config", str(path), "--out", "o", "--json", "--", "true"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert "--runtime-trace" in answer["plan"]["runs"][0]["argv"]
    assert answer["analysis"]["parts"][0]["timeline"][0]["kernels"] == 3


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("{", "is not JSON"),
        ("[1]", "must hold an object"),
        ({"tools": "rocprof"}, "tools must be a list"),
        ({"tools": [{"name": "magic"}]}, "there is no tool 'magic'"),
        ({"tools": [{"name": "x", "cmd": "perf record --"}]}, "is not a profiler that is known"),
        (
            {"tools": [{"name": "gpu_info_power_profiler", "env_vars": {"POWER_SAMPLING_RATE": "0"}}]},
            "sampling rate of '0'",
        ),
        ({"tools": [{"name": "rocprof", "env_vars": ["A=1"]}]}, "env_vars must be an object"),
        ({"tools": [{"name": "own", "cmd": "rocprofv3 --kernel-trace 'x"}]}, "cannot be split into words"),
        ({"tools": [], "distributed": {"nproc_per_node": "all"}}, "distributed must hold numbers"),
        ({"tools": [], "distributed": ["torchrun"]}, "distributed must hold numbers"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(config, says, tmp_path):
    with pytest.raises(InputError, match=says):
        madengine.read(written(tmp_path, config))


def test_presets_of_ones_own_add_and_replace(tmp_path, monkeypatch):
    path = tmp_path / "p.toml"
    path.write_text(
        '[mine]\nlike = "memory"\nsays = "m"\nformats = ["pftrace"]\n\n[hotspots]\nsources = ["kernels", "hip"]\n'
    )
    monkeypatch.setenv("RUNG_PRESETS", str(path))
    assert preset("mine").counters == "memory"
    assert preset("mine").formats == ("pftrace",)
    assert preset("hotspots").sources == ("kernels", "hip")
    assert preset("compute").counters == "compute"


def test_the_shipped_presets_are_such_tables_and_every_profiler_can_be_named():
    for name, table in shipped("profilers/presets.toml").items():
        _check(name, table)
    assert PROFILERS[1:] == tuple(EXECUTABLES)


def test_a_format_that_no_rocprofv3_writes_is_said(tmp_path, capsys):
    tool = {"name": "own", "cmd": "rocprofv3 --kernel-trace --output-format perfetto --"}
    words = ["--madengine-config", str(written(tmp_path, {"tools": [tool]})), "--dry-run", "--", "true"]
    assert main(["profile", *words]) == 2
    assert "rocprofv3 does not write perfetto: it writes csv, json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[a]\nsource = ["kernels"]\n', "unknown field `source`.*keys are says, with, like, sources"),
        ('[a]\nsources = "kernels"\n', "got `str` - at .*; sources may be kernels, hip, hsa"),
        ('[a]\nsources = ["kernel"]\n', "value 'kernel'.*; sources may be kernels, hip"),
        ('[a]\nwith = "perf"\n', "value 'perf'.*; with may be torch, rocprofv3"),
        ('[a]\nformats = ["perfetto"]\n', "'perfetto'.*; formats may be csv, json, pftrace"),
        ('[a]\nsampling = "host-trap"\n', "'host-trap'.*; sampling may be host_trap, stochastic"),
        ('[a]\nsampling = "host_trap"\nrate = 0\n', r"`int` >= 1 - at `\$.rate`"),
        ("[a]\nrate = true\n", r"at `\$.rate`"),
        ("[a]\nenv = { ROCBLAS_LAYER = 6 }\n", r"xpected `str`, got `int` - at `\$.env"),
        ('[a]\nenv = { "A=B" = "x" }\n', "is not a preset"),
        ("[a]\nextra = [1]\n", r"xpected `str`, got `int` - at `\$.extra"),
        ('[a]\nextra = ["\\u0000"]\n', "is not a preset"),
        ('[a]\nlike = "b"\n', "is like 'b'"),
        ("a = 1\n", "is not a table"),
    ],
)
def test_a_preset_of_ones_own_that_is_wrong_is_refused(text, says, tmp_path, monkeypatch):
    path = tmp_path / "p.toml"
    path.write_text(text)
    monkeypatch.setenv("RUNG_PRESETS", str(path))
    with pytest.raises(InputError, match=says):
        preset("a")
