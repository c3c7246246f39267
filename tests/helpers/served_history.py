"""A history with a climb, measurements that changed once, and names of a stranger's; and a server of it in this process."""

import math
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from rung.cli.main import main
from rung.records.history import Entry, Measured
from rung.runs import Run
from rung.runs.entries import Call, entry_of
from rung.runs.sqlite import SqliteHistory
from rung.serve.door import Door
from rung.serve.pages import Pages
from rung.serve.server import Server

RUN = Path(__file__).parents[1] / "data" / "run_directory"
EVIL = "<script>alert(1)</script>\x1b[31m\u202egnp.exe"
MEASURED, COMPARED, OF_A_STRANGER, CLIMBED = 1, 13, 14, 15  # numbers of entries


def bench(number: int, value: float, **known: object) -> Entry:
    figure = Measured(name="time", target="/x/model.py:make", options={"batch": "8"}, variant={"mode": "train"}, unit="ns", value=value,
                      low=value * 0.99, high=value * 1.01)  # fmt: skip
    blank = {"created": f"2026-01-{number:02}T03:04:05+00:00", "target": "model.py:make", "status": "complete", "answer": "",
             "command": "rung bench model.py:make --batch 8", "host": "node", "device": "MI300X", "folder": "/x", "measured": [figure],
             "environment": {"torch": "2.13" if number < 7 else "2.14"}, "document": {"kind": "bench"}}  # fmt: skip
    return Entry(**({"of": "bench"} | blank | known))  # type: ignore[arg-type]


def climbed(store: SqliteHistory, folder: Path) -> int:
    """Adds the climb of a copy of the recorded run directory; its number."""
    shutil.copytree(RUN, folder)
    (folder / "traces").mkdir()
    (folder / "traces" / "baseline.json.gz").write_bytes(b"a trace")
    (folder / "model.pt").write_bytes(b"a pickle")
    assert main(["report", str(folder)]) == 0
    return store.add(
        entry_of("climb", Run.open_(folder).data(), Call(command="rung climb", target="pointwise.py:make"))
    )


def history(folder: Path) -> SqliteHistory:
    """Twelve measurements, 10 % slower from the seventh on; a comparison, one of a stranger's, and a climb."""
    store, noise = SqliteHistory(folder / "history.sqlite"), np.random.default_rng(2).normal(size=12) * 0.004
    for k in range(12):
        store.add(bench(k + 1, 2e6 * math.exp(noise[k]) * (1.1 if k >= 6 else 1)))
    store.tag(3, ["before"])
    speedup = Measured(name="speedup", target="/x/b.py:make", options={}, variant={}, unit="x", value=1.3)
    store.add(bench(20, 2e6, of="compare", target="a.py:make | b.py:make", answer="faster", measured=[speedup]))
    figure = Measured(name="time", target=EVIL, options={EVIL: EVIL}, variant={EVIL: EVIL}, unit="ns", value=5e6)
    store.add(bench(21, 5e6, target=EVIL + "long" * 99, status=EVIL, answer=EVIL, command=EVIL, host=EVIL, device=EVIL, folder=EVIL, measured=[figure],
                    environment={"torch": EVIL}, document={EVIL: EVIL}))  # fmt: skip
    store.tag(14, [EVIL])
    climbed(store, folder / "run")
    return store


@contextmanager
def serving(store: SqliteHistory, host: str = "127.0.0.1", token: str | None = None) -> Iterator[Server]:
    with Server(host, 0, Door.of(host, token), Pages(store)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
