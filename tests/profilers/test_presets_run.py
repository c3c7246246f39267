"""Every preset, through stand-ins for the profilers of old and new ROCm, to the end of the analysis."""

import json

import pytest
import standins

from rung.cli.main import main
from rung.profilers.collect import read_kept
from rung.profilers.counters import named
from rung.profilers.presets import presets

AMD = ("rocprofv3", "rocprofv3-avail", "rocprof-compute", "rocprof-sys-run")
NVIDIA = ("nsys", "ncu")
NEWER = ("rocprof-compute", "rocprof-sys")


# Those that differ in their sensors and variables alone are planned alike: once on the older ROCm is enough.
DISTINCT = {
    (p.tool, p.sources, p.counters, p.formats, p.sampling, p.extra): p.name for p in reversed(presets().values())
}
# rocprof-compute and rocprof-sys have these names since ROCm 6.3.
RUNS = [(name, "7.0") for name in sorted(presets())]
RUNS += [(name, "6.3" if presets()[name].tool in NEWER else "6.2") for name in sorted(DISTINCT.values())]
RUNS += [
    ("memory", "6.4"),
    ("perfetto", "7.2"),
    ("rocprof-compute", "7.13"),
    ("rocprof-compute-roofline", "10.0"),
    ("rocprof-sys", "6.4"),
]


@pytest.mark.parametrize(("name", "rocm"), RUNS)
def test_every_preset_is_run_and_analysed_to_the_end(name, rocm, tools_on_path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The sensors of this machine, where it has any, know nothing of the time at which the stand-ins say that they recorded.
    monkeypatch.setattr("rung.profilers.recording._sampling", lambda folder, rate: (None, []))
    tools_on_path(*AMD, *NVIDIA, rocm=rocm)
    code = main(["profile", "--preset", name, "--arch", "gfx942", "--out", "out", "--json", "--", "true"])
    said = capsys.readouterr()
    if presets()[name].sampling and rocm == "6.2":
        assert code == 2
        assert "needs ROCm 6.4" in said.err
        return
    assert code == 0, said.err
    answer = json.loads(said.out)
    analysis = answer["analysis"]
    if presets()[name].tool == "ncu":
        assert analysis["counters"] == 3 * len(named(presets()[name].counters))
        assert analysis["headlines"]["counters"].startswith("kernel time by what bounds it: memory")
        return
    kernels = [part["timeline"][0]["kernels"] for part in analysis["parts"]]
    assert kernels == [3]
    assert analysis["parts"][0]["timeline"][0]["total_ns"] == 20_100 - 12_000
    if presets()[name].counters:
        lines = [text.split()[1:] for text in answer["plan"]["files"].values()]  # before ROCm 6.3
        for run in answer["plan"]["runs"]:
            argv = run["argv"]
            lines += [argv[argv.index("--pmc") + 1 : argv.index("--kernel-trace")]] if "--pmc" in argv else []
        assert analysis["counters"] == 3 * sum(map(len, lines)) > 0
        assert "counter of a dispatch that the first pass did not have" not in analysis["unread"]
    if rocm == "7.0" and name in ("comprehensive", "perfetto", "pc-sampling", "rocprof-compute", "rocprof-sys"):
        # The folder is read again as one recording, wherever it lies by then.
        (tmp_path / "out").rename(tmp_path / "moved")
        assert main(["analyze", "moved", "--json"]) == 0
        again = json.loads(capsys.readouterr().out)
        assert {k: v for k, v in again.items() if k != "source"} == {k: v for k, v in analysis.items() if k != "source"}
        assert main(["diff", "moved", "moved"]) == 0
        assert "The step takes as long as before." in capsys.readouterr().out
        assert main(["query", "moved", "select count(*) as n from events where kind = 'kernel'", "--csv", "-"]) == 0
        assert capsys.readouterr().out == "n\n3\n"


def test_counters_of_later_passes_belong_to_the_dispatches_of_the_first(tools_on_path, tmp_path):
    from rung.profilers import profile
    from rung.profilers.recording import carried_out

    tools_on_path("rocprofv3", "rocprofv3-avail")
    names = [f"SQ_INSTS_{kind}" for kind in ("VALU", "SALU", "SMEM", "LDS", "FLAT", "GDS", "BRANCH", "VMEM")] + [
        "SQ_WAVES"
    ]
    target = profile.Target("true", ("true",))
    wanted = profile.chosen(target, "rocprofv3", None)
    plan = profile.planned(target, wanted, tmp_path / "out", names=names, arch="gfx942")
    assert [run.what for run in plan.runs] == ["trace, without counters", "counters 1 of 2", "counters 2 of 2"]
    trace, _ = carried_out(plan, 60.0)
    # The trace numbers its dispatches 7, 9, 11 and the passes 1, 2, 3: the n-th of a kernel is the n-th of it.
    found = (
        trace.counters.filter(counter="SQ_WAVES").select("correlation", "kernel", "value").sort("correlation").rows()
    )
    assert found == [(c, kernel, standins.value("SQ_WAVES", place))
                     for place, (kernel, c, _, _) in enumerate(standins.KERNELS, start=1)]  # fmt: skip
    assert trace.events.filter(kind="kernel").height == 3


@pytest.mark.parametrize(("preset", "rocm"), [("compute", "7.0"), ("compute", "6.4"), ("nsight-full", "7.0")])
def test_counters_are_read_of_the_kernels_that_are_asked_for(
    preset, rocm, tools_on_path, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    tools_on_path("rocprofv3", "ncu", rocm=rocm)
    words = ["--preset", preset, "--kernels", "^g.mm", "--arch", "gfx942", "--out", "out", "--", "true"]
    assert main(["profile", *words]) == 0
    assert "note: --kernels" not in capsys.readouterr().out
    assert set(read_kept(tmp_path / "out").counters["kernel"]) == {"gemm(float*)"}


@pytest.mark.parametrize("words", [["--preset", "trace"], ["--with", "nsys"], ["--preset", "rocprof-compute"]])
def test_kernels_are_not_chosen_where_no_counters_are(words, tools_on_path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tools_on_path("rocprofv3", "nsys", "rocprof-compute")
    assert main(["profile", *words, "--kernels", "gemm", "--dry-run", "--", "true"]) == 2
    assert "--kernels chooses the kernels whose counters are read, by rocprofv3 or ncu" in capsys.readouterr().err


@pytest.mark.parametrize(("tool", "rocm"), [("rocprofv3", "6.2"), ("rocprof", "6.0")])
def test_older_tools_read_all_kernels_and_say_so(tool, rocm, tools_on_path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tools_on_path(tool, rocm=rocm)
    words = ["--preset", "compute", "--kernels", "gemm", "--arch", "gfx90a", "--dry-run", "--", "true"]
    assert main(["profile", *words]) == 0
    assert "note: --kernels left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("tool", "preset"), [("rocprof", "memory"), ("rocprof", "lightweight"), ("rocprofv2", "lightweight")]
)
def test_the_older_tools_stand_in_where_rocprofv3_is_not_installed(
    tool, preset, tools_on_path, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    tools_on_path(tool, rocm="6.0")
    assert main(["profile", "--preset", preset, "--arch", "gfx90a", "--out", "out", "--json", "--", "true"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["plan"]["profiler"] == tool
    assert all("--" not in run["argv"] for run in answer["plan"]["runs"])
    assert answer["analysis"]["parts"][0]["timeline"][0]["kernels"] == 3
    assert (answer["analysis"]["counters"] > 0) == (preset == "memory" or tool == "rocprofv2")
    assert any("rocprofv3 is not installed" in note for note in answer["notes"])


@pytest.mark.parametrize("kind", ["sample", "instrument", "python"])
@pytest.mark.parametrize("rocm", ["6.4", "7.0"])
def test_the_other_commands_of_rocprof_sys(kind, rocm, tools_on_path, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tools_on_path(f"rocprof-sys-{kind}", rocm=rocm)
    (tmp_path / "a.py").write_text("")
    command = ["/usr/bin/env", "true"] if kind != "python" else [__import__("sys").executable, "a.py"]
    assert main(["profile", "--with", f"rocprof-sys-{kind}", "--out", "out", "--json", "--", *command]) == 0
    assert json.loads(capsys.readouterr().out)["analysis"]["parts"][0]["timeline"][0]["kernels"] == 3
