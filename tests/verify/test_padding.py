"""A candidate that is off only in what the untouched model fills with zeros: the sentence says so, and the guide's way out is verified."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from rung.engine.step import Step
from rung.hardware import pick
from rung.plan import Plan
from rung.verify.verify import verify
from rung.workload import Workload

CPU = pick("cpu")


def _inputs(seed: int) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 12, (6,), generator=g)
    return {"src": torch.randn(6, 12, 16, generator=g), "mask": torch.arange(12)[None] >= lengths[:, None]}


def encoder() -> Workload:
    def model() -> nn.Module:
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)

    def forward(model: nn.Module, batch: dict[str, torch.Tensor]) -> Any:
        return model(batch["src"], src_key_padding_mask=batch["mask"])

    return Workload("encoder", model, _inputs, forward=forward)


class OtherWay(Step):
    """Computes what compiled code does: with a mask for attention, and without torch's nested tensors."""

    def __call__(self, batch: Any) -> Any:
        before = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            return super().__call__(batch)
        finally:
            torch.backends.mha.set_fastpath_enabled(before)


def verified(workload: Workload) -> Any:
    return verify(workload, Plan(), CPU, lambda model, plan: OtherWay(workload, model, plan, CPU)).record()


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_padding_is_named_and_may_be_filled_in() -> None:
    found = verified(encoder())
    assert not found.passed
    assert "of its numbers where the untouched model gives 0 (padding?): have forward fill in 0" in found.failures[0]
    whole = encoder()
    masked = replace(
        whole, forward=lambda model, batch: whole.forward(model, batch).masked_fill(batch["mask"][..., None], 0)
    )
    assert verified(masked).passed


def test_what_is_off_elsewhere_too_is_not_called_padding() -> None:
    workload = Workload("relu", lambda: nn.Sequential(nn.Linear(16, 16), nn.ReLU()), lambda seed: _inputs(seed)["src"])

    class Leaky(Step):
        def __call__(self, batch: Any) -> Any:
            return None, super().__call__(batch)[1] * 1.5 + 0.1

    found = verify(workload, Plan(), CPU, lambda model, plan: Leaky(workload, model, plan, CPU)).record()
    assert not found.passed
    assert not any("padding" in failure for failure in found.failures)
