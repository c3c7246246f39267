"""A small file of each format that no recording is at hand of, for fuzzing: `python tests/trace/fuzz_files.py FOLDER`."""

import random
import sys
from pathlib import Path

sys.path += [str(folder) for folder in Path(__file__).parent.iterdir() if folder.is_dir()]

from perfetto_encoder import Recorder
from rocpd_writer import Writer
from rocprof_files import CALLS, COPIES, chrome_text, csv_files, results_csv, results_json, write, write_json
from test_nsys import Export, put
from test_rocprof_legacy_db import call, make, op

from rung.trace import read, write_chrome, write_csv, write_perfetto

NAMES = ('k<"a", 1>(int, int)', "Cijk_Ailk [x]", "größer", "void at::native::vectorized_elementwise_kernel<4>(int)")


def made(folder: Path) -> None:
    rng = random.Random(0)
    found = [event(rng, i) for i in range(24)]
    for version in ("6.0", "7.0"):
        write(folder, {f"{version}_{name}": text for name, text in csv_files(version, found).items()})
    write_json(folder / "results.json", results_json(found))
    kernels = [each for each in found if each["kind"] == "kernel"]
    write(folder, {"results.csv": results_csv(kernels, ["SQ_WAVES"]), "legacy.json": chrome_text(found)})
    make(folder / "legacy.db", OPS=[op(index=i) for i in range(9)], HIP=[call(index=i) for i in range(9)])
    with Export(folder / "nsys.sqlite") as export:
        for what in ("kernel", "memcpy", "memset", "runtime", "annotation", "mark", "other", "allocation", "graph"):
            put(export, (what, f"name of a {what}", 100, 20, 7, 2, 64), 5, 6, 1)
    with Writer(folder / "rocpd.db", views=False) as writer:
        writer.many_dispatches(50)
    recorder = Recorder()
    for each in found:
        recorder.slice(
            each["ts"], each["ts"] + each["dur"], 77, each["kind"], each["name"], corr_id=each["correlation"]
        )
    (folder / "rocprofv3.pftrace").write_bytes(recorder.bytes())
    trace = read(folder / "legacy.json")
    for writer_of, name in ((write_perfetto, "ours.pftrace"), (write_chrome, "ours.json"), (write_csv, "ours.csv")):
        writer_of.write(trace, folder / name)


def event(rng: random.Random, number: int) -> dict:
    kind = rng.choice(("kernel", "kernel", "memcpy", "runtime", "runtime", "annotation", "allocation"))
    name = {"memcpy": COPIES[0], "runtime": CALLS[0], "allocation": "MEMORY_ALLOCATION_ALLOCATE"}.get(kind)
    return {
        "kind": kind,
        "name": name or rng.choice(NAMES),
        "ts": 10**15 + 1000 * number,
        "dur": rng.randrange(900),
        "tid": 4242,
        "device": number % 3,
        "stream": number % 2,
        "correlation": number,
        "bytes": 1 << number,
    }


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    made(target)
    print(*sorted(target.iterdir()), sep="\n")
