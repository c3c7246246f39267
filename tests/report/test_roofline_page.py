"""The roofline page: dots under their roofs, nothing from the trace unescaped, and no picture without FLOPs."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest
from made_pages import without_own_scripts

from rung.analysis.counters.metrics import SCHEMA as COUNTERS
from rung.analysis.counters.roofline import SCHEMA as ROOFS
from rung.cli.main import main
from rung.report.roofline_chart import Point, Roof, roofline
from rung.report.roofline_page import page

GEMM, COPY = "gemm<script>alert(1)</script>", "copy"


def kernels() -> pl.DataFrame:
    rows = [
        {
            "kernel": GEMM,
            "time_ns": 3000,
            "bound": "compute",
            "because": "MFMA busy 80%",
            "tflop_per_s": 500.0,
            "device": 0,
        },
        {"kernel": COPY, "time_ns": 1000, "bound": None, "because": "<b>nothing</b>", "tflop_per_s": 0.0, "device": 0},
    ]
    types = {name: dtype for name, dtype in COUNTERS.items() if name in rows[0]}
    return pl.DataFrame(rows, schema=types)


def roofs() -> pl.DataFrame:
    rows = [
        {"kernel": GEMM, "roof": "HBM", "intensity": 400.0, "peak": 5324.8, "measured_peak": 4000.0, "device": 0},
        {"kernel": GEMM, "roof": "matrix bf16", "peak": 1307.4, "device": 0},
        {"kernel": COPY, "roof": "HBM", "intensity": 0.0, "peak": 5324.8, "measured_peak": 4000.0, "device": 0},
    ]
    return pl.DataFrame(rows, schema=ROOFS)


def test_a_page_has_the_kernels_and_their_roofs_and_escapes_both() -> None:
    text = page(kernels(), roofs(), "run<1>")
    assert "<script" not in without_own_scripts(text)
    assert "<b>nothing" not in text
    assert "run&lt;1&gt;" in text
    assert "HBM</b> 5.32 TB/s" in text
    assert "matrix bf16 1307" in text
    assert "400 FLOP a byte of HBM, 75% of the time" in text
    assert "1 without counted floating-point work is in the table only" in text
    assert 'class="roof r-hbm measured"' in text


def test_without_floating_point_work_there_is_no_picture_and_it_says_so() -> None:
    text = page(kernels().filter(pl.col("kernel") == COPY), roofs().filter(pl.col("kernel") == COPY), "run")
    assert "<svg" not in without_own_scripts(text)
    assert "nothing to plot" in text


def test_a_dot_lies_on_its_roof_where_the_kernel_reaches_it() -> None:
    # 2 TB/s at 10 FLOP a byte allow 20 TFLOP/s
    picture = roofline(
        [Point("k", "HBM", 10.0, 20.0, 1.0)], [Roof("HBM", 2.0, True), Roof("matrix bf16", 1000.0, False)]
    )
    x1, y1, x2, y2 = map(float, re.findall(r'x1="([\d.]+)%" y1="([\d.]+)" x2="([\d.]+)%" y2="([\d.]+)" class="roof r-hbm"', picture)[0])  # fmt: skip
    cx, cy = map(float, re.findall(r'<circle cx="([\d.]+)%" cy="([\d.]+)"', picture)[0])
    assert cy == pytest.approx(y1 + (cx - x1) / (x2 - x1) * (y2 - y1), abs=0.5)
    flat = float(re.findall(r'y1="([\d.]+)" x2="[\d.]+%" y2="[\d.]+" class="roof flat"', picture)[0])
    assert y2 == pytest.approx(flat, abs=0.5)  # the slope ends at the arithmetic roof


def test_a_trace_without_counters_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.json"
    trace.write_text(
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 0, "dur": 1}]}'
    )
    assert main(["analyze", str(trace), "--roofline", str(tmp_path / "r.html")]) == 3
    assert "has no hardware counters" in capsys.readouterr().err
