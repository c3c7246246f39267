"""Thresholds in tokens are data, and a prediction follows them."""

import pytest
import torch
from known_facts import facts_of
from torch import nn

from rung.hardware import pick
from rung.ladder.survey import survey
from rung.plan import Plan
from rung.rungs import BY_NAME, Context
from rung.rungs.tokens import ranges
from rung.workload import Workload

PARTS = {"gemm": 90.0, "launch_gap": 10.0}


def context(mode: str, tokens: int | None) -> Context:
    return Context(Plan(), "bf16", facts_of({"gpu": True, "mode": mode, "tokens": tokens}), PARTS, {})


def test_every_row_is_of_a_known_rung_has_a_source_and_a_row_for_all_the_rest() -> None:
    for rung in {name for row in ranges() for name in row.rungs}:
        mine = [row for row in ranges() if rung in row.rungs]
        assert rung in BY_NAME
        assert all(row.source and row.seen for row in mine)
        assert (mine[-1].mode, mine[-1].tokens_at_most) == ("", None)


@pytest.mark.parametrize("rung", ["fused-qkv", "fused-gate-up"])
def test_joined_projections_promise_more_with_few_tokens_in_inference_only(rung: str) -> None:
    few, edge, many = (BY_NAME[rung].predict(context("infer", n)) for n in (1, 256, 257))
    assert few == edge
    assert edge.low > 1.02 > many.middle
    assert BY_NAME[rung].predict(context("train", 1)) == BY_NAME[rung].predict(context("infer", None)) == many


def test_what_was_seen_lies_in_the_range_that_is_predicted() -> None:
    for row in ranges():
        for seen in row.seen:
            told = BY_NAME[row.rungs[0]].predict(context(row.mode or "infer", seen.tokens))
            assert told.low <= 1 / seen.left + 0.01, seen
            assert 1 / seen.left <= told.high + 0.01, seen


def test_the_survey_tells_how_many_tokens_a_step_has() -> None:
    workload = Workload("two", lambda: nn.Linear(8, 8), lambda seed: torch.full((2, 8), float(seed)), tokens=16)
    assert survey(workload, pick("cpu")).facts.tokens == 16
