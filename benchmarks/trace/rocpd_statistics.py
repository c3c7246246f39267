"""CPU seconds and peak memory of the kernel statistics of a rocpd database, each route in a process of its own.

    python benchmarks/trace/rocpd_statistics.py [--dispatches 5000000] [--keep FILE]

The database has the schema of rocprofv3 (ROCm 7.0) and 200 kernels; making it takes eight seconds for each million.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]

# The route of `rung.trace.databases.rocpd_statistics` first, then those that it was chosen over.
ROUTES = {
    "kernel_statistics (with median)": """
from rung.trace.databases.rocpd_statistics import kernel_statistics
rows = kernel_statistics(path).height""",
    "SQL, GROUP BY (no median)": """
rows = len(db.execute(f'SELECT kernel_id, count(*), sum("end" - start), min("end" - start), max("end" - start) '
                      f'FROM {table} GROUP BY kernel_id').fetchall())""",
    "two columns, np.fromiter, polars": """
import itertools, numpy as np, polars as pl
cells = itertools.chain.from_iterable(db.execute(f'SELECT kernel_id, "end" - start FROM {table}'))
frame = pl.from_numpy(np.fromiter(cells, dtype=np.int64).reshape(-1, 2), schema=["kernel", "dur"])
rows = frame.group_by("kernel").agg(pl.col("dur").sum(), pl.col("dur").median().alias("median")).height""",
    "two columns, fetchmany, polars": """
import polars as pl
cursor, parts = db.execute(f'SELECT kernel_id, "end" - start FROM {table}'), []
while part := cursor.fetchmany(100_000):
    parts.append(pl.DataFrame(part, schema=["kernel", "dur"], orient="row"))
frame = pl.concat(parts)
rows = frame.group_by("kernel").agg(pl.col("dur").sum(), pl.col("dur").median().alias("median")).height""",
    "view top_kernels, as rocpd reports": """
rows = len(db.execute("SELECT * FROM top_kernels").fetchall())""",
    "whole trace: rocpd.read": """
from rung.trace.databases import rocpd
rows = rocpd.read(path).events.height""",
}

PROCESS = """
import resource, sqlite3, sys
from pathlib import Path
path = Path(sys.argv[1])
db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
table = db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'rocpd_kernel_dispatch_%'").fetchone()[0]
"""
REPORT = """
used = resource.getrusage(resource.RUSAGE_SELF)
print(rows, round(used.ru_utime + used.ru_stime, 2), used.ru_maxrss // 1024)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dispatches", type=int, default=5_000_000)
    parser.add_argument("--keep", type=Path, help="the database, made where it does not exist")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "results.db"
        if not path.exists():
            make(path, options.dispatches)
        print(f"{options.dispatches:,} dispatches, {path.stat().st_size / 1e6:,.0f} MB; imports included")
        print(f"{'route':36}{'rows':>10}{'CPU s':>8}{'peak MB':>9}")
        for name, code in ROUTES.items():
            done = subprocess.run(
                [sys.executable, "-c", PROCESS + code + REPORT, str(path)],
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))},
                capture_output=True,
                text=True,
                check=True,
            )
            rows, seconds, memory = done.stdout.split()
            print(f"{name:36}{int(rows):>10,}{float(seconds):>8.2f}{int(memory):>9}", flush=True)


def make(path: Path, dispatches: int) -> None:
    sys.path.insert(0, str(ROOT / "tests" / "trace" / "databases"))
    from rocpd_writer import Writer

    with Writer(path) as writer:
        writer.many_dispatches(dispatches)


if __name__ == "__main__":
    main()
