"""Kernels that start early (`triton.enable_pdl`) wait before they touch memory, whatever ran before them."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from rung.engine.dynamo import inductor_settings
from rung.rewrites import RewriteBackend, inductor_patches
from rung.rewrites.inductor_passes.dependent_launches import SETTING, WaitFirst

KNOWN = bool(inductor_settings((SETTING,)))
ON_HOPPER = torch.cuda.is_available() and not torch.version.hip and torch.cuda.get_device_capability() >= (9, 0)


def test_only_the_setting_brings_the_pass() -> None:
    assert inductor_patches({"max_autotune": True}) == {"max_autotune": True}
    assert inductor_patches({SETTING: False}) == {SETTING: False}
    patches = inductor_patches({SETTING: True}, ("float32-gradients",))
    both = patches.pop("post_grad_custom_post_pass")
    assert patches == {SETTING: True}
    assert isinstance(both.passes[-1], WaitFirst)
    assert len(both.passes) == 2


@pytest.mark.skipif(not KNOWN, reason="this torch has no setting triton.enable_pdl")
def test_a_kernel_waits_before_its_first_access_whatever_node_was_before() -> None:
    from torch._inductor.codegen.triton import TritonKernel
    from torch._inductor.virtualized import V

    older = SimpleNamespace(read_writes=SimpleNamespace(writes=[SimpleNamespace(name="zeros")], reads=[]))
    kernel: Any = SimpleNamespace(
        _enable_pdl_codegen=lambda: True,
        inside_reduction=False,
        GDC_WAIT="wait",
        current_node=SimpleNamespace(mutation_renames={}),
    )
    scheduler = SimpleNamespace(previous_node=older)
    lines: list[str] = []

    def access() -> list[str]:
        lines.clear()
        buffer = SimpleNamespace(writeline=lines.append)
        with V.set_graph_handler(SimpleNamespace(scheduler=scheduler)), V.set_kernel_handler(kernel):
            TritonKernel._handle_pdl_before_access(kernel, buffer, "what_an_older_kernel_writes")
        return list(lines)

    with mock.patch.object(TritonKernel, "_handle_pdl_before_access", _as_torch_has_it()):
        assert access() == [], "torch waits by itself now: this pass can go"
        WaitFirst()(torch.fx.Graph())
        assert access() == ["wait"]
        assert scheduler.previous_node is older
        WaitFirst()(torch.fx.Graph())  # which changes it once
        assert access() == ["wait"]
        assert scheduler.previous_node is older


@pytest.mark.skipif(not ON_HOPPER or not KNOWN, reason="such launches need an NVIDIA GPU of sm90 or later")
def test_a_result_is_not_read_before_it_is_there() -> None:
    run = torch.compile(scattered, backend=RewriteBackend([], "inductor", {SETTING: True}), dynamic=False)
    for seed in range(10):
        x, at = drawn(seed)
        torch.testing.assert_close(run(x, at), scattered(x, at), rtol=1e-4, atol=1e-4)


def scattered(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """A slow kernel, one that fills zeros, and one that adds the results of the first to them."""
    y = x
    for _ in range(40):
        y = torch.lgamma(y.abs() + 1.5)
    return torch.zeros(4096, device=x.device).index_add(0, at, y.flip(0))


def drawn(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator(device()).manual_seed(seed)
    x = torch.rand(1 << 20, device=device(), generator=generator)
    return x, torch.randint(4096, x.shape, device=device(), generator=generator)


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _as_torch_has_it() -> Any:
    from torch._inductor.codegen.triton import TritonKernel

    return getattr(TritonKernel._handle_pdl_before_access, "__wrapped__", TritonKernel._handle_pdl_before_access)
