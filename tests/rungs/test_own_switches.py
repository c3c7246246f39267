"""What a model's class says of its switch, of a stand-in for Hugging Face's; with transformers: tests/engine/test_switches.py."""

from typing import Any

import small
from known_facts import facts_of

from rung.engine.switches import switches, takes_sdpa
from rung.plan import Plan
from rung.rungs import BY_NAME, Context


def asked(model: Any) -> Any:
    facts = {"gpu": True, "mode": "infer", "switches": switches(model), "takes_sdpa": takes_sdpa(model)}
    return BY_NAME["model-sdpa"].applies(Context(Plan(), "exact", facts_of(facts), {}, {}))


def test_a_class_that_has_no_sdpa_is_not_asked_for_it() -> None:
    without = type("Without", (small.Attention,), {"_supports_sdpa": False})
    assert asked(small.Attention()) is None
    assert asked(without()).verdict == "inapplicable"
    assert "has no SDPA" in asked(without()).why
    assert asked(without("sdpa")).verdict == "no-op"
