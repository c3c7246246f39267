"""What the stand-ins leave: three dispatches in the words of each profiler. The files that are the same every time were made
before by the fixture `made_files` of conftest.py, into $STANDIN_FILES."""

import json
import os
import re
import sys
from pathlib import Path

KERNELS = (("gemm(float*)", 7, 12_000, 3_000), ("add(float*)", 9, 16_000, 500), ("gemm(float*)", 11, 17_000, 3_100))


def version():
    return tuple(map(int, os.environ.get("STANDIN_ROCM", "7.0").split(".")))


def made(name):
    return (Path(os.environ["STANDIN_FILES"]) / name).read_bytes()


def put(folder, name, data):
    path = Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"" if os.environ.get("STANDIN_FAILS") == "empty" else data)


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


COUNTER_COLUMNS = [
    "Correlation_Id",
    "Dispatch_Id",
    "Agent_Id",
    "Queue_Id",
    "Process_Id",
    "Thread_Id",
    "Grid_Size",
    "Kernel_Id",
    "Kernel_Name",
    "Workgroup_Size",
    "LDS_Block_Size",
    "Scratch_Size",
    "VGPR_Count",
    "Accum_VGPR_Count",
    "SGPR_Count",
    "Counter_Name",
    "Counter_Value",
    "Start_Timestamp",
    "End_Timestamp",
]
NEWER = {"Kernel_Id": (6, 3), "Start_Timestamp": (6, 3), "End_Timestamp": (6, 3), "Accum_VGPR_Count": (6, 4)}


def counter_csv(counters, included):
    """As the version writes it; kernels are numbered from 1 here, as nothing but they is recorded."""
    titles = [title for title in COUNTER_COLUMNS if NEWER.get(title, (6, 2)) <= version()]
    lines = [",".join(f'"{title}"' for title in titles)]
    for place, (kernel, _, start, long) in enumerate(KERNELS, start=1):
        row = {"Correlation_Id": place, "Dispatch_Id": place, "Agent_Id": '"Agent 2"' if version() >= (7, 0) else 2,
               "Queue_Id": 1, "Process_Id": 77, "Thread_Id": 77, "Grid_Size": 1024, "Kernel_Id": 1, "Workgroup_Size": 64,
               "Kernel_Name": f'"{kernel}"', "VGPR_Count": 8, "SGPR_Count": 16, "Start_Timestamp": start,
               "End_Timestamp": start + long}  # fmt: skip
        for counter in counters if included.search(kernel) else ():
            row |= {"Counter_Name": f'"{counter}"', "Counter_Value": value(counter, place)}
            lines.append(",".join(str(row.get(title, 0)) for title in titles))
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


def long_csv(counters):
    """A pass of rocprof-compute as newer versions keep it: a row a counter (utils/rocpd_data.py)."""
    titles = (
        "GPU_ID,Dispatch_ID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Scratch_Per_Workitem,Arch_VGPR,Accum_VGPR,SGPR,"
        "Kernel_Name,Start_Timestamp,End_Timestamp,Kernel_ID,Counter_Name,Counter_Value"
    )
    rows = [
        f"0,{place},1024,64,0,0,8,0,16,{kernel},{start},{start + long},1,{counter},{value(counter, place)}"
        for place, (kernel, _, start, long) in enumerate(KERNELS, start=1)
        for counter in counters
    ]
    return "\n".join([titles, *rows, ""]).encode()


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
