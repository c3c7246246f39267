"""An entry of a history, and a PostgreSQL server for the time of the tests."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rung.records.history import Entry


def entry(target: str = "x", created: str = "2026-01-01T00:00:00+00:00", **more: Any) -> Entry:
    blank: dict[str, Any] = {
        "status": "complete",
        "answer": "",
        "command": "",
        "host": "h",
        "device": "d",
        "folder": "",
    }
    return Entry(created=created, of=more.pop("of", "bench"), target=target, **(blank | more))


@contextmanager
def postgresql_server() -> Iterator[str]:
    """A server on a socket of its own, that needs no password; the URL of its database. Skips where there is none to start."""
    for package in ("sqlalchemy", "psycopg"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    found = [*Path("/usr/lib/postgresql").glob("*/bin"), *(Path(path).parent for path in filter(None, [shutil.which("initdb")]))]  # fmt: skip
    if not found:
        pytest.skip("there is no PostgreSQL server to start (initdb)")
    who: dict[str, Any] = (
        {"user": "postgres", "group": "postgres"} if os.getuid() == 0 else {}
    )  # a server refuses to be root
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    try:
        if who:
            shutil.chown(folder, **who)
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "cwd": folder, **who}
        subprocess.run([found[0] / "initdb", "-D", folder / "data", "-U", "rung", "-A", "trust", "-N", "-E", "UTF8", "--locale=C"], check=True, **quiet)  # fmt: skip
        server = subprocess.Popen([found[0] / "postgres", "-D", folder / "data", "-k", folder, "-c", "listen_addresses=", "-c", "max_connections=20", "-F"], **quiet)  # fmt: skip
        try:
            url = f"postgresql://rung@/postgres?host={folder}"
            wait_for(url)
            yield url
        finally:
            server.terminate()
            server.communicate(timeout=60)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wait_for(url: str) -> None:
    import psycopg

    until = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
