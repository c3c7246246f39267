"""Backward compiled with the exchange trains the same model as without, on every rank, and is really compiled."""

import os
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import ranks

from rung.launch import Team
from rung.plan import Exchange, Plan
from rung.rungs import BY_NAME, LADDER, plan_of

PATH = {"PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))}


def test_weights_and_buffers_are_those_of_the_usual_exchange_on_batches_of_two_sizes(tmp_path: Path) -> None:
    """A second size: a loader's last batch. Buffers: rank 0 sends its own to the others before each forward."""
    with Team("backward_ranks:Rank", tmp_path / "log", ranks(2), lambda _, answers: answers, PATH) as team:
        usual, mine = (team.call("steps", 500, compiled=compiled) for compiled in (False, True))
    assert [one["compiled"] for one in usual] == [False, False]
    assert [one["compiled"] for one in mine] == [True, True]
    for theirs, got in zip(usual, mine, strict=True):
        for name, values in theirs["left"].items():
            assert got["left"][name] == pytest.approx(values, rel=1e-4, abs=1e-6), name
    means: list[Any] = [one["left"]["1.running_mean"] for one in mine]
    assert means[0] != means[1]  # of the last batch each has its own


def test_each_size_has_a_graph_of_its_own() -> None:
    assert Plan(compile=True).shares_graphs
    assert not Plan(compile=True, exchange=Exchange(compiled_backward=True)).shares_graphs


def test_what_it_makes_void_is_not_in_effect_beside_it() -> None:
    """Neither before it nor after it."""
    plan = plan_of(["compile", "ddp-compiled-backward"])
    void = {"ddp-one-graph", "ddp-gradient-views", "ddp-static-graph", "ddp-symmetric-memory", "bf16-gradients"}
    assert {*BY_NAME["ddp-compiled-backward"].replaces} == void
    refuses = {
        rung.name
        for rung in LADDER
        if any("ddp-compiled-backward" in (no.why if no else "") for no in _asked(rung, plan))
    }
    assert void <= refuses
    assert {rung.name for rung in LADDER if rung.change(Plan()).inductor_passes} <= refuses


def _asked(rung: Any, plan: Plan) -> list[Any]:
    """What each requirement says that looks at the exchange alone."""
    from known_facts import facts_of

    from rung.rungs import Context

    facts = {"gpu": True, "mode": "train", "dtype": "torch.float32", "optimizer": "SGD", "arch": "sm90"}
    context = Context(plan, "bf16", facts_of(facts, ranks=2, parallel="ddp"), {"gemm": 1.0}, {})
    return [required.refuses(context) for required in rung.requires]
