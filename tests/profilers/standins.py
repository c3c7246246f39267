"""Stand-ins for profilers: programs that accept exactly the documented command lines, refuse all else, run the program they
are given, and leave what the real ones would.

Each is a script of a few lines that calls `main` here with its name; the command lines are in standin_grammar.py. $STANDIN_ROCM is the version that they play;
$STANDIN_FAILS makes them fail: `exit` (a code and a message), `hang`, `nothing` (no output), `kill`, `empty`.
The files that they leave were made before by `prepare`, of three dispatches.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import standin_grammar as grammar
from standin_grammar import parsed, refuse

KERNELS = (("gemm(float*)", 7, 12_000, 3_000), ("add(float*)", 9, 16_000, 500), ("gemm(float*)", 11, 17_000, 3_100))
NAMES = (
    "rocprofv3", "rocprofv3-avail", "rocprof", "rocprofv2", "rocprof-compute", "rocprof-sys-run", "rocprof-sys-sample",
    "rocprof-sys-instrument", "rocprof-sys-python", "nsys", "ncu",
)  # fmt: skip


def version():
    return tuple(map(int, os.environ.get("STANDIN_ROCM", "7.0").split(".")))


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


def made(name):
    return (Path(os.environ["STANDIN_FILES"]) / name).read_bytes()


def put(folder, name, data):
    path = Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"" if os.environ.get("STANDIN_FAILS") == "empty" else data)


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


def write_v3(folder, formats, counters, samples, included):
    pid = os.getpid()
    if "csv" in formats:
        for name, text in json.loads(made(f"v3_csv_{version()[0]}{'_counters' if counters else ''}.json")).items():
            put(folder, f"node7/{pid}_{name}", text.encode())
        if counters:
            put(folder, f"node7/{pid}_counter_collection.csv", counter_csv(counters, included).encode())
        if samples:
            titles = "Sample_Timestamp,Exec_Mask,Dispatch_Id,Instruction,Instruction_Comment,Correlation_Id"
            put(folder, f"node7/{pid}_pc_sampling_host_trap.csv", f'{titles}\n12500,1,1,"v_add","a.py:1",7\n'.encode())
    if "rocpd" in formats:
        if os.environ.get("STANDIN_FAILS") == "empty":
            put(folder, f"node7/{pid}_results.db", b"")
        else:
            write_rocpd(Path(folder) / f"node7/{pid}_results.db", counters, included)
    if "pftrace" in formats:
        put(folder, f"node7/{pid}_results.pftrace", made("trace.pftrace"))


def counter_csv(counters, included):
    """The 19 columns of 6.4 and later; kernels are numbered from 1 here, as nothing but they is recorded."""
    titles = ("Correlation_Id,Dispatch_Id,Agent_Id,Queue_Id,Process_Id,Thread_Id,Grid_Size,Kernel_Id,Kernel_Name,"
              "Workgroup_Size,LDS_Block_Size,Scratch_Size,VGPR_Count,Accum_VGPR_Count,SGPR_Count,Counter_Name,"
              "Counter_Value,Start_Timestamp,End_Timestamp")  # fmt: skip
    lines = [",".join(f'"{title}"' for title in titles.split(","))]
    for place, (kernel, _, start, long) in enumerate(KERNELS, start=1):
        for counter in counters if included.search(kernel) else ():
            agent = '"Agent 2"' if version() >= (7, 0) else "2"
            lines.append(f'{place},{place},{agent},1,77,77,1024,1,"{kernel}",64,0,0,8,0,16,"{counter}",'
                         f"{value(counter, place)},{start},{start + long}")  # fmt: skip
    return "\n".join(lines) + "\n"


def value(counter, place):
    """What the n-th dispatch has of a counter: a number that no other has."""
    return 1000.0 * place + len(counter)


def write_rocpd(path, counters, included=re.compile("")):
    sys.path.insert(0, str(Path(__file__).parents[1] / "trace" / "databases"))
    from rocpd_writer import Writer

    path.parent.mkdir(parents=True, exist_ok=True)
    with Writer(path, pid=os.getpid()) as writer:
        for place, (kernel, correlation, start, long) in enumerate(KERNELS, start=1):
            # A pass that collects counters traces less, so its correlation ids are others.
            number = place if counters else correlation
            values = [(counter, value(counter, place)) for counter in counters if included.search(kernel)]
            writer.dispatch(kernel, start, start + long, stack=number, counters=values)
            if not counters:
                writer.region("HIP_RUNTIME_API_EXT", "hipLaunchKernel", start - 900, start - 800, stack=number)


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


def wide_csv(counters):
    titles = ["Index", "KernelName", "gpu-id", "queue-id", "queue-index", "pid", "tid", "grd", "wgr", "lds", "scr",
              "arch_vgpr", "accum_vgpr", "sgpr", "wave_size", "sig", "obj", *counters,
              "DispatchNs", "BeginNs", "EndNs", "CompleteNs"]  # fmt: skip
    lines = [",".join(titles)]
    for place, (kernel, _, start, long) in enumerate(KERNELS, start=1):
        values = [str(value(counter, place)) for counter in counters]
        lines.append(",".join([str(place - 1), f'"{kernel}"', "0", "0", "0", "5", "5", "64", "64", "0", "0", "8", "0", "16", "64",
                               "0x0", "0x1", *values, str(start), str(start), str(start + long), str(start + long)]))  # fmt: skip
    return "\n".join(lines) + "\n"


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
        if rest or not all((Path(path) / "pmc_perf.csv").is_file() for path in found.get("--path", ["."])):
            refuse("no workload there")
        print("0. Top Stats\n1. System Info")
    else:
        refuse("a mode is needed: profile, analyze")


SYS_SETTINGS = (
    "TRACE", "PROFILE", "OUTPUT_PATH", "TIME_OUTPUT", "USE_PID", "ROCM_DOMAINS", "USE_AMD_SMI", "USE_RCCLP", "SAMPLING_CPUS",
    "USE_ROCPD", "SAMPLING_FREQ", "ROCM_EVENTS",
)  # fmt: skip


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
        if not equals or name.removeprefix("ROCPROFSYS_") not in SYS_SETTINGS:
            refuse(f"unknown setting {line!r}")
        settings[name.removeprefix("ROCPROFSYS_")] = text
    if version() < (7, 0) and "USE_ROCPD" in settings:
        refuse("unknown setting USE_ROCPD")
    command = words[cut + 1 :]
    if kind == "python" and not command[0].endswith(".py"):
        refuse(f"{command[0]} is no script")
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
