"""Models with switches of their own: attention and the cache of `generate`, switched and switched back."""

from typing import Any

import pytest
import torch
from known_facts import facts_of

from rung.engine.step import Step
from rung.engine.switches import Switched, generates, switches, takes_sdpa
from rung.hardware import pick
from rung.plan import Plan
from rung.rungs import BY_NAME, Context
from rung.verify.verify import verify
from rung.workload import Workload, seeded_model

transformers = pytest.importorskip("transformers", reason="needs transformers")
CPU = pick("cpu")


def llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, attn_implementation="eager",
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def tokens(rows: int, seed: int) -> torch.Tensor:
    return torch.randint(1, 64, (rows, 8), generator=torch.Generator().manual_seed(seed))


def forward(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return model(batch, use_cache=False).logits


def generate(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return model.generate(batch, max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0)


PLAIN = Workload("llama", llama, lambda seed: tokens(2, seed), forward)
DECODING = Workload("llama", llama, lambda seed: tokens(2, seed), generate)


def context(model: Any, called: bool) -> Context:
    facts = {"gpu": True, "mode": "infer", "switches": switches(model), "generates": called}
    return Context(Plan(), "exact", facts_of(facts), {}, {})


def test_a_model_without_switches_has_none() -> None:
    assert switches(torch.nn.Linear(2, 2)) == {}
    assert not generates(lambda: None, torch.nn.Linear(2, 2))
    for rung in ("model-sdpa", "static-cache"):
        no = BY_NAME[rung].applies(context(torch.nn.Linear(2, 2), False))
        assert no is not None
        assert no.verdict == "inapplicable"


def test_attention_is_switched_by_the_model_and_back() -> None:
    model = llama()
    assert BY_NAME["model-sdpa"].applies(context(model, False)) is None
    switched = Switched(model, (("attention", "sdpa"),))
    assert switches(model)["attention"] == "sdpa"
    again = BY_NAME["model-sdpa"].applies(context(model, False))
    assert again is not None
    assert again.verdict == "no-op"
    switched.undo()
    assert switches(model)["attention"] == "eager"


def test_a_model_that_was_switched_twice_is_switched_back_in_any_order() -> None:
    model, wanted = llama(), (("attention", "sdpa"), ("cache", "static"))
    before = switches(model)
    first, second = Switched(model, wanted), Switched(model, wanted)
    first.undo()
    assert switches(model) == dict(wanted)
    second.undo()
    assert switches(model) == before


def test_the_switched_model_is_verified_and_says_that_it_is() -> None:
    plan = BY_NAME["model-sdpa"].change(Plan())
    found = verify(PLAIN, plan, CPU).record()
    assert found.passed, found.failures
    step = Step(PLAIN, seeded_model(PLAIN), plan, CPU)
    step(tokens(2, 1))
    assert step.applied()["switch attention"] == "sdpa"


def test_generate_with_a_static_cache_gives_the_same_tokens() -> None:
    model = llama()
    assert generates(lambda: generate(model, tokens(2, 1)), model)
    assert not generates(lambda: forward(model, tokens(2, 1)), model)
    assert BY_NAME["static-cache"].applies(context(model, True)) is None
    assert BY_NAME["static-cache"].applies(context(model, False)) is not None
    right = generate(model, tokens(2, 3))
    step = Step(DECODING, model, BY_NAME["static-cache"].change(Plan()), CPU)
    assert step.applied()["switch cache"] == "static"
    assert torch.equal(step(tokens(2, 3))[1], right)
    step._forward.undo()
    assert switches(model)["cache"] == "dynamic"


def test_a_model_whose_class_has_no_sdpa_is_not_asked_for_it() -> None:
    model = llama()
    assert takes_sdpa(model)
    assert takes_sdpa(torch.nn.Linear(2, 2))
    type(model)._supports_sdpa, before = False, type(model)._supports_sdpa
    try:
        facts = {"gpu": True, "mode": "infer", "switches": switches(model), "takes_sdpa": takes_sdpa(model)}
        no = BY_NAME["model-sdpa"].applies(Context(Plan(), "exact", facts_of(facts), {}, {}))
    finally:
        type(model)._supports_sdpa = before
    assert no is not None
    assert "has no SDPA" in no.why
