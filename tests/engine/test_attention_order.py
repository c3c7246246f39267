"""Whose attention kernels are asked first: in effect while a step runs, gone afterwards, proved by kernels' names."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from known_facts import facts_of
from msgspec import structs
from torch import nn
from torch.nn.attention import SDPBackend
from torch.utils.checkpoint import checkpoint

from rung import Workload
from rung.engine import attention
from rung.engine.step import Step
from rung.hardware import pick
from rung.hardware.torch_versions import compiler_config
from rung.plan import Plan
from rung.rungs import BY_NAME, Context, Evidence
from rung.rungs.rung import Counters
from rung.verify.verify import verify
from rung.workload import seeded_model

CPU, RUNG = pick("cpu"), BY_NAME["cudnn-attention"]
CUDNN, FLASH = int(SDPBackend.CUDNN_ATTENTION), int(SDPBackend.FLASH_ATTENTION)

pytestmark = pytest.mark.skipif(
    not attention.takes_backend_order(), reason="this torch takes no order of attention kernels"
)


def order() -> list[int]:
    return list(torch._C._get_sdp_priority_order())


class Attention(nn.Module):
    """Notes the order that holds whenever its attention runs, in a checkpoint's second run too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = nn.Linear(8, 8), []

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(order())
        x = self.layer(x)[:, None]
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.attend, x, use_reentrant=False)


WORKLOAD = Workload(
    "attention",
    Attention,
    lambda seed: torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(seed)),
    mode="train",
    loss=lambda output, batch: output.square().mean(),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
)


def test_cudnn_is_asked_first_in_forward_and_in_what_backward_recomputes() -> None:
    before, model = order(), seeded_model(WORKLOAD)
    Step(WORKLOAD, model, Plan(attention="cudnn"), CPU)(WORKLOAD.inputs(1))
    assert len(model.seen) == 2
    assert all(seen[0] == CUDNN and set(seen) == set(before) for seen in model.seen)
    assert order() == before
    Step(WORKLOAD, model, Plan(), CPU)(WORKLOAD.inputs(1))
    assert model.seen[-2:] == [before, before]


def test_backends_that_are_switched_off_stay_off_and_caches_are_kept_apart() -> None:
    tag, flash = compiler_config().cache_key_tag, torch.backends.cuda.flash_sdp_enabled()
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        with attention.prefer_backend("cudnn"):
            assert not torch.backends.cuda.flash_sdp_enabled()
            assert torch.backends.cuda.math_sdp_enabled()
            assert compiler_config().cache_key_tag != tag
    finally:
        torch.backends.cuda.enable_flash_sdp(flash)
    assert compiler_config().cache_key_tag == tag


def test_where_cudnn_takes_nothing_the_others_do() -> None:
    found = verify(WORKLOAD, Plan(attention="cudnn"), CPU).record()
    assert found.passed, found.failures
    choices = attention.chosen_backends(CPU)
    assert choices["default"] == choices["cudnn first"] != "CUDNN_ATTENTION"


def context(**facts: object) -> Context:
    here = {"default": "FLASH_ATTENTION", "cudnn first": "CUDNN_ATTENTION"}
    known = {"gpu": True, "mode": "train", "arch": "sm90", "amp": None, "dtype": "torch.float32",
             "attention_choices": here, "matches": {"sdpa": 2}, "captured": {"sdpa": 0}}  # fmt: skip
    return Context(Plan(bf16=True, passes=("sdpa",)), "bf16", facts_of(known, **facts), {}, {})


def test_it_applies_where_cudnn_would_take_over() -> None:
    assert RUNG.applies(context()) is None
    assert RUNG.applies(context(arch="sm103")) is None
    assert "sm90 and later" in str(RUNG.applies(context(arch="sm80")))
    assert "sm90 and later" in str(RUNG.applies(context(arch="gfx942")))
    assert "2.6" in str(RUNG.applies(context(attention_choices={})))
    refused = {"default": "FLASH_ATTENTION", "cudnn first": "FLASH_ATTENTION"}
    assert "refuses" in str(RUNG.applies(context(attention_choices=refused)))
    already = RUNG.applies(context(attention_choices=dict.fromkeys(refused, "CUDNN_ATTENTION")))
    assert already is not None
    assert already.verdict == "no-op"
    assert "nothing calls" in str(RUNG.applies(context(matches={})))
    bare = context()
    assert "nothing calls" in str(RUNG.applies(replace(bare, plan=Plan(bf16=True))))
    assert "half precision" in str(RUNG.applies(replace(bare, plan=Plan(passes=("sdpa",)))))
    assert (
        RUNG.applies(replace(bare, plan=Plan(bf16=True), facts=structs.replace(bare.facts, captured={"sdpa": 2})))
        is None
    )


def test_it_is_proved_by_the_names_of_kernels() -> None:
    flash = Counters(9, 9, 3, {"void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>": 12.0})
    kernel = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0"
    assert RUNG.proof(Evidence(flash, Counters(9, 9, 3, {kernel: 12.0}), {})).shown is True
    assert RUNG.proof(Evidence(flash, flash, {})).shown is False
    convolution = Counters(9, 9, 3, {"cudnn::engines_precompiled::nchwToNhwcKernel": 1.0})
    assert RUNG.proof(Evidence(flash, convolution, {})).shown is False
