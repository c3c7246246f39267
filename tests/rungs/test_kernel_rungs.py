"""A kernel is a rung where it was measured to beat Inductor's code, or was not measured; where it lost, that is said."""

from typing import Any

import pytest
from known_facts import facts_of

from rung.plan import Plan
from rung.rungs import BY_NAME, Context, Counters, Evidence, with_rung
from rung.rungs.kernels import KERNELS, WORTH, measured, measurements

FOUND = {
    "triton-rope": 4, "triton-cross-entropy": 1, "triton-decode-attention": 2, "triton-gemv": 113, "biased-attention": 12,
}  # fmt: skip


def context(arch: str = "sm90", mode: str = "train", plan: Plan | None = None, **found: Any) -> Context:
    facts = {"gpu": True, "mode": mode, "arch": arch, "matches": FOUND, "skipped": [], **found}
    return Context(plan or Plan(compile=True), "bf16", facts_of(facts), {"pointwise": 1.0}, {})


@pytest.mark.parametrize("arch", ["sm90", "gfx942", "sm100"])
def test_where_it_won_or_was_not_measured_it_is_tried(arch: str) -> None:
    assert BY_NAME["triton-rope"].applies(context(arch)) is None
    assert BY_NAME["triton-cross-entropy"].applies(context(arch)) is None


def test_where_it_was_measured_to_lose_the_figure_is_said() -> None:
    no = BY_NAME["triton-rope"].applies(context(mode="infer"))
    assert no is not None
    assert "0.98× its speed at 8 x 32 x 4096 x 128" in no.why
    assert "H100" in no.why
    assert BY_NAME["triton-rope"].applies(context("gfx942", "infer")) is None


def test_it_needs_torch_compile_and_something_to_take_the_place_of() -> None:
    for rung in KERNELS:
        no = rung.applies(context(plan=Plan()))
        assert no is not None
        assert "torch.compile" in no.why
        left = rung.applies(context(matches={}, skipped=[f"{rung.name}: it at a: its kernel runs on a GPU"]))
        assert left is not None
        assert left.why.endswith("its kernel runs on a GPU")
    no = BY_NAME["triton-cross-entropy"].applies(context(mode="infer"))
    assert no is not None
    assert no.why == "it is for training."


def test_the_kernels_name_in_the_trace_is_its_proof() -> None:
    worker = {"matches": FOUND}
    before, after = Counters(9, 9, 3, {"triton_poi_fused": 5.0}), Counters(9, 9, 3, {"rope_rotate": 4.0})
    rung = BY_NAME["triton-rope"]
    assert rung.proof(Evidence(before, after, worker)).shown is True
    assert rung.proof(Evidence(before, before, worker)).shown is False


def test_the_two_rungs_of_the_loss_take_each_others_place() -> None:
    assert with_rung(["compile", "fused-cross-entropy"], BY_NAME["triton-cross-entropy"]) == [
        "compile", "triton-cross-entropy",
    ]  # fmt: skip
    assert with_rung(["triton-cross-entropy"], BY_NAME["fused-cross-entropy"]) == ["fused-cross-entropy"]


def test_every_measurement_says_where_it_comes_from() -> None:
    for row in measurements():
        assert row.source
        assert row.shape
        assert min(row.infer, row.train) > 0
    assert measured("rope", "sm90") is not None
    assert measured("rope", "sm9") is None
    assert WORTH > 1
