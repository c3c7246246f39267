from pathlib import Path

from rung.trace import rocprof_compute as r

for w in ("vcopy_MI200", "kernel_MI300X", "vcopy_MI350"):
    p = Path("/work/shared/data/rocprof_compute") / w
    t = r.read(p)
    print(
        w,
        r.sniff(b"", p),
        t.events["dur"].to_list(),
        t.events["dur"].mean(),
        t.counters.height,
        t.counters["counter"].n_unique(),
        t.unread,
        t.devices,
        t.events.row(0),
    )
    g = lambda n: t.counters.filter(counter=n)["value"].to_list()
    print(g("SQ_WAVES"), g("SQ_LEVEL_WAVES/SQ_ACCUM_PREV_HIRES"), g("TCC_HIT_sum"), g("SQC_DCACHE_REQ_READ_1"))
print(t.meta)
import polars as pl

f = pl.read_csv(p / "pmc_perf.csv").columns
for i in range(8):
    print([c for c in pl.read_csv(p / f"pmc_perf_{i}.csv").columns if c not in f])
