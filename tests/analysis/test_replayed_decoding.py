"""Decoding replayed as a graph, recorded on an H100 (tests/data/replayed): what its kernels are, and what is to be done first."""

import gzip
import json
import re
from pathlib import Path

import polars as pl
import pytest

from rung.analysis.analyses import table
from rung.analysis.breakdown import breakdown
from rung.analysis.findings import findings
from rung.trace import read

FILE = Path(__file__).parents[1] / "data" / "replayed" / "h100-decode.json.gz"
STEPS = 3


@pytest.fixture(scope="module")
def kernels() -> list[tuple[str, float]]:
    """Names and microseconds, by the standard library alone."""
    events = json.loads(gzip.decompress(FILE.read_bytes()))["traceEvents"]
    return [(e["name"], e["dur"]) for e in events if e.get("cat") == "kernel"]


def test_products_with_one_row_are_products(kernels: list[tuple[str, float]]) -> None:
    products = [
        (name, us) for name, us in kernels if name.startswith("triton_red") and {"mm", "t"} <= set(re.split("_+", name))
    ]
    assert len(products) == 65 * STEPS  # four a layer, and the logits
    rows = table("categories", read(FILE), steps=STEPS).filter(pl.col("category") == "gemm")
    assert rows["detail"].to_list() == ["matrix-vector"]
    assert rows["time_ns"].sum() == pytest.approx(sum(us for _, us in products) * 1e3 / STEPS, rel=1e-3)
    attention = sum(us for name, us in kernels if "decode_attention" in name)
    parts = breakdown(read(FILE), steps=STEPS).parts
    assert parts["attention"] == pytest.approx(attention * 1e3 / STEPS, rel=1e-3)
    assert parts["gemm"] > 3 * parts["pointwise"]


def test_what_is_replayed_is_not_asked_to_be_captured() -> None:
    rows = {row["finding"]: row for row in findings(read(FILE), steps=STEPS).to_dicts()}
    assert "host_bound" not in rows
    assert rows["between_replays"]["evidence"] == "3 launches of graphs"
    assert rows["gemm_bound"]["share"] == pytest.approx(0.68, abs=0.01)
