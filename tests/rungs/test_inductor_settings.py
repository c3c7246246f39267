"""Inductor's settings as rungs: names that the installed torch knows, and when they apply."""

import re
from typing import Any

import pytest
import torch
from known_facts import facts_of
from msgspec import structs

from rung.engine.dynamo import inductor_settings
from rung.plan import Plan
from rung.rungs import BY_NAME, Context, Evidence, plan_of, with_rung
from rung.rungs.inductor import names, settings
from rung.rungs.rung import Counters

COMPILED = Plan(compile=True)
PARTS = {"gemm": 50.0, "pointwise": 30.0, "launch_gap": 15.0, "convolution": 5.0}


def context(plan: Plan = COMPILED, parts: dict[str, float] = PARTS, mode: str = "infer", **settings: Any) -> Context:
    here = {row: value for s in SETTINGS for row, value in s.default.items()} | settings
    return Context(plan, "bf16", facts_of({"gpu": True, "arch": "sm90", "mode": mode, "inductor": here}), parts, {})


SETTINGS = settings()


def test_the_installed_torch_knows_every_name_and_ships_the_stated_default() -> None:
    here = inductor_settings(names())
    for row in SETTINGS:
        since = re.match(r"torch (\d+)\.(\d+) and later", row.versions)
        assert since, f"{row.name}: `versions` begins with the first version of torch that has it"
        for name, default in row.default.items():
            if name not in here:
                assert torch.__version__ < tuple(map(int, since.groups())), f"{row.name}: this torch has no {name}"
                continue
            assert here[name] == default, f"{row.name}: {name} is {here[name]!r} here, {default!r} in the table"
    assert inductor_settings(("no_such_setting", "triton.no_such")) == {}


@pytest.mark.parametrize("row", SETTINGS, ids=lambda row: row.name)
def test_a_setting_is_a_no_op_where_it_holds_and_needs_a_torch_that_has_it(row: Any) -> None:
    rung = BY_NAME[row.name]
    mode = row.mode or "train"
    no = rung.applies(context(mode=mode, **row.options))
    assert no is not None
    assert no.verdict == "no-op"
    bare = context(mode=mode)
    unknown = rung.applies(Context(bare.plan, "bf16", structs.replace(bare.facts, inductor={}), PARTS, {}))
    assert unknown is not None
    assert unknown.verdict == "inapplicable"
    assert "has no setting" in unknown.why


def test_settings_need_torch_compile_and_something_to_work_on() -> None:
    rung = BY_NAME["max-autotune"]
    assert rung.applies(context()) is None
    assert "not in effect" in str(rung.applies(context(Plan())))
    assert "less than 2%" in str(rung.applies(context(parts={"gemm": 1.0, "pointwise": 99.0})))
    assert "max_autotune, which is not in effect" in str(BY_NAME["epilogue-fusion-first"].applies(context()))
    tuned = plan_of(["compile", "max-autotune"])
    assert BY_NAME["epilogue-fusion-first"].applies(context(tuned)) is None


@pytest.mark.parametrize(("unaligned", "left"), [(100, 0.7), (50, 0.85), (1, 0.997)])
def test_padding_is_predicted_by_the_part_of_the_products_that_it_changes(unaligned: int, left: float) -> None:
    facts = structs.replace(context().facts, captured={"gemm_flop": 100, "unaligned_flop": unaligned})
    padded = Context(COMPILED, "bf16", facts, PARTS, {})
    assert BY_NAME["shape-padding"].applies(padded) is None
    assert BY_NAME["shape-padding"].remaining(padded)["gemm"][0] == pytest.approx(left)
    none = structs.replace(facts, captured={"gemm_flop": 100, "unaligned_flop": 0})
    assert "no matrix product whose" in str(
        BY_NAME["shape-padding"].applies(Context(COMPILED, "bf16", none, PARTS, {}))
    )


def test_a_setting_is_for_the_architectures_that_it_names() -> None:
    rung, known = BY_NAME["pdl"], context()
    for arch, whether in {"sm90": True, "sm100": True, "sm80": False, "gfx942": False, "gfx90a": False}.items():
        no = rung.applies(Context(known.plan, "bf16", structs.replace(known.facts, arch=arch), PARTS, {}))
        assert (no is None) == whether
        assert no is None or no.why == f"it is for sm90 and later: others have nothing of the kind (this is {arch})."


def test_settings_add_up_and_rungs_that_exclude_each_other_take_each_others_place() -> None:
    plan = plan_of(["compile", "max-autotune", "reduce-overhead"])
    assert dict(plan.inductor) == {"max_autotune": True, "triton.cudagraphs": True}
    assert plan.replays
    assert with_rung(["compile", "reduce-overhead"], BY_NAME["capture"]) == ["compile", "capture"]
    assert with_rung(["compile", "capture"], BY_NAME["reduce-overhead"]) == ["compile", "reduce-overhead"]
    assert with_rung(["tf32", "compile-regions"], BY_NAME["compile"]) == ["tf32", "compile"]


def test_a_replay_that_the_trace_does_not_show_is_not_believed() -> None:
    worker = {"compiled_graphs": 1, "inductor triton.cudagraphs": True}
    launched = Counters(1, 5, 2, {"cudaGraphLaunch": 1.0})
    proof = BY_NAME["reduce-overhead"].proof
    assert proof(Evidence(None, launched, worker)).shown is True
    assert proof(Evidence(None, Counters(90, 5, 2, {"cudaLaunchKernel": 90.0}), worker)).shown is False


def test_one_kind_of_replay_may_take_the_place_of_another() -> None:
    """Whole steps are one launch, compiled graphs one each: neither has to launch more graphs than the other."""
    worker = {"compiled_graphs": 1, "captured": 1, "inductor triton.cudagraphs": True}
    one, two = (Counters(n, 5, 2, {"cudaGraphLaunch": float(n)}) for n in (1, 2))
    for name in ("capture", "reduce-overhead"):
        for before, after in ((one, one), (two, one), (one, two)):
            assert BY_NAME[name].proof(Evidence(before, after, worker)).shown is True
        assert BY_NAME[name].proof(Evidence(one, Counters(9, 5, 2), worker)).shown is False
