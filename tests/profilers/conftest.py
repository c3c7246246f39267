"""Stand-ins on PATH, with the files that they leave."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
for folder in ("profilers", "trace/rocprof", "trace/perfetto", "trace/databases"):
    sys.path.insert(0, str(HERE.parent / folder))

import standins  # noqa: E402


def dispatches():
    shared = {"kind": "kernel", "tid": 77, "device": 0, "stream": 1, "bytes": 64}
    return [{**shared, "name": n, "ts": ts, "dur": d, "correlation": c} for n, c, ts, d in standins.KERNELS]


@pytest.fixture(scope="session")
def made_files(tmp_path_factory):
    """What the stand-ins leave, made once: of three dispatches, in the words of each version."""
    from perfetto_encoder import Recorder
    from rocprof_files import chrome_text, csv_files, results_csv

    from rung.profilers import counters

    folder = tmp_path_factory.mktemp("made")
    for number, version in ((6, "6.3"), (7, "7.0")):
        calls = [
            {**e, "kind": "runtime", "name": "hipLaunchKernel", "ts": e["ts"] - 900, "dur": 100} for e in dispatches()
        ]
        texts = csv_files(version, [*dispatches(), *calls])
        (folder / f"v3_csv_{number}.json").write_text(json.dumps({k.removeprefix("77_"): v for k, v in texts.items()}))
        # A pass that collects counters traces less, so its correlation ids are others.
        alone = csv_files(version, [{**e, "correlation": place} for place, e in enumerate(dispatches(), start=1)])
        (folder / f"v3_csv_{number}_counters.json").write_text(
            json.dumps({k.removeprefix("77_"): v for k, v in alone.items()})
        )
    (folder / "results.csv").write_text(results_csv(dispatches(), []))
    (folder / "results.json").write_text(chrome_text(dispatches()))
    titles = "Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,Kernel_Name,Start_Timestamp,End_Timestamp,SQ_WAVES"
    rows = [
        f'{i},4,1,77,77,64,64,"{n}",{ts},{ts + d},{16 * (i + 1)}' for i, (n, _, ts, d) in enumerate(standins.KERNELS)
    ]
    for name in ("pmc_perf.csv", "v2.csv"):
        (folder / name).write_text("\n".join([titles, *rows]) + "\n")
    out = Recorder(zero=1_000)
    out.process(1, 77)
    out.track(2, 'STREAM [" 1 "] ', 1)
    for name, correlation, ts, dur in standins.KERNELS:
        out.slice(
            ts, ts + dur, 2, "kernel_dispatch", name, agent="Agent-4", agent_type="GPU", corr_id=correlation, queue=1
        )
    (folder / "trace.pftrace").write_bytes(out.bytes())
    (folder / "counters_gfx942.txt").write_text("\n".join(sorted(counters.known("gfx942"))))
    nsys(folder / "nsys.sqlite")
    return folder


def nsys(path):
    import sqlite3

    db = sqlite3.connect(path)
    db.executescript(
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);"
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,"
        " streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);"
    )
    for place, (name, correlation, ts, dur) in enumerate(standins.KERNELS):
        db.execute("INSERT INTO StringIds VALUES (?, ?)", (place, name))
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, 0, 1, 7, ?, 1, ?, ?)",
                   (ts, ts + dur, correlation, place, place))  # fmt: skip
    db.commit()
    db.close()


@pytest.fixture
def tools_on_path(tmp_path, monkeypatch, made_files):
    """Puts stand-ins on an otherwise almost empty PATH: call it with their names; returns the folder of them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("STANDIN_FILES", str(made_files))
    monkeypatch.delenv("ROCM_PATH", raising=False)
    monkeypatch.setattr("rung.hardware.places.tool_folders", lambda *_: [])  # whatever this machine has
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)

    def install(*names, rocm="7.0"):
        monkeypatch.setenv("STANDIN_ROCM", rocm)
        (tmp_path / ".info").mkdir(exist_ok=True)
        (tmp_path / ".info" / "version").write_text(f"{rocm}.0-1\n")
        for name in names:
            script = folder / name
            script.write_text(
                f"#!{sys.executable} -ES\nimport sys\nsys.path.insert(0, {str(HERE)!r})\nimport standins\n"
                f"standins.main({name!r}, sys.argv[1:])\n"
            )
            script.chmod(script.stat().st_mode | stat.S_IXUSR)
        return folder

    assert os.environ["PATH"].startswith(str(folder))
    return install
