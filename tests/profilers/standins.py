"""Stand-ins for profilers: programs that accept exactly the documented command lines, refuse all else, run the program they
are given, and leave what the real ones would.

Each is a script of a few lines that calls `main` here with its name; the command lines are in standin_grammar.py, the files that
they leave in standin_outputs.py. $STANDIN_ROCM is the version that they play; $STANDIN_FAILS makes them fail: `exit` (a code
and a message), `hang`, `nothing` (no output), `kill`, `empty`.
"""

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import standin_grammar as grammar
from standin_grammar import parsed, refuse
from standin_outputs import KERNELS, long_csv, made, put, value, version, wide_csv, write_rocpd, write_v3


def program(argv):
    """Runs what is to be profiled; its exit code is ours."""
    fails = os.environ.get("STANDIN_FAILS", "")
    if fails == "exit":
        print("profiler: loading", flush=True)
        refuse("HSA_STATUS_ERROR_OUT_OF_RESOURCES", 3)
    if fails == "hang":
        print("profiler: waiting for the device", flush=True)
        subprocess.Popen(["sleep", "300"], start_new_session=True)
        subprocess.run(["sleep", "300"], check=False)
    if fails == "kill":
        print("profiler: about to go", flush=True)
        os.kill(os.getpid(), 9)
    code = subprocess.run(argv, check=False).returncode
    if code:
        sys.exit(code)
    if fails == "nothing":
        print("W tool.cpp: no kernel was dispatched", flush=True)
        sys.exit(0)


FORMATS = {"csv": (6, 2), "json": (6, 2), "pftrace": (6, 2), "otf2": (6, 3), "rocpd": (7, 0)}
SDK = {(7, 0): "1.0.0", (7, 1): "1.1.0", (7, 2): "1.2.0"}
SQ_LIMIT = 8


def rocprofv3(words):
    if words in (["--version"], ["-v"]) and version() in SDK:
        print(f"version: {SDK[version()]}\ngit_revision: abc\nrocm_version: {'.'.join(map(str, version()))}.0")
        return
    if "--" not in words or words[-1] == "--":
        refuse("Fatal error: No application provided", 1)
    cut = words.index("--")
    found, rest = parsed(words[:cut], grammar.ROCPROFV3, version())
    if rest:
        refuse(f"unrecognized arguments: {' '.join(rest)}")
    formats = [name.lower() for key in ("--output-format", "-f") for name in found.get(key, [])]
    formats = formats or ["rocpd" if version() >= (7, 0) else "csv"]
    for name in formats:
        if name not in FORMATS or version() < FORMATS[name]:
            refuse(f"argument --output-format: invalid choice: {name!r}")
    if found.get("--pc-sampling-beta-enabled"):
        check_sampling(found, formats)
    counters = [name for text in found.get("--pmc", []) for name in text.split(",") if name]
    folder = found.get("--output-directory", ".")
    if "--input" in found:  # a text file: one pass of the whole program for each of its lines
        counters = pmc_line(found["--input"])
        folder += "/pmc_1"
    if sum(name.startswith(("SQ_", "SQC_")) for name in counters) > SQ_LIMIT:
        print("F Could not construct profile cfg", flush=True)
        os.abort()
    lacking = [name for name in counters if name == "SQ_NOT_THERE"]
    if lacking and version() < (6, 4):
        print("F Unable to find all counters for agent 4 (gpu-0, gfx942)", flush=True)
        os.abort()
    program(words[cut + 1 :])
    if lacking:
        print(f"W Unable to find all counters for agent 4 (gpu-0, gfx942) in [..]. Missing: {lacking}", flush=True)
        counters = [name for name in counters if name not in lacking]
    included = re.compile(found.get("--kernel-include-regex", ""))
    write_v3(folder, formats, counters, bool(found.get("--pc-sampling-beta-enabled")), included)


def pmc_line(path):
    """The counters of an input file of one pass."""
    lines = [line for line in Path(path).read_text().splitlines() if re.match(r"\s*pmc\s*:", line)]
    if len(lines) != 1:
        refuse("one pmc line is expected here")
    return lines[0].partition(":")[2].split()


def check_sampling(found, formats):
    unit, method = found.get("--pc-sampling-unit"), found.get("--pc-sampling-method")
    interval = int(found.get("--pc-sampling-interval", 0))
    if not (unit and method and interval > 0):
        refuse("unit, method and interval of PC sampling must all be given")
    if (method, unit) not in (("host_trap", "time"), ("stochastic", "cycles")):
        refuse(f"{method} sampling does not count {unit}")
    if method == "stochastic" and (interval & (interval - 1) or not 256 <= interval <= 2**31):
        refuse("the interval must be a power of two")
    if set(formats) - {"csv", "json"}:
        refuse("PC samples are only written as csv and json")


def rocprofv3_avail(words):
    if os.environ.get("STANDIN_FAILS") == "no-avail":
        refuse("no GPU", 1)
    if words == ["info", "--pmc"]:
        listed = made("counters_gfx942.txt").decode().split()
        print(
            "GPU : 0\nName : gfx942\n"
            + "\n".join(f"Counter_Name : {name}\nDescription : d\nBlock : SQ" for name in listed)
        )
        return
    if words[:3] == ["pmc-check", "-d", "0"] and words[3:]:
        if sum(name.startswith("SQ_") for name in words[3:]) > SQ_LIMIT:
            refuse("the counters do not fit one pass", 1)
        return
    refuse(f"unrecognized arguments: {words}")


def rocprof(words):
    if "--" in words:
        refuse("Wrong option '--'", 1)
    found, command = parsed(words, grammar.ROCPROF, version())
    if not command:
        refuse("no application")
    if not found.get("-o", "").endswith(".csv"):
        refuse("-o must name a .csv")
    counters = pmc_line(found["-i"]) if "-i" in found else []
    program(command)
    out = Path(found["-o"])
    put(out.parent, out.name, made("results.csv") if not counters else wide_csv(counters).encode())
    if {"--hip-trace", "--hsa-trace", "--sys-trace", "--roctx-trace"} & set(found):
        put(out.parent, "results.json", made("results.json"))


def rocprofv2(words):
    if "--" in words:
        refuse("Wrong option '--'", 1)
    found, command = parsed(words, grammar.ROCPROFV2, version())
    if not command:
        refuse("no application")
    program(command)
    put(Path(found["-d"]) / "pmc_1", "results_results.csv", made("v2.csv"))


def rocprof_compute(words):
    if words[:1] == ["profile"]:
        if "--" not in words:
            refuse("no application", 1)
        cut = words.index("--")
        found, rest = parsed(words[1:cut], grammar.COMPUTE_PROFILE, version())
        if rest or "--name" not in found or {"--no-roof", "--roof-only"} <= set(found):
            refuse("a name is needed, and one of --no-roof and --roof-only at most")
        program(words[cut + 1 :])
        if version() >= (7, 13):  # the folder is the workload's own, and `analyze` joins the tables of the passes
            folder = Path(found["--output-directory"])
            put(folder, "results_pmc_perf_0.csv.gz", gzip.compress(long_csv(["SQ_WAVES", "TCC_HIT_sum"])))
        else:
            folder = Path(found["--path"]) / "MI300X"
            put(folder, "pmc_perf.csv", made("pmc_perf.csv"))
        put(folder, "sysinfo.csv", b"workload_name,gpu_model,gpu_arch\nrung,MI300X,gfx942\n")
        if "--no-roof" not in found:
            put(
                folder,
                "roofline.csv",
                b"device,HBMBw,L2Bw,L1Bw,LDSBw,FP32Flops,FP64Flops\n0,4000,12000,25000,50000,90000,60000\n",
            )
    elif words[:1] == ["analyze"]:
        found, rest = parsed(words[1:], grammar.COMPUTE_ANALYZE, version())
        for path in map(Path, found.get("--path", ["."])):
            tables = [*path.glob("pmc_perf.csv"), *path.glob("results_*.csv.gz")]
            if rest or not tables:
                refuse("no workload there")
            if tables[0].suffix == ".gz":
                put(path, "pmc_perf.csv.gz", tables[0].read_bytes())
        print("0. Top Stats\n1. System Info")
    else:
        refuse("a mode is needed: profile, analyze")


SYS_SETTINGS = (
    "TRACE", "PROFILE", "OUTPUT_PATH", "TIME_OUTPUT", "USE_PID", "USE_RCCLP", "SAMPLING_CPUS", "SAMPLING_FREQ", "ROCM_EVENTS",
)  # fmt: skip


def knows_setting(name):
    """Of source/lib/core/config.cpp: 0.1 (ROCm 6.3), 1.0 (6.4), 1.1 (7.0)."""
    if name in ("USE_AMD_SMI", "USE_ROCPD"):
        return version() >= (7, 0)
    if name == "USE_ROCM_SMI":
        return version() < (7, 0)
    return name in SYS_SETTINGS or (name == "ROCM_DOMAINS" and version() >= (6, 4))


def rocprof_sys(kind, words):
    if "--" not in words or words[-1] == "--":
        refuse("no application", 1)
    cut = words.index("--")
    found, rest = parsed(words[:cut], grammar.SYS[kind], version())
    if rest:
        refuse(f"unrecognized arguments: {rest}")
    settings = {}
    for line in Path(found.get("--config") or os.environ["ROCPROFSYS_CONFIG_FILE"]).read_text().splitlines():
        name, equals, text = line.partition(" = ")
        if not equals or not knows_setting(name.removeprefix("ROCPROFSYS_")):
            refuse(f"unknown setting {line!r}")
        settings[name.removeprefix("ROCPROFSYS_")] = text
    command = words[cut + 1 :]
    if kind == "python" and not command[0].endswith(".py"):
        refuse(f"{command[0]} is not a script")
    program([sys.executable, *command] if kind == "python" else command)
    folder = Path(settings["OUTPUT_PATH"])
    put(folder, f"perfetto-trace-{os.getpid()}.proto", made("trace.pftrace"))
    put(folder, f"wall_clock-{os.getpid()}.txt", b"LABEL COUNT DEPTH METRIC UNITS SUM MEAN\n")
    if settings.get("USE_ROCPD") == "true":
        write_rocpd(
            folder / f"rocpd-{os.getpid()}.db",
            settings.get("ROCM_EVENTS", "").split(",") if "ROCM_EVENTS" in settings else [],
        )


def nsys(words):
    if words == ["--version"]:
        print("NVIDIA Nsight Systems version 2025.1.1.103-251135427971v0")
        return
    if words[:1] != ["profile"]:
        refuse("a command is needed")
    found, command = parsed(words[1:], grammar.NSYS)
    if set(found["--trace"].split(",")) - {"cuda", "nvtx", "osrt", "cublas", "cudnn"}:
        refuse("illegal --trace argument")
    program(command)
    folder, name = os.path.split(found["--output"])
    put(folder, name + ".nsys-rep", b"report")
    put(folder, name + ".sqlite", made("nsys.sqlite"))


def ncu(words):
    if words == ["--version"]:
        print("NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.1.0.0 (build 35237751) (public-release)")
        return
    found, command = parsed(words, grammar.NCU)
    wanted = found.get("--kernel-name", "regex:")
    wanted = re.compile(wanted.removeprefix("regex:") if wanted.startswith("regex:") else f"^{re.escape(wanted)}$")
    program(command)
    counters = found["--metrics"].split(",")
    rows = ["==PROF== Connected to process 4242 (/usr/bin/python3.11)"]
    rows.append(",".join(f'"{t}"' for t in ["ID", "Process ID", "Kernel Name", "Device", *counters]))
    rows.append(",".join(f'"{t}"' for t in ["", "", "", "", *["ns"] * len(counters)]))
    for place, (kernel, *_) in enumerate(KERNELS):
        if not wanted.search(kernel):
            continue
        rows.append(
            ",".join(f'"{t}"' for t in [place, 4242, kernel, 0, *[f"{value(c, place):,.2f}" for c in counters]])
        )
    put(Path(found["--log-file"]).parent, Path(found["--log-file"]).name, "\n".join(rows).encode() + b"\n")


def main(name, words):
    if name.startswith("rocprof-sys-"):
        rocprof_sys(name.removeprefix("rocprof-sys-"), words)
    else:
        globals()[name.replace("-", "_")](words)
