"""The stand-ins take the documented command lines of each version, and refuse what no version or another one has."""

import pytest
import standins

ACCEPTED = [
    ("7.0", "rocprofv3 --kernel-trace --hip-trace --output-format rocpd pftrace -d o -- true --any -- thing"),
    ("7.0", "rocprofv3 --kernel-trace=yes --hsa-trace no -f CSV -d o -- true"),
    ("6.3", "rocprofv3 --pmc SQ_WAVES,TCC_HIT_sum SQ_INSTS --kernel-trace --kernel-include-regex gemm -d o -- true"),
    ("6.2", "rocprofv3 -i pmc.txt --kernel-trace --output-format csv -d o -- true"),
    ("6.4", "rocprofv3 --pc-sampling-beta-enabled --pc-sampling-unit time --pc-sampling-method host_trap"
            " --pc-sampling-interval 1000 --output-format csv -d o -- true"),
    ("6.0", "rocprof --hip-trace --timestamp on -o o/results.csv true"),
    ("6.0", "rocprofv2 --kernel-trace --plugin file -d o -o results true"),
    ("7.0", "rocprof-compute profile -n r -p o --no-roof -b SQ TCC -- true"),
    ("7.0", "rocprof-compute profile -n r -p o --roof-only -- true"),
    ("7.13", "rocprof-compute profile -n r --output-directory o --no-roof -- true"),
]  # fmt: skip
REFUSED = [
    ("7.0", "rocprofv3 --kernel-trace true", "No application"),
    ("7.0", "rocprofv3 --kernel-trace --", "No application"),
    ("7.0", "rocprofv3 --counter-collection -- true", "unrecognized"),
    ("7.0", "rocprofv3 --perfetto-trace-filename a.pftrace -- true", "unrecognized"),
    ("7.0", "rocprofv3 --kernel-tr -- true", "unrecognized"),  # no prefixes
    ("7.0", "rocprofv3 --kernel-trace maybe -- true", "invalid value"),
    ("7.0", "rocprofv3 --timestamp on -- true", "unrecognized"),  # of the older tool
    ("6.2", "rocprofv3 --pmc SQ_WAVES -- true", "unrecognized"),
    ("6.2", "rocprofv3 --memory-allocation-trace -- true", "unrecognized"),
    ("6.4", "rocprofv3 --kernel-trace --output-format rocpd -- true", "invalid choice"),
    ("6.4", "rocprofv3 --version", "No application"),
    ("7.0", "rocprofv3 --pc-sampling-beta-enabled --pc-sampling-unit time --pc-sampling-method stochastic"
            " --pc-sampling-interval 1000 --output-format csv -- true", "does not count time"),
    ("7.0", "rocprofv3 --pc-sampling-beta-enabled --pc-sampling-unit time --pc-sampling-method host_trap"
            " --pc-sampling-interval 1000 --output-format pftrace -- true", "only written as csv"),
    ("6.0", "rocprof --hip-trace -- true", "Wrong option '--'"),
    ("6.0", "rocprof --kernel-trace -o o/r.csv true", "unrecognized"),
    ("6.0", "rocprof --timestamp maybe -o o/r.csv true", "invalid choice"),
    ("6.0", "rocprofv2 --kernel-trace --plugin csv -d o true", "invalid choice"),
    ("7.0", "rocprof-compute profile -p o -- true", "a name is needed"),
    ("7.0", "rocprof-compute profile -n r -p o true", "no application"),
    ("7.0", "rocprof-compute profile -n r --output-directory o -- true", "unrecognized"),
    ("10.0", "rocprof-compute profile -n r -p o -- true", "unrecognized"),
    ("7.0", "rocprof-sys-run true", "no application"),
    ("7.0", "rocprof-sys-instrument -c cfg -- true", "unrecognized"),
    ("7.0", "rocprof-sys-python -c cfg -- -m module", "is not a script"),
    ("7.0", "rocprof-sys-sample -c bad -- true", "unknown setting"),
    ("6.4", "rocprof-sys-sample -c metrics -- true", "unknown setting"),
    ("7.0", "rocprofv3-avail info --all", "unrecognized"),
]  # fmt: skip


def called(line):
    """What a stand-in does with a command line: its exit code."""
    name, *words = line.split()
    try:
        standins.main(name, words)
    except SystemExit as end:
        return end.code
    return 0


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch, made_files):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STANDIN_FILES", str(made_files))
    (tmp_path / "pmc.txt").write_text("pmc: SQ_WAVES TCC_HIT_sum\n")
    (tmp_path / "cfg").write_text("ROCPROFSYS_TRACE = true\n")
    (tmp_path / "bad").write_text("ROCPROFSYS_PERFETTO = true\n")
    (tmp_path / "metrics").write_text("ROCPROFSYS_USE_AMD_SMI = true\n")


@pytest.mark.parametrize(("rocm", "line"), ACCEPTED)
def test_documented_command_lines_are_taken(rocm, line, monkeypatch):
    monkeypatch.setenv("STANDIN_ROCM", rocm)
    assert called(line) == 0


@pytest.mark.parametrize(("rocm", "line", "why"), REFUSED)
def test_all_others_are_refused(rocm, line, why, monkeypatch, capfd):
    monkeypatch.setenv("STANDIN_ROCM", rocm)
    assert called(line) != 0
    assert why in capfd.readouterr().err
