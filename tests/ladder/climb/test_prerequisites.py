"""What only waits for another rung is not called inapplicable, and says for which."""

from pathlib import Path
from typing import Any

import pytest
from known_facts import facts_of
from made_up import state, tried

from rung.ladder.climb.answer import Answer
from rung.ladder.climb.attempt import new_record
from rung.ladder.climb.prerequisites import prerequisites
from rung.plan import Plan
from rung.records.climb import Figure
from rung.records.record import record_of
from rung.records.workload import Facts
from rung.rungs import BY_NAME, Context

TRAINED: dict[str, Any] = {
    "gpu": False, "mode": "train", "arch": "x86_64", "dtype": "torch.float32", "amp": None, "matmul_precision": "highest",
    "matches": {}, "skipped": [], "captured": {"sum": 4}, "optimizer_is_fused": True, "rates": {},
}  # fmt: skip
DECODED = TRAINED | {"gpu": True, "mode": "infer", "arch": "sm90", "linears": 8, "tokens": 4,
                     "inductor": {"max_autotune": False, "coordinate_descent_tuning": False}}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "facts", "needs"),
    [
        ("bf16-stream", TRAINED, ("bf16",)),
        ("recompute", TRAINED | {"gpu": True}, ("compile",)),
        ("foreach-weight-casts", TRAINED | {"gpu": True}, ("bf16", "compile")),
        ("recompute", TRAINED, ()),  # no other rung brings a GPU
        ("sdpa", TRAINED, ()),
        ("dynamic-shapes", TRAINED | {"named_shapes": 2}, ("compile",)),
        ("dynamic-shapes", TRAINED, ()),  # its inputs would not vary then, either
        ("int8-weights", DECODED | {"tokens": 1}, ("bf16", "compile")),
    ],
)
def test_the_fewest_other_rungs_that_one_needs_are_found(name: str, facts: dict[str, Any], needs: tuple[str]) -> None:
    at = Context(Plan(), "fp8", facts_of(facts), {}, {})
    assert BY_NAME[name].applies(at)
    assert prerequisites(at, BY_NAME[name]) == needs


def test_what_needs_another_rung_says_which_and_whether_that_may_still_come(tmp_path: Path) -> None:
    def said(
        folder: str,
        *attempts: str,
        order: tuple[str, ...] | None = None,
        planned: bool = False,
        answer: Answer | None = None,
    ) -> tuple[str, str]:
        made = state(tmp_path / folder)
        made.known, made.numerics = record_of(Facts, TRAINED), "bf16"
        made.request = type(made.request)("x", rungs=order)
        made.answer = answer
        for name in attempts:
            tried(made, name, "reverted")
        record = new_record(made, BY_NAME["bf16-stream"], planned)
        return record.verdict, record.why

    assert said("plan", planned=True) == ("not yet", "it needs bf16.")
    assert said("end") == ("inapplicable", "it needs bf16, which was not tried.")
    assert said("reverted", "bf16") == ("inapplicable", "it needs bf16, which was not kept.")
    provisional = Answer(("bf16",), "provisional", Figure(value=1.2))
    why = "it needs bf16, and the recipe with it is not verified."
    assert said("provisional", "bf16", answer=provisional) == ("inapplicable", why)
    assert said("named", order=("bf16", "bf16-stream"), planned=True)[0] == "not yet"
    late = ("inapplicable", "it needs bf16: name it before it in --rungs.")
    assert said("late", order=("bf16-stream", "bf16"), planned=True) == late
    assert said("alone", order=("bf16-stream",)) == late
