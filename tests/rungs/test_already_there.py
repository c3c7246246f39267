"""A rung that would change nothing in the plan is not tried: it would be the best so far against itself, and kept by chance."""

import pytest
from known_facts import facts_of

from rung.plan import Plan
from rung.rungs import BY_NAME, LADDER, Context, plan_of
from rung.rungs.inductor import settings


def context(kept: list[str], **facts: object) -> Context:
    inductor = {name: default for row in settings() for name, default in row.default.items()}
    known = {
        "gpu": True, "vendor": "nvidia", "arch": "sm90", "mode": "infer", "tokens": 1, "linears": 4, "dtype": "torch.float32",
        "matmul_precision": "highest", "matches": {"sdpa": 2}, "captured": {"sdpa": 2}, "inductor": inductor,
    }  # fmt: skip
    return Context(plan_of(kept), "fp8", facts_of({**known, **facts}), {}, {})


@pytest.mark.parametrize(
    ("kept", "rung"),
    [
        (["tf32", "compile", "tf32-attention"], "sdpa"),
        (["compile", "flex-for-sdpa"], "sdpa"),
        (["compile", "int8-weights"], "coordinate-descent"),
    ],
)
def test_what_another_rung_brought_along_is_there_already(kept: list[str], rung: str) -> None:
    before = [name for name in kept if name in ("tf32", "compile")]
    assert BY_NAME[rung].applies(context(before)) is None
    no = BY_NAME[rung].applies(context(kept))
    assert no is not None
    assert (no.verdict, no.why) == ("no-op", "what is kept so far changes all that it would.")


def test_each_rung_changes_the_plan_and_changes_it_once() -> None:
    for rung in LADDER:
        once = rung.change(Plan())
        assert once != Plan(), rung.name
        assert plan_of([rung.name]) == once


@pytest.mark.parametrize("row", settings(), ids=lambda row: row.name)
def test_a_setting_of_inductor_that_is_made_twice_is_made_once(row: object) -> None:
    change = BY_NAME[row.name].change  # type: ignore[attr-defined]
    assert change(change(Plan())) == change(Plan())
