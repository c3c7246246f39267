"""The least time of a step, and what a trace counts as evidence."""

from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from rung.ladder.climb.state import counters
from rung.ladder.roofline import roofline_bound
from rung.records.climb import Floor
from rung.records.record import record_of
from rung.records.workload import Facts
from rung.rungs.proofs import all_of, counted, fewer, more_often, reported
from rung.rungs.rung import Counters, Evidence
from rung.trace.table import SCHEMA, Trace

RATES = {"fp32": 1e12, "tf32": 4e12, "fp16": 16e12, "bf16": 8e12, "fp8": 32e12}
WORK = 8e12  # FLOP


def facts(mode: str = "infer", own: str = "exact", **more: Any) -> Facts:
    known = {
        "gpu": True,
        "mode": mode,
        "own_precision": own,
        "rates": RATES,
        "bandwidth": 1e12,
        "weights_read": {"4": 10**9},
    }
    return record_of(Facts, {**known, "stepped_bytes": 12 * 10**9, **more})


@pytest.mark.parametrize(
    ("numerics", "precision", "seconds"),
    [("exact", "fp32", 8.0), ("tf32", "tf32", 2.0), ("bf16", "bf16", 1.0), ("fp8", "fp8", 0.25)],
)
def test_the_contract_decides_the_rate_and_fp16_is_never_meant(numerics: Any, precision: str, seconds: float) -> None:
    assert roofline_bound(WORK, facts(), numerics) == Floor(seconds=pytest.approx(seconds), precision=precision)


def test_a_workload_that_runs_in_bfloat16_itself_needs_no_contract_for_it() -> None:
    assert roofline_bound(WORK, facts(own="bf16"), "exact") == Floor(seconds=pytest.approx(1.0), precision="bf16")


def test_reading_the_weights_may_take_longer_and_the_optimizer_comes_on_top() -> None:
    infer, train = roofline_bound(1e9, facts(), "exact"), roofline_bound(1e9, facts("train"), "bf16")
    assert infer is not None
    assert train is not None
    assert infer.seconds == pytest.approx(4e-3)
    assert train.seconds == pytest.approx(1e9 / 8e12 + 12e9 / 1e12)


@pytest.mark.parametrize(("numerics", "seconds"), [("exact", 6e-3), ("tf32", 6e-3), ("bf16", 4e-3), ("fp8", 2e-3)])
def test_weights_are_as_wide_as_the_contract_asks_for_and_no_wider_than_they_are(numerics: Any, seconds: float) -> None:
    """A floor that the next rung goes below would end a climb before that rung."""
    mixed = facts(weights_read={"4": 10**9, "2": 10**9})
    found = roofline_bound(1e9, mixed, numerics)
    assert found is not None
    assert found.seconds == pytest.approx(seconds)


@pytest.mark.parametrize("missing", [{"rates": {}}, {"bandwidth": None}])
def test_without_the_chips_figures_there_is_no_floor(missing: dict[str, Any]) -> None:
    assert roofline_bound(WORK, facts(**missing), "bf16") is None
    assert roofline_bound(None, facts(), "bf16") is None


def test_a_trace_is_counted_per_step() -> None:
    rows = [("kernel", "gemm"), ("kernel", "gemm"), ("runtime", "cudaGraphLaunch"), ("cpu_op", "aten::mm"),
            ("annotation", "ProfilerStep#0")]  # fmt: skip
    events = pl.DataFrame({"kind": [k for k, _ in rows], "name": [n for _, n in rows]}).with_columns(
        *(pl.lit(None, dtype).alias(c) for c, dtype in SCHEMA.items() if c not in ("kind", "name"))
    )
    parts: Any = SimpleNamespace(launches=1.0, kernels=2.0, gemms=1.0)
    found = counters(Trace(events), parts, 2)
    assert (found.launches, found.kernels, found.gemms) == (1.0, 2.0, 1.0)
    assert found.names == {"gemm": 1.0, "cudaGraphLaunch": 0.5, "aten::mm": 0.5}


def test_a_proof_says_what_was_seen_and_cannot_tell_without_a_trace() -> None:
    many, few = Counters(100, 90, 40, {"a_kernel": 3.0}), Counters(10, 9, 30, {"fused": 1.0})
    seen = Evidence(many, few, {"count": 2, "switch": "on"})
    assert fewer("launches", "launches", 0.5)(seen).shown is True
    assert fewer("gemms", "matrix products", 0.5)(seen).shown is False
    assert more_often("fused", "fused kernels")(seen).shown is True
    assert more_often("a_kernel", "kernels")(seen).shown is False
    assert reported("switch", "on", "it")(seen).shown is True
    assert reported("switch", "off", "it")(seen).shown is False
    assert counted("none", "of it")(seen).shown is False
    blind = Evidence(None, None, {"count": 2})
    assert fewer("launches", "launches")(blind).shown is None
    assert all_of(counted("count", "of it"), more_often("fused", "fused kernels"))(blind).shown is True
    assert all_of(counted("none", "of it"), more_often("fused", "fused kernels"))(blind).shown is False
    assert all_of(more_often("fused", "x"), reported("unknown", 1, "y"))(blind).shown is None
    assert "100 -> 10 launches a step" in fewer("launches", "launches")(seen).says
