"""Which rungs apply to one process, to ranks that have all weights, and to ranks that share them out."""

import pytest
from known_facts import facts_of

from rung.plan import Plan
from rung.rungs import BY_NAME, LADDER, Context, plan_of
from rung.rungs.ranks import EXCHANGE

PARTS = {"gemm": 60.0, "communication": 40.0}


def no(name: str, ranks: int = 1, parallel: str = "ddp", rungs: tuple[str, ...] = (), **facts: object) -> str:
    """Why a rung does not apply; empty where it does."""
    known = {"gpu": True, "mode": "train", "dtype": "torch.float32", "optimizer": "SGD", "arch": "sm90", **facts}
    of = facts_of(known, ranks=ranks, parallel=parallel)
    found = BY_NAME[name].applies(Context(plan_of(rungs), "bf16", of, PARTS, {}))
    return found.why if found else ""


@pytest.mark.parametrize("rung", EXCHANGE, ids=lambda rung: rung.name)
def test_what_ranks_exchange_concerns_no_single_process(rung: object) -> None:
    name = rung.name  # type: ignore[attr-defined]
    assert "it is for several ranks" in no(name)
    plan = plan_of([name])
    assert plan.of_one == Plan() != plan
    with_ddp, with_fsdp = (no(name, 2, parallel, ("bf16", "compile")) for parallel in ("ddp", "fsdp2"))
    assert not (with_ddp and with_fsdp)
    assert bool(with_ddp or with_fsdp) is (name != "bf16-gradients")  # each other is for one of them


@pytest.mark.parametrize("name", ["capture", "reduce-overhead", "tunableop"])
def test_what_is_not_safe_over_ranks_says_so(name: str) -> None:
    facts = {"vendor": "amd" if name == "tunableop" else "nvidia"}
    assert "it is for one process" in no(name, 2, rungs=("compile",), inductor={"triton.cudagraphs": False}, **facts)
    assert "it is for one process" not in no(
        name, 1, rungs=("compile",), inductor={"triton.cudagraphs": False}, **facts
    )


def test_rewrites_of_the_graph_need_whole_weights() -> None:
    passes = [rung.name for rung in LADDER if (plan := rung.change(Plan())).passes or plan.inductor_passes]
    assert len(passes) > 20
    for name in passes:
        assert "each rank holds a part of the weights" in no(name, 2, "fsdp2")


def test_ranks_of_a_tensor_parallel_model_have_parts_of_weights_and_average_nothing() -> None:
    for rung in EXCHANGE:
        assert no(rung.name, 2, "tensor", ("bf16", "compile"))
    assert "each rank holds a part of the weights" in no("fused-qkv", 2, "tensor")
    assert "fused SGD" in no("fused-optimizer", 2, "tensor")
    assert not no("compile", 2, "tensor")


def test_products_that_overlap_with_their_exchange_need_a_compiled_tensor_parallel_model_on_gpus() -> None:
    name = "async-tensor-parallel"
    assert not no(name, 2, "tensor", ("compile",))
    assert "it is for GPUs" in no(name, 2, "tensor", ("compile",), gpu=False)
    assert "whole model compiled" in no(name, 2, "tensor")
    assert "tensor parallelism" in no(name, 2, "ddp", ("compile",))
    assert "at most 8 ranks" in no(name, 16, "tensor", ("compile",))
    plan = plan_of(["compile", name])
    assert dict(plan.inductor) == {"_micro_pipeline_tp": True}
    assert plan.exchange.is_setting


def test_gradients_in_bfloat16_go_with_autocast() -> None:
    assert "goes with autocast" in no("bf16-gradients", 2)
    assert not no("bf16-gradients", 2, rungs=("bf16",))
    assert plan_of(["bf16", "bf16-gradients"]).at("exact") == Plan()
    assert plan_of(["bf16-gradients"]).numerics == "bf16"


def test_a_fused_optimizer_steps_shards_where_torch_has_it() -> None:
    assert "fused SGD" in no("fused-optimizer", 2, "fsdp2")
    assert not no("fused-optimizer", 2, "fsdp2", optimizer="AdamW")
    assert not no("fused-optimizer", 2)


def test_buckets_of_one_size_take_the_place_of_another() -> None:
    plan = plan_of(["ddp-buckets-8", "ddp-gradient-views"])
    assert dict(plan.exchange.ddp) == {"bucket_cap_mb": 8, "gradient_as_bucket_view": True}
    assert BY_NAME["ddp-buckets-100"].replaces == ("ddp-buckets-8",)
