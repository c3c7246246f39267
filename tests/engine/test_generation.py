"""Generation: the example's single token is the one that `generate` makes, is captured whole, and is verified as a token."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rung.engine.step import Step
from rung.hardware import pick
from rung.plan import Plan
from rung.rungs import BY_NAME
from rung.verify.verify import verify
from rung.workload import Workload, load, seeded_model

pytest.importorskip("transformers", reason="needs transformers")
EXAMPLE = Path(__file__).parents[2] / "examples" / "hf_generate.py"
TOY = {"hidden": "32", "layers": "2", "heads": "4", "prompt": "8", "new": "4"}
CPU = pick("cpu")


def example(name: str) -> Workload:
    return load(f"{EXAMPLE}:{name}", TOY)


def test_one_token_after_another_is_what_generate_gives() -> None:
    whole, one = example("make"), example("decode")
    model = seeded_model(whole)
    prompt = whole.inputs(0)
    right = Step(whole, model, Plan(), CPU)(prompt)[1]
    assert right.shape == (1, 4)
    assert (whole.tokens, one.tokens) == (4, 1)
    with torch.no_grad():
        decoding = type(seeded_model(one))(model, prompt, 12)
        token = model(prompt).logits[:, -1].argmax(-1)
        tokens = [token]
        for k in range(3):
            token, _ = decoding(token[:, None], torch.tensor([8 + k]))
            tokens.append(token)
    assert torch.equal(torch.stack(tokens, 1), right)


def test_one_token_is_captured_whole_and_rewritten() -> None:
    one = example("decode")
    plan = Plan()
    for rung in ("sdpa-no-mask", "fused-qkv", "fused-gate-up"):
        plan = BY_NAME[rung].change(plan)
    step = Step(one, seeded_model(one), plan, CPU)
    batch = one.inputs(1)
    right = Step(one, seeded_model(one), Plan(), CPU)(batch)[1]
    found = step(batch)[1]
    assert torch.equal(found[0], right[0])
    torch.testing.assert_close(found[1], right[1], rtol=1e-4, atol=1e-5)
    assert step.applied()["graph_breaks"] == 0
    assert {name: n for name, n in step.applied()["matches"].items() if n} == dict.fromkeys(plan.passes, 2)


def test_other_tokens_are_refused() -> None:
    whole = example("make")

    class Off(Step):
        def __call__(self, batch: Any) -> Any:
            loss, tokens = super().__call__(batch)
            return loss, torch.cat((tokens[:, :-1], (tokens[:, -1:] + 1) % 1000), dim=1)

    static = BY_NAME["static-cache"].change(Plan())
    assert verify(whole, static, CPU).record().passed
    assert not verify(whole, static, CPU, lambda model, plan: Off(whole, model, plan, CPU)).record().passed
