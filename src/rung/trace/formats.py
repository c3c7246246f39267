"""What is known of each format before a file is opened: whose it is, how `trace.open` recognizes it, what it has and lacks."""

from __future__ import annotations

from typing import NamedTuple


class Format(NamedTuple):
    """tool: whose format it is. made_by: the command or call that writes it. recognized: what of the content decides. lacks: what analyses
    go without, beside what was not recorded."""

    tool: str
    made_by: str
    recognized: str
    has: str
    lacks: str


# By the names in `Trace.format`.
FORMATS = {
    "kineto": Format(
        "torch.profiler",
        "`prof.export_chrome_trace(...)`, `rung profile TARGET`: JSON, plain or gzip",
        "a JSON object with `traceEvents`, `deviceProperties` or `schemaVersion`, or a JSON list of events",
        "kernels, copies, runtime calls, operators, collectives; shapes (`record_shapes`), Python lines (`with_stack`), "
        "nn.Modules (`with_modules`) and memory (`profile_memory`) where they were recorded",
        "hardware counters",
    ),
    "rocprofv3-json": Format(
        "rocprofv3",
        "`rocprofv3 --output-format json`: `*_results.json`",
        "`rocprofiler-sdk-tool` within the first 4096 bytes",
        "kernels, copies with sizes, runtime calls, markers, allocations, hardware counters",
        "operators, shapes, Python lines; samples of the program counter are counted, not read",
    ),
    "rocprofv3-csv": Format(
        "rocprofv3",
        "`rocprofv3 --output-format csv`, `rocpd convert`: one file, or the folder of a run",
        "the column titles of the first line",
        "kernels, copies, runtime calls, markers, allocations, hardware counters",
        "sizes of copies; operators, shapes, Python lines",
    ),
    "rocpd": Format(
        "rocprofv3",
        "`rocprofv3` of ROCm 7.0 and later: `*_results.db`, one or several processes",
        "a SQLite file with the tables `rocpd_metadata`, `rocpd_kernel_dispatch` or `rocpd_string`",
        "kernels, copies with sizes, runtime calls, markers, allocations, hardware counters",
        "operators, shapes, Python lines",
    ),
    "pftrace": Format(
        "Perfetto",
        "`rocprofv3 -f pftrace`, rocprof-sys, `rung analyze --write FILE.pftrace`",
        "the first bytes are packets of a Perfetto trace",
        "kernels, copies, runtime calls, markers, allocations, hardware counters",
        "shapes, Python lines; samples of counter tracks are counted, not read",
    ),
    "rocprof-csv": Format(
        "rocprof",
        "`rocprof`: `results.csv`, `*.stats.csv`",
        "the column titles of the first line",
        "kernels, hardware counters; of `*.stats.csv` the statistics alone",
        "copies, runtime calls, operators",
    ),
    "rocprof-json": Format(
        "rocprof",
        "`rocprof --sys-trace`: `results.json`",
        "a JSON object with `traceEvents` whose first event is empty, or with `BeginNs`",
        "kernels, copies, runtime calls, markers",
        "hardware counters, operators; launches are matched by their microsecond",
    ),
    "rocprof-legacy-db": Format(
        "rocprof",
        "`rocprof`: `results.db`",
        "a SQLite file with one of the tables `KERN`, `OPS`, `COPY`, `HIP`, `HSA` or `rocTX`",
        "kernels, copies, runtime calls, markers, hardware counters",
        "operators, shapes, Python lines",
    ),
    "rocprofv2-csv": Format(
        "rocprofv2",
        "`rocprofv2`: activity files and tables of counters",
        "the column titles of the first line",
        "kernels, and the runtime calls or hardware counters of the file",
        "operators, shapes, Python lines",
    ),
    "rocprof-compute": Format(
        "rocprof-compute",
        "`rocprof-compute profile`: the folder of a workload, or one of its tables",
        "a folder with `pmc_perf.csv` or the files of its passes; column titles",
        "kernels, hardware counters, the roofs that it measured",
        "copies, runtime calls, operators; kernels ran one at a time",
    ),
    "nsys": Format(
        "Nsight Systems",
        "`nsys export --type sqlite REPORT.nsys-rep`",
        "a SQLite file with tables of CUPTI, NVTX or `TARGET_INFO_GPU`",
        "kernels, copies with sizes, runtime calls, NVTX ranges, allocations",
        "shapes, Python lines, hardware counters",
    ),
    "ncu-csv": Format(
        "Nsight Compute",
        "`ncu --csv --page raw --print-units base --log-file FILE`",
        "the titles of the first line that does not begin with `==`",
        "hardware counters of each kernel",
        "times in the run: kernels were replayed; all other events",
    ),
}


def tools() -> str:
    """Whose formats are read, as a list in a sentence."""
    return ", ".join(dict.fromkeys(one.tool for one in FORMATS.values()))
