"""Stand-ins for profilers: programs that accept exactly the documented command lines, refuse all else, run the program they
are given, and leave what the real ones would.

Each is a script of a few lines that calls `main` here with its name. $STANDIN_ROCM is the version that they play;
$STANDIN_FAILS makes them fail: `exit` (a code and a message), `hang`, `nothing` (no output), `kill`, `empty`.
The files that they leave were made before by `prepare`, of three dispatches.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

KERNELS = (("gemm(float*)", 7, 12_000, 3_000), ("add(float*)", 9, 16_000, 500), ("gemm(float*)", 11, 17_000, 3_100))
NAMES = (
    "rocprofv3", "rocprofv3-avail", "rocprof", "rocprofv2", "rocprof-compute", "rocprof-sys-run", "rocprof-sys-sample",
    "rocprof-sys-instrument", "rocprof-sys-python", "nsys", "ncu",
)  # fmt: skip


def refuse(text, code=2):
    print(f"error: {text}", file=sys.stderr)
    sys.exit(code)


def version():
    return tuple(map(int, os.environ.get("STANDIN_ROCM", "7.0").split(".")))


def parsed(words, flags=(), single=(), several=(), optional=()):
    """Options as argparse with allow_abbrev=False takes them; what is no option is left over."""
    found, rest = {}, []
    words = list(words)
    while words:
        word = words.pop(0)
        if word in flags:
            found[word] = True
        elif word in single:
            if not words or words[0].startswith("-"):
                refuse(f"argument {word}: expected one argument")
            found[word] = words.pop(0)
        elif word in several:
            values = found.setdefault(word, [])
            while words and not words[0].startswith("-"):
                values.append(words.pop(0))
            if not values:
                refuse(f"argument {word}: expected at least one argument")
        elif word.startswith("-"):
            refuse(f"unrecognized arguments: {word}")
        else:
            rest = [word, *words]
            break
    return found, rest


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


TRACES = {
    "--kernel-trace": (6, 2), "--hip-trace": (6, 2), "--hsa-trace": (6, 2), "--marker-trace": (6, 2),
    "--memory-copy-trace": (6, 2), "--scratch-memory-trace": (6, 2), "--sys-trace": (6, 2), "--stats": (6, 2),
    "--memory-allocation-trace": (6, 3), "--rccl-trace": (6, 3), "--runtime-trace": (6, 3), "--rocdecode-trace": (6, 4),
    "--pc-sampling-beta-enabled": (6, 4), "--rocjpeg-trace": (7, 0),
}  # fmt: skip
FORMATS = {"csv": (6, 2), "json": (6, 2), "pftrace": (6, 2), "otf2": (6, 3), "rocpd": (7, 0)}
SQ_LIMIT = 8


def rocprofv3(words):
    if words in (["--version"], ["-v"]):
        sdk = {(6, 2): "0.4.0", (6, 3): "0.5.0", (6, 4): "0.6.0", (7, 0): "1.0.0"}[version()]
        print(f"version: {sdk}\ngit_revision: abc\nrocm_version: {'.'.join(map(str, version()))}.0")
        return
    if "--" not in words or words[-1] == "--":
        refuse("Fatal error: No application provided", 1)
    cut = words.index("--")
    flags = [name for name, since in TRACES.items() if version() >= since]
    sampling = ["--pc-sampling-unit", "--pc-sampling-method", "--pc-sampling-interval"]
    single = ["-d", "--output-directory", "-o", "--output-file", "-i", *(sampling if version() >= (6, 4) else []),
              *(["--kernel-include-regex", "--kernel-exclude-regex"] if version() >= (6, 3) else [])]  # fmt: skip
    found, rest = parsed(words[:cut], flags, single, ["--pmc", "--output-format", "-f"])
    if rest:
        refuse(f"unrecognized arguments: {' '.join(rest)}")
    formats = found.get("--output-format", []) + found.get("-f", []) or ["rocpd" if version() >= (7, 0) else "csv"]
    for name in formats:
        if name.lower() not in FORMATS or version() < FORMATS[name.lower()]:
            refuse(f"argument --output-format: invalid choice: {name!r}")
    if found.get("--pc-sampling-beta-enabled"):
        check_sampling(found, formats)
    counters = [name for text in found.get("--pmc", []) for name in text.split(",")]
    if sum(name.startswith(("SQ_", "SQC_")) for name in counters) > SQ_LIMIT:
        print("F Could not construct profile cfg", flush=True)
        os.abort()
    program(words[cut + 1 :])
    lacking = [name for name in counters if name == "SQ_NOT_THERE"]
    if lacking:
        print(f"W Unable to find all counters for agent 4 (gpu-0, gfx942) in [..]. Missing: {lacking}", flush=True)
        counters = [name for name in counters if name not in lacking]
    folder = found.get("-d", ".")
    included = re.compile(found.get("--kernel-include-regex", ""))
    write_v3(folder, formats, counters, bool(found.get("--pc-sampling-beta-enabled")), included)


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
    traces = ["--hip-trace", "--hsa-trace", "--sys-trace", "--roctx-trace", "--stats"]
    found, command = parsed(words, traces, ["-i", "-o", "-d", "-t", "--timestamp", "--basenames"])
    if not command:
        refuse("no application")
    if not found.get("-o", "").endswith(".csv"):
        refuse("-o must name a .csv")
    counters = []
    if "-i" in found:
        lines = [line for line in Path(found["-i"]).read_text().splitlines() if line.startswith("pmc")]
        if len(lines) != 1:
            refuse("one pmc line is expected here")
        counters = lines[0].partition(":")[2].split()
    program(command)
    out = Path(found["-o"])
    put(out.parent, out.name, made("results.csv") if not counters else wide_csv(counters).encode())
    if set(traces[:4]) & set(found):
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
    flags = ["--kernel-trace", "--hip-trace", "--hsa-trace", "--roctx-trace", "--sys-trace"]
    found, command = parsed(words, flags, ["-i", "-o", "-d", "--plugin", "-m"])
    if found.get("--plugin", "file") not in ("cli", "file", "perfetto", "ctf", "json", "att") or not command:
        refuse("bad command line")
    program(command)
    put(Path(found["-d"]) / "pmc_1", "results_results.csv", made("v2.csv"))


def rocprof_compute(words):
    if words[:1] == ["profile"]:
        if "--" not in words:
            refuse("no application", 1)
        cut = words.index("--")
        found, rest = parsed(
            words[1:cut], ["--no-roof", "--roof-only", "--hip-trace"], ["-n", "--name", "-p", "--path"]
        )
        if rest or "-n" not in found:
            refuse("a name is needed")
        program(words[cut + 1 :])
        put(Path(found["-p"]) / "MI300X", "pmc_perf.csv", made("pmc_perf.csv"))
        put(Path(found["-p"]) / "MI300X", "sysinfo.csv", b"workload_name,gpu_model,gpu_arch\nrung,MI300X,gfx942\n")
    elif words[:1] == ["analyze"]:
        found, rest = parsed(words[1:], ["--list-stats"], ["-p", "--path"])
        if rest or not (Path(found.get("-p", "")) / "pmc_perf.csv").is_file():
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
    config = ["-c", "--config"] if kind != "instrument" else []
    flags = {"run": ["-T", "-P", "--trace", "--profile", "-S"], "sample": ["-T", "-P", "--realtime"], "python": ["-b"]}
    found, rest = parsed(words[:cut], flags.get(kind, ["-v"]), config)
    if rest:
        refuse(f"unrecognized arguments: {rest}")
    settings = {}
    for line in Path(found.get("-c") or os.environ["ROCPROFSYS_CONFIG_FILE"]).read_text().splitlines():
        name, equals, text = line.partition(" = ")
        if not equals or name.removeprefix("ROCPROFSYS_") not in SYS_SETTINGS:
            refuse(f"unknown setting {line!r}")
        settings[name.removeprefix("ROCPROFSYS_")] = text
    if version() < (7, 0) and "USE_ROCPD" in settings:
        refuse("unknown setting USE_ROCPD")
    command = words[cut + 1 :]
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
    single = ["--trace", "--sample", "--cpuctxsw", "--export", "--force-overwrite", "--output", "--capture-range",
              "--capture-range-end"]  # fmt: skip
    found, command = parsed(words[1:], [], single)
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
    single = ["--page", "--print-units", "--target-processes", "--metrics", "--log-file", "--profile-from-start",
              "--clock-control", "--cache-control", "--kernel-name", "--kernel-name-base"]  # fmt: skip
    found, command = parsed(words, ["--csv"], single)
    if found.get("--cache-control", "all") not in ("all", "none") or found.get("--kernel-name-base") == "mangled":
        refuse("the argument for an option is invalid")
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
