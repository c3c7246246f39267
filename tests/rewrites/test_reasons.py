"""What a rung says about what the rewrites found, left alone or could not look at."""

import pytest
import torch
from known_facts import facts_of

from rung.plan import Plan
from rung.rewrites import PASSES, RewriteBackend
from rung.rungs import BY_NAME, Context


def why(rung: str, skipped: list[str]) -> str:
    no = BY_NAME[rung].applies(Context(Plan(), "exact", facts_of({"matches": {}, "skipped": skipped}), {}, {}))
    assert no is not None
    assert no.verdict == "inapplicable"
    return no.why


def test_attention_that_was_found_and_left_alone_is_said_by_its_rung_alone() -> None:
    torch._dynamo.reset()
    backend = RewriteBackend(PASSES, "eager")
    q = torch.randn(2, 3, 6, 8)
    torch.compile(lambda q: (q @ q.mT).softmax(-2) @ q, backend=backend, dynamic=False)(q)
    assert [reason.partition(":")[0] for reason in backend.skipped] == ["sdpa"]
    said = why("sdpa", backend.skipped)
    assert "none that can be rewritten: softmax at" in said
    assert "last dimension" in said
    assert why("fused-qkv", backend.skipped) == "no sibling projections found in the captured graph."


def test_siblings_left_alone_are_said_with_how_many_more() -> None:
    said = why("fused-qkv", ["fused-qkv: linear at a: written in place", "fused-qkv: linear at b: written in place"])
    assert said.endswith("linear at a: written in place (and 1 more)")


@pytest.mark.parametrize("rung", ["sdpa", "fused-qkv", "fused-gate-up"])
def test_a_capture_that_failed_is_said_by_all(rung: str) -> None:
    said = why(rung, ["capture failed: ValueError: odd"])
    assert "could not be captured" in said
    assert "ValueError: odd" in said
    assert " found in " not in said


def test_masks_are_looked_for_again_once_the_models_own_switch_made_sdpa_calls() -> None:
    facts = {"matches": {"sdpa": 2}, "skipped": []}
    assert BY_NAME["sdpa-no-mask"].applies(Context(Plan(), "exact", facts_of(facts), {}, {})) is not None
    switched = Plan(switches=(("attention", "sdpa"),))
    assert BY_NAME["sdpa-no-mask"].applies(Context(switched, "exact", facts_of(facts), {}, {})) is None


def test_fewer_logits_are_predicted_from_the_flop_that_they_spare() -> None:
    facts = {"captured": {"layer_flop": 100}, "rewritten": {"layer_flop": 80}}
    factors = BY_NAME["narrow-logits"].remaining(Context(Plan(), "exact", facts_of(facts), {}, {}))
    assert factors["gemm"] == pytest.approx((0.72, 0.88))


def test_flexattention_is_for_a_gpu_and_for_compiled_code() -> None:
    flex, found = BY_NAME["flex-attention"], {"matches": {"flex-attention": 2}, "skipped": [], "gpu": True}
    assert flex.applies(Context(Plan(compile=True), "exact", facts_of(found), {}, {})) is None
    for plan, facts, says in ((Plan(), found, "torch.compile"), (Plan(compile=True), {**found, "gpu": False}, "GPUs")):
        no = flex.applies(Context(plan, "exact", facts_of(facts), {}, {}))
        assert no is not None
        assert says in no.why


def test_torchs_fast_path_is_said_where_no_attention_was_found() -> None:
    torch._dynamo.reset()
    backend = RewriteBackend(PASSES, "eager")
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with torch.no_grad():
        torch.compile(layer, backend=backend, dynamic=False)(torch.randn(2, 6, 8))
    assert "torch's fast path in evaluation is one operator" in why("sdpa", backend.skipped)
    assert why("fused-qkv", backend.skipped) == "no sibling projections found in the captured graph."
