"""Predictions beside what an H100 gave: the parts of a step as they were profiled there, in microseconds, and the measured speedup."""

from typing import Any

import pytest
from attempt_records import attempt, compared
from known_facts import facts_of

from rung.hardware.peaks import named
from rung.ladder.climb.answer import prediction_summary
from rung.plan import Plan
from rung.records.climb import Attempt
from rung.rungs import BY_NAME, LADDER, MIDDLE, Context, speedup_at
from rung.rungs.rung import WHERE_COMPILED
from rung.timing.work import rates

CHIP = named("H100")

# tiny-transformer, small, training: a climb whose order was capture, bf16, compile.
SMALL = [
    ("capture", Plan(), {"gemm": 9414, "attention": 1484, "pointwise": 2915, "optimizer": 961, "copy": 459, "launch_gap": 20994, "idle": 178}, 2.03),
    ("bf16", Plan(capture=True), {"gemm": 10319, "pointwise": 3877, "optimizer": 879, "copy": 453}, 2.15),
    ("compile", Plan(capture=True, bf16=True), {"gemm": 1501, "pointwise": 3525, "optimizer": 878, "copy": 1362}, 1.82),
    # A small GPT in training, its attention by hand; a ResNet-50 in inference.
    ("bf16", Plan(), {"gemm": 125959, "attention": 67468, "pointwise": 13508, "optimizer": 3701, "copy": 2242, "launch_gap": 428, "idle": 419}, 2.59),
    ("compile", Plan(), {"gemm": 41, "convolution": 4837, "pointwise": 5960, "launch_gap": 281, "idle": 32}, 1.97),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "plan", "parts", "measured"), SMALL, ids=lambda item: item if isinstance(item, str) else ""
)
def test_what_was_measured_lies_inside_the_prediction(
    name: str, plan: Plan, parts: dict[str, float], measured: float
) -> None:
    facts = {"gpu": True, "mode": "train", "arch": "sm90", "dtype": "torch.float32", "amp": None}
    told = BY_NAME[name].predict(Context(plan, "bf16", facts_of(facts), parts, rates(CHIP)))
    assert told.judge(measured) == "inside"
    assert abs(100 / told.expected - 100 / measured) < 11  # points of the step


@pytest.mark.parametrize(
    ("name", "plan", "place"),
    [
        ("sdpa", Plan(), MIDDLE),
        ("sdpa", Plan(compile=True), WHERE_COMPILED),
        ("bf16", Plan(compile=True), MIDDLE),
        ("compile", Plan(bf16=True), MIDDLE),
    ],
)
def test_less_is_expected_of_a_rung_once_the_step_compiles_but_of_a_lower_precision(
    name: str, plan: Plan, place: float
) -> None:
    facts = {"gpu": True, "mode": "train", "arch": "sm90", "dtype": "torch.float32", "amp": None}
    parts = {"gemm": 5e6, "attention": 3e6, "pointwise": 2e6}
    told = BY_NAME[name].predict(Context(plan, "bf16", facts_of(facts), parts, rates(CHIP)))
    assert told.low < told.high
    assert told.expected == pytest.approx(speedup_at(told.low, told.high, place))


def test_attention_that_the_profile_does_not_tell_apart_is_predicted_by_its_size_in_the_graph() -> None:
    parts = {"gemm": 6e6, "pointwise": 4e6}
    facts: dict[str, Any] = {"gpu": True, "mode": "infer", "dtype": "torch.float16", "amp": None, "bandwidth": 1e12}
    sized = {"flops": 8e9, "written_out": {"flop": 6e9, "scores": 500_000_000}}

    def told(mode: str = "infer", **more: Any) -> Any:
        return BY_NAME["sdpa"].predict(Context(Plan(), "bf16", facts_of(facts | more | {"mode": mode}), parts, {}))

    # Three quarters of the operations; the scores, written and read in 16 bits, take 2 of the 4 ms.
    found = told(**sized)
    assert found.high == pytest.approx(10 / (6 * (1 - 0.75 * 0.85) + 4 * 0.5))
    assert found.low == pytest.approx(10 / (6 * (1 - 0.75 * 0.2) + 4 * (1 - 0.5 * 0.2)))
    assert told(bandwidth=None, **sized).high == pytest.approx(10 / (6 * (1 - 0.75 * 0.85) + 4 * 0.85))
    assert told().low == 1.0  # nothing is known of it
    # Backward is twice forward: of 24 GFLOP as many are attention's.
    training = told("train", **sized | {"flops": 24e9})
    assert training.high == pytest.approx(10 / (6 * (1 - 0.75 * 0.85)))
    # A part of its own in the profile is believed.
    parts["attention"] = 10e6
    assert told(**sized).high == pytest.approx(20 / (6 + 4 * 0.85 + 10 * 0.15))


def test_predictions_are_held_against_what_was_measured() -> None:
    def tried(name: str, low: float, high: float, measured: float, **more: Any) -> Attempt:
        told = {"low": low, "high": high, "shares": {}}
        return attempt(rung=name, prediction=told, comparison=compared("faster", measured), **more)

    noisy = compared("undecided", 0.85) | {"speedup": {"value": 0.85, "low": 0.29, "high": 2.48}}
    found = prediction_summary(
        [
            tried("a", 1.0, 1.0, 1.25),  # the step takes 80 % and not 100: 20 points
            tried("a", 2.0, 2.0, 1.6),  # 62.5 % and not 50: 12.5
            tried("b", 1.0, 2.0, 4 / 3, forecast="inside"),  # 75 %, the middle of 100 and 50: 0
            tried("c", 1.0, 9.0, 1.0, cut=True),
            attempt(rung="max-autotune", prediction={"low": 1.0, "high": 1.1, "shares": {}}, comparison=noisy),
            attempt(rung="d", prediction=None, comparison=None),
        ]
    )
    assert found.median_error == pytest.approx(12.5)
    assert (found.decided, found.inside) == (3, 1)
    assert found.by_rung == {"a": pytest.approx(16.25), "b": pytest.approx(0)}


def test_names_on_the_ladder_are_unique_and_every_rung_says_how_it_shows() -> None:
    assert len({r.name for r in LADDER}) == len(LADDER)
    for one in LADDER:
        assert one.effect
        assert callable(one.proof)
        assert one.contract in ("exact", "reassociated", "tf32", "bf16", "fp8")
        assert one.change(Plan()) != Plan() or one.replaces
        assert {*one.replaces} <= {r.name for r in LADDER}


@pytest.mark.parametrize(("chip", "offered"), [("MI350X", True), ("MI355X", True), ("MI300X", True), ("MI210", False)])
def test_tf32_is_tried_where_it_is_faster_than_float32_also_by_three_bfloat16_products(
    chip: str, offered: bool
) -> None:
    facts = {
        "gpu": True, "mode": "train", "vendor": "amd", "arch": named(chip).arch, "dtype": "torch.float32", "amp": None,
        "matmul_precision": "highest",
    }  # fmt: skip
    bare = Context(Plan(), "tf32", facts_of(facts), {"gemm": 1e6}, rates(named(chip)))
    no = BY_NAME["tf32"].applies(bare)
    assert (no is None) is offered, no
