"""The sentence of the roofline: how close the operators are together, and which one loses most."""

import polars as pl

from rung.analysis.roofline import SCHEMA
from rung.analysis.work import GRAPH
from rung.report.headlines import HEADLINES, Per

ONE = Per("", gpus=1, ranks=1, time_ns=1.0)


def table(*rows):
    return pl.DataFrame([dict.fromkeys(SCHEMA) | row for row in rows], schema=SCHEMA)


def test_the_operator_furthest_above_its_floor_is_named_with_what_it_loses():
    near = {"op": "aten::mm", "inputs": "8x8 bf16", "time_ns": 3_000_000, "floor_ns": 2_500_000}
    far = {"op": "aten::_softmax", "inputs": "64x64 bf16", "time_ns": 2_000_000, "floor_ns": 500_000}
    replayed = {"op": "(replayed by a graph)", "time_ns": 15_000_000, "reason": GRAPH}
    said = HEADLINES["roofline"](table(near, far, replayed), ONE)
    assert said == (
        "models cover 25% of GPU time (75% replayed by graphs), what they cover is at 60% of its roof; "
        "most above its floor: aten::_softmax 64x64 bf16, by 1.50 ms"
    )


def test_inferred_work_is_said_so():
    near = {
        "op": "vllm::moe_forward",
        "inputs": "8x8 bf16",
        "time_ns": 3_000_000,
        "floor_ns": 2_500_000,
        "inferred": True,
    }
    far = {"op": "aten::_softmax", "inputs": "64x64 bf16", "time_ns": 2_000_000, "floor_ns": 500_000, "inferred": False}
    said = HEADLINES["roofline"](table(near, far), ONE)
    assert said.startswith("models cover 100% of GPU time (60% inferred), what they cover")


def test_what_is_lost_is_of_a_step_and_gpu():
    far = {"op": "aten::_softmax", "inputs": "64x64 bf16", "time_ns": 2_000_000, "floor_ns": 500_000}
    said = HEADLINES["roofline"](table(far), Per(" a step", gpus=2, ranks=2, time_ns=1.0))
    assert said.endswith("64x64 bf16, by 750 µs a step and GPU")


def test_without_a_roof_nothing_is_said():
    assert HEADLINES["roofline"](table({"op": "aten::mm", "time_ns": 5}), ONE) == ""
    assert HEADLINES["roofline"](table(), ONE) == ""
