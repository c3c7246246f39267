"""The documented command lines of profilers as tables, and what they refuse.

A line: the ROCm that brought the options (`6.2`; `6.2-6.2`: and the last that had them), what they take, their names with `|`
between two of one option. `flag` takes nothing, `bool` nothing or yes and no, `one` and `many` values. Prefixes of names are
refused, as the tools do (argparse without abbreviations).
"""

import re
import sys

ROCPROFV3 = """
7.0 flag -v|--version
6.2 one -i|--input -o|--output-file -d|--output-directory --log-level --preload
6.2 many --output-format
7.0 many -f
6.2-6.2 flag --list-metrics
6.2-6.2 one --kernel-names
6.2 bool --hip-trace --hip-runtime-trace --hip-compiler-trace --marker-trace --kernel-trace --memory-copy-trace
6.2 bool --scratch-memory-trace --hsa-trace --hsa-core-trace --hsa-amd-trace --hsa-image-trace --hsa-finalizer-trace
6.2 bool -s|--sys-trace --stats -M|--mangled-kernels -T|--truncate-kernels
6.3 bool -r|--runtime-trace --memory-allocation-trace --rccl-trace --kokkos-trace --kernel-rename -S|--summary
6.3 bool -D|--summary-per-domain -L|--list-avail --group-by-queue
6.3 many --pmc --summary-groups
6.3 one --kernel-include-regex --kernel-exclude-regex --kernel-iteration-range --summary-output-file -u|--summary-units
6.3 one -E|--extra-counters --perfetto-backend --perfetto-buffer-size --perfetto-buffer-fill-policy --perfetto-shmem-size-hint
6.4 bool --rocdecode-trace --pc-sampling-beta-enabled
6.4 one --pc-sampling-unit --pc-sampling-method --pc-sampling-interval --collection-period-unit
6.4-6.4 many -p|--collection-period
7.0 many -P|--collection-period
7.0 bool --rocjpeg-trace --output-config --selected-regions --att --disable-signal-handlers
7.0 one -A|--agent-index --minimum-output-data --rocm-root --sdk-soversion --sdk-version
7.0 one --att-library-path --att-target-cu --att-simd-select --att-buffer-size --att-shader-engine-mask --att-activity
7.1 one -p|--pid --attach-duration-msec
7.2 one --profile-mpi-ranks
"""
ROCPROF = """
6.0 one -i -o -d -t -m --tool-version --cmd-qts --basenames --timestamp --ctx-wait --ctx-limit --heartbeat --obj-tracking
6.0 one --trace-start --trace-period --flush-rate
6.0 flag --list-basic --list-derived --verbose --stats --roctx-trace --hip-trace --hsa-trace --sys-trace --roctx-rename
6.0 flag --parallel-kernels --merge-traces --version -h
"""
ROCPROFV2 = """
6.0 one -i -o -d -m --plugin --plugin-version -fi -tp
6.0 flag --list-counters --basenames --hip-api --hip-activity --hip-trace --hsa-api --hsa-activity --hsa-trace --roctx-trace
6.0 flag --kernel-trace --sys-trace -ns
"""
COMPUTE_PROFILE = """
6.3-7.13 one -p|--path --subpath
7.13 one --output-directory
6.3 one -n|--name --join-type --sort --device --config-dir --list-metrics --set
6.3 one --format-rocprof-output --pc-sampling-method --pc-sampling-interval --rocprofiler-sdk-library-path
6.3 many -k|--kernel -d|--dispatch -b|--block -m|--mem-level -R|--roofline-data-type
6.3 flag --hip-trace --no-roof --roof-only --kernel-names --list-sets --retain-rocpd-output
"""
COMPUTE_ANALYZE = """
6.3 many -p|--path -k|--kernel -d|--dispatch -b|--block --gpu-id --cols --include-cols -R|--roofline-data-type --nodes
6.3 one --list-metrics -n|--normal-unit -t|--time-unit --decimal --max-stat-num --save-dfs -o|--output --config-dir
6.3 one --kernel-verbose --report-diff --pc-sampling-sorting-type
6.3 flag --list-stats --random-port --tui --list-nodes -g
"""
_SYS = """
6.3 one -c|--config -w|--wait -d|--duration --periods --trace-file --trace-buffer-size --trace-fill-policy --trace-wait
6.3 one --trace-duration --trace-periods --trace-clock-id --process-freq --process-wait --process-duration --cpus --gpus
6.3 one --sampling-wait --sampling-duration -v
6.3 many -o|--output --profile-format -t|--tids -I|--include -E|--exclude -C|--cpu-events
6.3 flag -T|--trace -P|--profile -F|--flat-profile -H|--host -D|--device -i|--inlines --debug --monochrome --hsa-interrupt
"""
SYS = {
    "run": _SYS
    + "6.3 flag -S|--sample --fork --sample-cputime --sample-realtime\n6.3 one --sampling-freq -l|--launcher\n",
    "sample": _SYS + "6.3 flag --cputime --realtime\n6.3 one -f|--freq\n",
    "instrument": "6.3 one -o -v --mode --print-available\n6.3 many -I -E -R -MI -ME -MR\n6.3 flag --simulate\n",
    "python": "6.3 one -c|--config -s|--setup -v --label\n6.3 many -I -E -R -MI -ME -MR\n"
    "6.3 flag -b|--builtin -F|--full-filepath --trace-c\n",
}
NSYS = """
0 one --trace --sample --cpuctxsw --export --force-overwrite --output --capture-range --capture-range-end
"""
NCU = """
0 one --page --print-units --target-processes --metrics --log-file --profile-from-start --clock-control --cache-control
0 one --kernel-name --kernel-name-base
0 flag --csv
"""
CHOICES = {
    "--log-level": ("fatal", "error", "warning", "info", "trace", "env", "config"),
    "--pc-sampling-unit": ("instructions", "cycles", "time"),
    "--pc-sampling-method": ("stochastic", "host_trap"),
    "--plugin": ("cli", "file", "perfetto", "ctf", "json", "att"),
    "--mode": ("trace", "sampling", "coverage"),
    "--cache-control": ("all", "none"),
    "--clock-control": ("base", "none"),
    "--kernel-name-base": ("function", "demangled", "mangled"),
    "--profile-from-start": ("on", "off"),
    **dict.fromkeys(("--timestamp", "--basenames", "--cmd-qts", "--ctx-wait", "--obj-tracking", "--trace-start"), ("on", "off")),
}  # fmt: skip
_BOOLS = ("y", "yes", "t", "true", "on", "1", "n", "no", "f", "false", "off", "0")


def refuse(text, code=2):
    print(f"error: {text}", file=sys.stderr)
    sys.exit(code)


def options(table, version):
    """Name → (name that stands for it, what it takes), of the options that a version has."""
    found = {}
    for line in table.split("\n"):
        if not line:
            continue
        since, takes, *names = line.split()
        first, _, last = since.partition("-")
        if tuple(map(int, first.split("."))) <= version and (not last or version <= tuple(map(int, last.split(".")))):
            for both in names:
                found |= dict.fromkeys(both.split("|"), (both.split("|")[-1], takes))
    return found


def parsed(words, table, version=(99,)):
    """What is given: name → value, True or a list; and what is left from the first word on that is no option."""
    known, found, words = options(table, version), {}, list(words)
    while words and words[0].startswith("-"):
        word, equals, text = words.pop(0).partition("=")
        if word not in known or (equals and not word.startswith("--")):
            refuse(f"unrecognized arguments: {word}")
        name, takes = known[word]
        if equals:
            words.insert(0, text)
        following = len(words) if takes == "many" else {"flag": 0, "bool": 1, "one": 1}[takes]
        values = []
        while words and len(values) < following and (equals or not re.match(r"-\D", words[0])):
            values.append(words.pop(0))
            if equals:
                break
        if not values and takes in ("one", "many"):
            refuse(f"argument {word}: expected at least one argument")
        if takes == "bool" and values and values[0].lower() not in _BOOLS:
            refuse(f"argument {word}: invalid value {values[0]!r}")
        if set(values) - set(CHOICES.get(name, values)):
            refuse(f"argument {word}: invalid choice: {values[0]!r}")
        if takes == "many":
            found.setdefault(name, []).extend(values)
        else:
            found[name] = values[0] if takes == "one" else not values or values[0].lower() in _BOOLS[:6]
    return found, words
