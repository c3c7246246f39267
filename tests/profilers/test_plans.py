"""What would be run: every option of the documented grammar, by version and by GPU; nothing is started."""

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from rung.cli.main import main
from rung.profilers import nsight, rocprof, rocprof_compute, rocprof_sys, rocprofv3
from rung.profilers.plan import NotPlanned, Plan, Request, Run, shown
from rung.profilers.presets import presets
from rung.profilers.tools import Tool, architectures, find, fits_one_pass, rocm_version

APP = ("python", "train.py", "--", "--epochs", "1")
OUT = Path("/out/recording")


def asked(name="rocprofv3", version=(7, 0), legacy="", **more):
    return Request(APP, OUT, Tool(name, Path(f"/opt/rocm/bin/{name}"), version, legacy), **more)


def test_rocprofv3_is_cut_at_the_first_dashes_and_the_programs_own_are_kept():
    plan = rocprofv3.plan(asked(sources=("kernels", "hip", "copies")))
    assert plan.runs[0].argv == (
        "/opt/rocm/bin/rocprofv3", "--kernel-trace", "--hip-trace", "--memory-copy-trace", "--output-format", "rocpd",
        "-d", "/out/recording", "--", *APP,
    )  # fmt: skip


@pytest.mark.parametrize(("version", "form"), [((6, 2), "csv"), ((6, 4), "csv"), ((7, 0), "rocpd"), ((7, 2), "rocpd")])
def test_the_format_is_what_the_version_writes_best(version, form):
    argv = rocprofv3.plan(asked(version=version)).runs[0].argv
    assert argv[argv.index("--output-format") + 1] == form


def test_what_a_version_does_not_trace_is_left_out_and_said():
    plan = rocprofv3.plan(asked(version=(6, 2), sources=("kernels", "allocations", "rccl"), formats=("otf2",)))
    assert "--memory-allocation-trace" not in plan.runs[0].argv
    assert "--rccl-trace" not in plan.runs[0].argv
    assert "otf2" not in plan.runs[0].argv
    assert len(plan.notes) == 3


def test_counters_are_read_apart_from_the_trace_that_gives_the_times():
    plan = rocprofv3.plan(asked(passes=(("SQ_WAVES", "TCC_HIT_sum"), ("SQ_INSTS",))))
    assert [run.output.name for run in plan.runs] == ["pass_1", "pass_2", "pass_3"]
    assert "--pmc" not in plan.runs[0].argv
    assert plan.runs[1].argv[1:5] == ("--pmc", "SQ_WAVES", "TCC_HIT_sum", "--kernel-trace")
    assert plan.overhead == "high"


def test_options_that_are_passed_on_reach_the_runs_with_counters_too():
    extra = ("--kernel-iteration-range", "[1-3]", "-E", "own.yaml")
    plan = rocprofv3.plan(asked(passes=(("SQ_WAVES",), ("SQ_INSTS",)), extra=extra))
    assert [set(extra) <= set(run.argv[: run.argv.index("--")]) for run in plan.runs] == [True] * 3
    old = rocprof.plan(asked("rocprof", legacy="v1", passes=(("SQ_WAVES",),), extra=("-m", "own.xml")))
    assert ["own.xml" in run.argv for run in old.runs] == [True] * 2


def test_sampling_beside_counters_is_a_run_of_its_own_where_nothing_else_is_traced():
    trace, counted = rocprofv3.plan(asked(sources=(), sampling="host_trap", passes=(("SQ_WAVES",),))).runs
    assert "--pc-sampling-method" in trace.argv
    assert "--kernel-trace" in trace.argv
    assert "--pmc" in counted.argv
    assert "--pc-sampling-method" not in counted.argv


def test_before_there_was_an_option_for_them_counters_stand_in_a_file():
    plan = rocprofv3.plan(asked(version=(6, 2), passes=(("SQ_WAVES", "TCC_HIT_sum"), ("SQ_INSTS",))))
    assert plan.files == {
        OUT / "pass_2" / "counters.txt": "pmc: SQ_WAVES TCC_HIT_sum\n",
        OUT / "pass_3" / "counters.txt": "pmc: SQ_INSTS\n",
    }
    assert plan.runs[2].argv[1:4] == ("-i", "/out/recording/pass_3/counters.txt", "--kernel-trace")
    assert not rocprofv3.plan(asked(version=(6, 3), passes=(("SQ_WAVES",),))).files


def test_pc_sampling_by_time_on_any_gpu_that_has_it_and_by_cycles_in_powers_of_two():
    argv = rocprofv3.plan(asked(sampling="host_trap", rate=1000, arch="gfx90a", formats=("pftrace",))).runs[0].argv
    assert argv[argv.index("--pc-sampling-interval") + 1] == "1000"  # µs
    assert argv[argv.index("--output-format") + 1 : argv.index("-d")] == ("csv",)
    argv = rocprofv3.plan(asked(sampling="stochastic", rate=1000, arch="gfx942")).runs[0].argv
    assert argv[argv.index("--pc-sampling-unit") + 1] == "cycles"
    assert argv[argv.index("--pc-sampling-interval") + 1] == str(2**21)  # 2.1 GHz / 2^21 = 1001 Hz
    with pytest.raises(NotPlanned, match="gfx90a cannot sample"):
        rocprofv3.plan(asked(sampling="stochastic", arch="gfx90a"))
    with pytest.raises(NotPlanned, match=r"ROCm 6\.4"):
        rocprofv3.plan(asked(sampling="host_trap", version=(6, 2)))


def test_rocprof_takes_no_dashes_and_its_counters_from_a_file():
    plan = rocprof.plan(asked("rocprof", legacy="v1", sources=("kernels", "hip", "rccl"), passes=(("SQ_WAVES",),)))
    assert plan.runs[0].argv == ("/opt/rocm/bin/rocprof", "--hip-trace", "--timestamp", "on", "-o",
                                 "/out/recording/pass_1/results.csv", *APP)  # fmt: skip
    assert plan.files == {OUT / "pass_2" / "counters.txt": "pmc: SQ_WAVES\n"}
    assert plan.runs[1].argv[1:3] == ("-i", "/out/recording/pass_2/counters.txt")
    assert any("rccl left out" in note for note in plan.notes)
    assert rocprof.plan(asked("rocprof", legacy="v2")).runs[0].argv[1:3] == ("--kernel-trace", "--hip-trace")


def test_rocprof_compute_profiles_then_analyses_what_it_wrote():
    first, second = rocprof_compute.plan(asked("rocprof-compute")).runs
    assert first.argv[1:7] == ("profile", "-n", "rung", "-p", "/out/recording", "--no-roof")
    assert first.argv[7:] == ("--", *APP)
    assert second.argv[1:3] == ("analyze", "-p")
    assert second.optional
    for version in ((7, 13), (10, 0)):  # `profile` has another name for its folder; `analyze` has not
        newer, analyze = rocprof_compute.plan(asked("rocprof-compute", version)).runs
        assert newer.argv[4:6] == ("--output-directory", "/out/recording")
        assert "-p" not in newer.argv
        assert analyze.argv[1:3] == ("analyze", "-p")
    roofs = rocprof_compute.plan(asked("rocprof-compute", extra=("--roof-only",)))
    assert "--no-roof" not in roofs.runs[0].argv
    assert "measured" in roofs.collects


def test_rocprof_sys_gets_a_file_of_settings_and_a_database_where_it_writes_one():
    plan = rocprof_sys.plan(asked("rocprof-sys", sources=("kernels", "hip", "rccl", "metrics")))
    ((path, text),) = plan.files.items()
    assert plan.runs[0].argv == ("/opt/rocm/bin/rocprof-sys", "-c", str(path), "--", *APP)
    assert "ROCPROFSYS_ROCM_DOMAINS = kernel_dispatch,hip_runtime_api,rccl_api" in text
    assert "ROCPROFSYS_USE_ROCPD = true" in text
    assert "ROCPROFSYS_USE_AMD_SMI = true" in text
    (old,) = rocprof_sys.plan(asked("rocprof-sys", (6, 4), sources=("kernels", "metrics"))).files.values()
    assert "ROCPD" not in old
    assert "AMD_SMI" not in old  # a name that this version ends at
    assert "ROCPROFSYS_USE_ROCM_SMI = true" in old
    assert "ROCPROFSYS_ROCM_DOMAINS = kernel_dispatch" in old
    oldest = rocprof_sys.plan(asked("rocprof-sys", (6, 3)))
    assert "ROCM_DOMAINS" not in next(iter(oldest.files.values()))
    assert any("cannot be chosen" in note for note in oldest.notes)
    python = rocprof_sys.plan(asked("rocprof-sys-python"))
    assert python.runs[0].argv[-4:] == APP[1:]
    module = replace(asked("rocprof-sys-python"), command=("python", "-m", "train"))
    with pytest.raises(NotPlanned, match="runs a script, and no `-m`"):
        rocprof_sys.plan(module)


def test_nsight_switches_on_with_the_steps_of_a_workload():
    argv = nsight.plan_systems(asked("nsys", steps_only=True, sources=("kernels", "markers"))).runs[0].argv
    assert argv[argv.index("--trace") + 1] == "cuda,nvtx"
    assert argv[argv.index("--capture-range") + 1] == "cudaProfilerApi"
    argv = nsight.plan_compute(asked("ncu", passes=(("a.sum", "b.pct"),))).runs[0].argv
    assert argv[argv.index("--metrics") + 1] == "a.sum,b.pct"
    assert argv[argv.index("--clock-control") + 1] == "none"  # the machine's clocks are nobody's to hold
    assert "--kernel-name" not in argv
    plan = nsight.plan_compute(
        asked("ncu", passes=(("a.sum",),), kernels="gemm|dot", extra=("--cache-control", "none"))
    )
    assert plan.runs[0].argv[plan.runs[0].argv.index("--kernel-name") + 1] == "regex:gemm|dot"
    assert "as the kernel before left them" in plan.notes[0]
    with pytest.raises(NotPlanned, match="needs counters"):
        nsight.plan_compute(asked("ncu"))


def test_what_is_shown_is_a_script_that_does_the_same(tmp_path):
    out = tmp_path / "o ut"
    argv = ("sh", "-c", 'printf "%s" "$1 $V" > "$2"', "-", "a 'b' $HOME", str(out / "f"))
    plan = Plan("x", Tool("nsys", None), out, (Run("trace", argv, out, {"V": "1; 2"}),), "k", "low", "r",
                files={out / "settings": "A = 1\n"}, notes=("n",))  # fmt: skip
    subprocess.run(["bash", "-e"], input="\n".join(shown(plan)), text=True, check=True)
    assert (out / "f").read_text() == "a 'b' $HOME 1; 2"
    assert (out / "settings").read_text() == "A = 1\n"


@pytest.mark.parametrize(
    ("tool", "preset", "rocm", "wrote"),
    [("rocprofv3", "memory", "6.2", "*/pmc_1/*/*_counter_collection.csv"), ("rocprof", "memory", "6.0", "*/results.csv"),
     ("rocprof-compute", "rocprof-compute-roofline", "7.0", "*/roofline.csv"), ("rocprof-compute", "rocprof-compute", "7.13", "pmc_perf.csv.gz"), ("rocprof-sys-run", "rocprof-sys", "6.4", "*.proto")],
)  # fmt: skip
def test_the_script_of_a_dry_run_is_taken_by_the_profilers(
    tool, preset, rocm, wrote, tools_on_path, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    tools_on_path(tool, rocm=rocm)
    assert main(["profile", "--preset", preset, "--arch", "gfx90a", "--out", "o", "--dry-run", "--", "true"]) == 0
    done = subprocess.run(["bash", "-e"], input=capsys.readouterr().out, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "o" / "recording").glob(wrote))
    assert ("0. Top Stats" in done.stdout) == (tool == "rocprof-compute")


def test_rocprofv3_and_rocprof_and_their_versions_are_told_apart(tools_on_path, tmp_path):
    folder = tools_on_path("rocprofv3", "rocprofv2", rocm="6.3")
    assert find("rocprofv3").version == (6, 3)
    assert find("rocprof").legacy == "v2"
    tools_on_path("rocprof", rocm="6.3")
    assert find("rocprof").legacy == "v1"
    (folder / "rocprof").unlink()
    (folder / "rocprof").symlink_to("rocprofv2")
    assert find("rocprof").legacy == "v2"
    assert find("nsys") is None
    assert rocm_version(str(folder / "rocprofv2")) == (6, 3)


def test_the_version_beside_a_tool_is_its_own_whatever_rocm_path_names(tmp_path, monkeypatch):
    for version in ("7.0.0", "6.4.1"):
        (tmp_path / version / ".info").mkdir(parents=True)
        (tmp_path / version / ".info" / "version").write_text(version)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "7.0.0"))
    assert rocm_version(str(tmp_path / "6.4.1" / "bin" / "rocprof-sys-run")) == (6, 4)
    assert rocm_version(str(tmp_path / "bin" / "rocprof-sys-run")) == (7, 0)
    assert rocm_version() == (7, 0)


def planned_runs(capsys, arch):
    assert main(["profile", "--preset", "compute", "--arch", arch, "--dry-run", "--json", "--", "true"]) == 0
    return [run["what"] for run in json.loads(capsys.readouterr().out)["runs"]]


def test_a_check_of_counters_that_sees_no_gpu_does_not_split_them_up(tools_on_path, capsys, monkeypatch):
    folder = tools_on_path("rocprofv3")
    by_the_tables = planned_runs(capsys, "gfx942")
    tools_on_path("rocprofv3", "rocprofv3-avail")
    monkeypatch.setenv("STANDIN_FAILS", "no-avail")
    assert planned_runs(capsys, "gfx942") == by_the_tables
    monkeypatch.delenv("STANDIN_FAILS")
    tool = find("rocprofv3")
    many = tuple(f"SQ_{k}" for k in range(9))
    assert (fits_one_pass(tool, many[:8]), fits_one_pass(tool, many)) == (True, False)
    (folder / "rocprofv3-avail").write_text("#!/bin/sh\necho no agents found >&2; exit 1\n")
    assert fits_one_pass(tool, many) is None


def test_a_gpu_that_is_not_here_is_planned_for_without_asking_the_one_that_is(tools_on_path, capsys, monkeypatch):
    tools_on_path("rocprofv3", "rocprofv3-avail")
    asked_of = []
    monkeypatch.setattr("rung.profilers.tools.fits_one_pass", lambda *words: asked_of.append(words))
    planned_runs(capsys, "gfx90a")
    assert not asked_of
    planned_runs(capsys, "gfx942")
    assert asked_of


def test_architectures_are_those_that_the_driver_lists(tmp_path):
    for node, version in enumerate((0, 90402, 90010, 110003, 90500)):
        (tmp_path / str(node)).mkdir()
        (tmp_path / str(node) / "properties").write_text(f"cpu_cores_count 0\ngfx_target_version {version}\n")
    assert architectures(tmp_path) == ["gfx942", "gfx90a", "gfx1103", "gfx950"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "give a TARGET"),
        (["tiny-transformer", "--", "true"], 2, "not both"),
        (["--", "no-such-program"], 2, "there is no program 'no-such-program'"),
        (["--preset", "nope", "--", "true"], 2, "there is no preset 'nope'"),
        (["--with", "torch", "--", "true"], 2, "torch.profiler records a TARGET"),
        (["--preset", "compute", "--with", "nsys", "--", "true"], 2, "is for rocprofv3, not nsys"),
        (["--with", "rocprofv3", "--", "true"], 2, "rocprofv3 is not on PATH, nor"),
        (["--", "true"], 2, "no profiler is installed that can record a command"),
        (["tiny-transformer", "--steps", "0"], 2, "--steps must be at least 1"),
        (["--preset", "compute", "--arch", "MI300X", "--dry-run", "--", "true"], 2, "'MI300X' is not an architecture"),
        (["--preset", "pc-sampling", "--arch", "gfx908", "--dry-run", "--", "true"], 2, "gfx908 cannot sample"),
        (["--with", "rocprofv3", "--counters", "SQ_WAIT_INST_VALU", "--arch", "gfx942", "--dry-run", "--", "true"], 2,
         "none of the counters"),
        (["--madengine-config", "missing.json", "--", "true"], 3, "missing.json could not be read"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_said_in_a_sentence(words, code, says, tools_on_path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tools_on_path()
    assert main(["profile", *words]) == code
    assert says in capsys.readouterr().err
    assert not (tmp_path / ".rung").exists()


def test_who_asks_for_the_other_vendors_profiler_is_told_what_is_here(tools_on_path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tools_on_path("ncu")
    assert main(["profile", "--preset", "compute", "--", "true"]) == 2
    assert "there is --preset nsight-counters." in capsys.readouterr().err


def test_a_dry_run_needs_no_profiler_and_writes_nothing(tools_on_path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tools_on_path()
    words = ["profile", "--preset", "memory", "--arch", "gfx942", "--out", "o", "--dry-run"]
    assert main([*words, "--", "env", "t.py", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("rocprofv3 ") for line in lines) == 4
    assert all(shlex.split(line)[-3:] == ["env", "t.py", "--json"] for line in lines if line.startswith("rocprofv3 "))
    assert "# note: rocprofv3 is not on PATH: planned for that of ROCm 7.0; --rocm VERSION plans for another." in lines
    assert main([*words, "--json", "--", "./not-here", "t.py"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 4
    assert not (tmp_path / "o").exists()


def test_a_gpu_that_no_table_knows_is_noted(tools_on_path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tools_on_path()
    for arch in ("gfx999", "gfx942", "gfx1100"):
        assert main(["profile", "--preset", "memory", "--arch", arch, "--dry-run", "--", "true"]) == 0
        assert (f"# note: {arch} is in none of Rung's tables" in capsys.readouterr().out) == (arch == "gfx999")


def test_ranks_write_into_folders_of_their_own(tools_on_path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tools_on_path("rocprofv3")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        assert main(["profile", "--preset", "hotspots", "--out", "o", "--", "true"]) == 0
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == ["rank0", "rank1"]
    assert main(["profile", "--preset", "hotspots", "--out", "o", "--", "true"]) == 2
    assert "is there already" in capsys.readouterr().err


def test_the_list_names_every_preset_and_what_is_here(tools_on_path, capsys):
    tools_on_path("rocprofv3", rocm="6.4")  # which does not say its version: ROCm's own file does
    assert main(["profile", "--list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    wanted = {"compute", "memory", "communication", "full", "lightweight", "perfetto", "api-overhead", "pc-sampling",
              "compute-bound", "memory-bound", "multi-gpu", "comprehensive", "multi-node", "trace", "counters", "hotspots",
              "rocprof-compute", "rocprof-sys"}  # fmt: skip
    assert wanted <= {row["name"] for row in found["presets"]}
    # Without the copy engines, copies run as kernels: another program would be profiled.
    assert not any("HSA_ENABLE_SDMA" in preset.env for preset in presets().values())
    assert all(row["collects"] and row["overhead"] in found["overheads"] and row["read_by"] for row in found["presets"])
    assert found["profilers"]["rocprofv3"]["version"] == "6.4"
    assert found["profilers"]["nsys"] is None
    assert main(["profile", "--list"]) == 0
    assert "rocprofv3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"), [(["--preset", "memory"], False), (["--counters", "SQ_WAVES,GL2C_EA_RDREQ_96B_sum"], True)]
)
def test_what_a_set_has_for_other_gpus_is_not_missed(words, told, tools_on_path, capsys):
    tools_on_path("rocprofv3")
    assert main(["profile", "--with", "rocprofv3", *words, "--arch", "gfx942", "--dry-run", "--", "true"]) == 0
    out = capsys.readouterr().out
    assert ("GL2C_EA_RDREQ_96B_sum: gfx942 has none" in out) == told
    assert ("TCC_EA0_RDREQ_128B_sum" in out) == (not told)  # of a newer GPU of the same line


@pytest.mark.parametrize("rocm", ["6.4", "7.1.1"])
def test_a_stated_rocm_picks_the_names_of_counters_and_an_unknown_one_is_said(rocm, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    words = ["profile", "--counters", "TCC_EA0_RDREQ_sum,TCC_EA_RDREQ_LEVEL_sum", "--arch", "gfx908", "--dry-run"]
    assert main([*words, "--rocm", rocm, "--", "true"]) == 0
    out = capsys.readouterr().out
    assert f"# rocprofv3 {rocm[:3]}" in out
    assert ("--pmc TCC_EA_RDREQ_sum TCC_EA0_RDREQ_LEVEL_sum" in out) == (rocm == "7.1.1")
    assert main([*words, "--", "true"]) == 0
    assert "planned for that of ROCm 7.0; --rocm VERSION plans for another" in capsys.readouterr().out


def test_an_installed_profiler_that_does_not_say_its_version_is_taken_for_one_and_that_is_said(
    tmp_path, monkeypatch, capsys
):
    tool = tmp_path / "bin" / "rocprofv3"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho no idea\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent))
    monkeypatch.delenv("ROCM_PATH", raising=False)
    words = ["profile", "--counters", "SQ_WAVES", "--arch", "gfx908", "--dry-run", "--", "true"]
    assert main(words) == 0
    assert "rocprofv3 does not say its version: it is taken for that of ROCm 7.0" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["--rocm", "7.1", "--with", "rocprofv3"], ["--rocm", "7.1", "--dry-run", "--with", "ncu"]]
)
def test_a_rocm_is_stated_for_plans_of_amds_profilers_alone(words, capsys):
    assert main(["profile", "--counters", "SQ_WAVES", *words, "--", "true"]) == 2
    assert "--rocm says for which ROCm" in capsys.readouterr().err
