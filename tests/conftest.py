"""One thread for torch in every test and every worker: two cores are shared by all."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest


@pytest.fixture(autouse=True)
def _no_cache_of_the_user(tmp_path_factory, monkeypatch):
    """No test reads or writes the user's own cache of traces."""
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path_factory.getbasetemp() / "rung-cache"))
