"""Every rung, done wrong in the ways in which it could be, is refused by name; done right, with the same stand-ins, it passes."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import attempt_records
import pytest
import small
import torch
from mistakes import MISTAKES, Mistake, eight_bits
from torch import nn

from rung.engine import step as stepping
from rung.engine.step import Step
from rung.hardware import pick
from rung.ladder.climb import attempt
from rung.ladder.climb.state import Profile
from rung.plan import Numerics, Plan
from rung.records import measured
from rung.records.climb import OverShapes
from rung.records.record import take
from rung.rewrites import RewriteBackend
from rung.rungs import BY_NAME, LADDER, Counters
from rung.rungs.attention import SHORT_ATTENTION, TF32_ATTENTION
from rung.rungs.convolutions import PATCH_MATMUL
from rung.rungs.environment import settings
from rung.rungs.epilogues import EPILOGUES
from rung.rungs.graph_rewrites import GRAPH_REWRITES
from rung.rungs.kernels import KERNELS
from rung.rungs.ranks import ASYNC_TENSOR_PARALLEL, CORES, EXCHANGE
from rung.verify import verify as verifying
from rung.workload import Workload, seeded_model

CPU = pick("cpu")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Any:
    """No Inductor: what is captured runs as it is, or as a slip says. A faint and a sharp set of weights."""
    torch._dynamo.reset()
    monkeypatch.setattr(RewriteBackend, "compiled", lambda backend, gm, inputs: gm.forward)
    monkeypatch.setattr(stepping, "GraphedStep", small.Recorded)
    monkeypatch.setattr(verifying, "SEEDS", (11, 12))
    eight_bits(lambda layer, right: right)(monkeypatch)
    yield
    torch._dynamo.reset()


def planned(name: str) -> Plan:
    rung = BY_NAME[name]
    below = rung.level == 2 and name not in ("compile-regions", "capture", "fused-optimizer")
    return rung.change(BY_NAME["compile"].change(Plan()) if below else Plan())


def verified(name: str, workload: Workload, precision: Numerics, change: Any = None) -> measured.Verification:
    def build(model: nn.Module, plan: Plan) -> Step:
        made = Step(workload, model, plan, CPU)
        if change:
            change(made)
        return made

    return verifying.verify(workload, planned(name), CPU, build, [precision]).record()


@pytest.fixture
def runs(mistake: Mistake, request: pytest.FixtureRequest) -> None:
    if mistake.rung == "fp8-linears":
        request.getfixturevalue("fp8_on_a_cpu")


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: f"{mistake.rung}: {mistake.what}")
def test_a_mistake_is_refused_by_name(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    change = mistake.slip(monkeypatch)
    if "shape" not in mistake.says and "form" not in mistake.says:  # refusing needs no second shape
        monkeypatch.setattr(verifying, "shapes", lambda workload: [workload.inputs])
    found = verified(mistake.rung, mistake.workload, mistake.precision, change)
    assert not found.passed
    assert re.search(mistake.says, " ".join(found.failures)), found.failures[:3]


def stand_in(m: Mistake) -> Any:
    """With Inductor left out, most of its settings are one and the same."""
    plan = planned(m.rung)
    return replace(plan, inductor=()), plan.keeps_weights, plan.replays, m.workload.name, m.workload.mode, m.precision


RIGHT = {stand_in(m): m for m in MISTAKES}


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("mistake", RIGHT.values(), ids=lambda m: f"{m.rung}, {m.workload.name}, {m.workload.mode}")
def test_the_same_rung_done_right_passes(mistake: Mistake) -> None:
    found = verified(mistake.rung, mistake.workload, mistake.precision)
    assert found.passed, found.failures


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("mistake", RIGHT.values(), ids=lambda m: f"{m.rung}, {m.workload.name}, {m.workload.mode}")
def test_undone_the_model_is_as_a_fresh_one_with_its_weights(mistake: Mistake) -> None:
    workload, fresh = mistake.workload, seeded_model(mistake.workload)
    step = Step(workload, seeded_model(workload), planned(mistake.rung), CPU)
    for seed in (1, 2, 3):
        step(workload.inputs(seed))
    step._forward.undo()
    fresh.load_state_dict(step.model.state_dict())
    for mine, theirs in zip(fresh.modules(), step.model.modules(), strict=True):
        assert (type(mine), vars(mine).keys()) == (type(theirs), vars(theirs).keys())
    assert [p.stride() for p in fresh.parameters()] == [p.stride() for p in step.model.parameters()]
    found = []
    for model in (fresh, step.model):
        torch.manual_seed(0)
        with torch.no_grad():
            found.append(workload.forward(model, workload.inputs(4)))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


# Their mistakes are in tests/rewrites/test_rewrites_gone_wrong.py.
REWRITES = {
    rung.name for rung in (*GRAPH_REWRITES, *KERNELS, *EPILOGUES, PATCH_MATMUL, SHORT_ATTENTION, TF32_ATTENTION)
}

# Their mistakes need ranks: tests/verify/test_over_ranks_verified.py.
RANKS = {rung.name for rung in (*EXCHANGE, ASYNC_TENSOR_PARALLEL, CORES)} | {
    row.name for row in settings() if row.ranks
}

# What the worker of a candidate, or its trace, says where the rung is not in effect; and what is said of it then.
OFF: dict[str, tuple[dict[str, Any], str]] = {
    "tf32": ({"precision": "highest"}, "float32 matmul precision is highest"),
    "bf16": ({"autocast": None}, "autocast is None"),
    "compile": ({"compiled_graphs": 0}, "0 graphs compiled"),
    "compile-regions": ({"regions": 0, "compiled_graphs": 0}, "0 blocks compiled"),
    "fused-optimizer": ({"optimizer_fused": False}, "fused is False"),
    "capture": ({"captured": 0}, "0 shapes captured"),
    "model-sdpa": ({"switch attention": "eager"}, "the model's attention is eager"),
    "static-cache": ({"switch cache": "dynamic"}, "the cache is dynamic"),
    "channels-last": ({"channels_last": 0}, "0 weights in channels-last layout"),
    "cudnn-benchmark": ({"cudnn_benchmark": False}, "torch.backends.cudnn.benchmark is False"),
    "fp8-linears": ({"eight_bits": 0}, "0 linear layers in FP8"),
    "int8-weights": ({"eight_bits": 0}, "0 linear layers with int8 weights"),
    "cudnn-attention": ({}, "0 -> 0 attention kernels of cuDNN"),
    "float32-gradients": ({"pass float32-gradients": False}, "the rewrite of gradients is False"),
    "foreach-weight-casts": ({"pass foreach-weight-casts": False}, "the rewrite of casts is False"),
    "fused-dgrad": ({"pass fused-dgrad": False}, "the rewrite of joins is False"),
    "depthwise-dgrad": ({"pass depthwise-dgrad": False}, "the rewrite of convolutions is False"),
    "k-major-wgrad": ({"pass k-major-wgrad": False}, "the order of factors is False"),
    "recompute": ({"pass recompute": False}, "the choice of what is kept is False"),
    "ddp-buckets-8": ({"ddp bucket_cap_mb": 25.0}, "bucket_cap_mb is 25.0"),
    "ddp-buckets-100": ({"ddp bucket_cap_mb": 25.0}, "bucket_cap_mb is 25.0"),
    "ddp-gradient-views": ({"ddp gradient_as_bucket_view": False}, "gradient_as_bucket_view is False"),
    "ddp-static-graph": ({"ddp static_graph": False}, "static_graph is False"),
    "ddp-one-graph": ({"one graph under DDP": False}, "one graph under DDP is False"),
    "ddp-compiled-backward": ({"compiled backward": False}, "one compiled graph of backward is False"),
    "ddp-symmetric-memory": ({"buckets in symmetric memory": 0}, "0 buckets summed in symmetric memory"),
    "fsdp-bf16-weights": ({"weights": ""}, "the format in which weights are gathered is "),
    "fsdp-prefetch": ({"ahead": 0}, "0 blocks gathered ahead"),
    "bf16-gradients": ({"gradients": ""}, "the format in which gradients are exchanged is "),
    "fsdp-keep-gathered": ({}, "0 -> 0 gatherings of weights"),
    "rank-cores": ({"cores": "all"}, "the set of cores is all"),
    "dynamic-shapes": ({}, "3 -> 3 graphs compiled for 3 shapes"),
    **{name: ({"matches": {name: 0}}, "0 rewritten") for name in (*REWRITES, "aiter-gemm")},
    **{
        rung.name: ({"compiled_graphs": 1, f"inductor {name}": not value}, f"{name} is {not value}")
        for rung in LADDER
        for name, value in rung.change(Plan()).inductor
    },
    **{
        rung.name: ({f"variable {name}": None}, f"{name} is None")
        for rung in LADDER
        if rung.level == 1
        for name, value in reversed(rung.change(Plan()).env)
        if "{files}" not in value
    },
}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_rung_that_is_not_in_effect_is_not_kept_however_fast(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, says = OFF[name]
    counted = OverShapes(graphs=3, shapes=3, seconds=1.0)
    monkeypatch.setattr(attempt, "over_shapes", lambda *_: {"best": counted, "candidate": counted})
    comparison = SimpleNamespace(answer="faster", cut=False, speedup=SimpleNamespace(value=2.0, low=1.9))
    record = attempt_records.attempt(rung=name, stack=[name], prediction={"low": 1.0, "high": 3.0, "shares": {}})
    take(record, attempt_records.restarts(applied=worker))
    state = SimpleNamespace(
        counters=Counters(1, 1, 1),
        say=lambda event: None,
        request=SimpleNamespace(slower_at_most=0.01),
        kept=["another"],
    )
    attempt._judge(
        state, BY_NAME[name], record, SimpleNamespace(comparison=comparison), name, Profile(None, Counters(1, 1, 1))
    )  # type: ignore[arg-type]
    assert record.verdict == "no-op"
    assert BY_NAME[name].effect in record.why
    assert says in record.why


def test_no_rung_is_without_a_mistake() -> None:
    assert {m.rung for m in MISTAKES} | REWRITES | RANKS == set(BY_NAME) == set(OFF)
