"""Predictions beside what an H100 gave: the parts of a step as they were profiled there, in microseconds, and the measured speedup."""

import pytest

from rung.hardware.peaks import named
from rung.ladder.plan import Plan
from rung.ladder.rungs import BY_NAME, Context
from rung.ladder.timing.work import rates

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
    told = BY_NAME[name].predict(Context(plan, "bf16", facts, parts, rates(CHIP)))
    assert told.judge(measured) == "inside"
    assert abs(100 / told.value - 100 / measured) < 11  # points of the step
