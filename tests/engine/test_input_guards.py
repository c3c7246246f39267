"""Inputs as a recorded graph takes them: copies for which nothing is compiled anew, and calls that are not recorded."""

import contextlib
import enum
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rung.engine.input_guards import Inputs, as_copied, copied, laid_as_copied, modes, signature


def test_what_lies_otherwise_than_a_copy_would_is_copied() -> None:
    tokens = torch.arange(24).view(4, 6)
    for given in (tokens, tokens.T, tokens[:, :-1], tokens[:1].expand(4, 6), tokens[:, 1]):
        found = laid_as_copied(given)
        assert found.stride() == given.clone().stride()
        assert torch.equal(found, given)
    assert laid_as_copied(tokens.T).data_ptr() == tokens.data_ptr()
    assert laid_as_copied("text") == "text"


def made_in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(2, 4)


ONE, GIVEN = torch.ones(2, 4), made_in_inference_mode()
CALLS: dict[str, tuple[Callable[[], Any], list[Any]]] = {
    "two tensors": (torch.no_grad, [torch.ones(2, 4), torch.ones(2, 4)]),
    "one twice, as labels that are the inputs": (torch.no_grad, [ONE, ONE]),
    "one twice that is a slice": (torch.no_grad, [torch.ones(2, 5)[:, :4]] * 2),
    "made before inference mode": (torch.inference_mode, [ONE, torch.ones(2, 4)]),
    "made in inference mode, used in it": (torch.inference_mode, [GIVEN, ONE]),
    "made in inference mode, used outside": (torch.no_grad, [GIVEN, GIVEN]),
    "of the graph before": (torch.no_grad, [torch.ones(2, 4, requires_grad=True), ONE]),
    "a parameter": (torch.no_grad, [nn.Parameter(torch.ones(2, 4)), ONE]),
    "with gradients": (contextlib.nullcontext, [ONE, ONE]),
}


@pytest.mark.parametrize("call", CALLS)
def test_nothing_is_compiled_anew_for_the_copies(call: str) -> None:
    mode, leaves = CALLS[call]
    compiled: list[int] = []

    def counted(gm: Any, inputs: Any) -> Any:
        compiled.append(1)
        return gm.forward

    weight = torch.ones(4, requires_grad=True)
    run = torch.compile(lambda a, b: a * weight + b, backend=counted, dynamic=False)
    with mode():
        assert not unseen(*leaves)
        run(*as_copied(leaves))
        static = {id(t): copied(t) for t in leaves}
        found = run(*[static[id(t)] for t in leaves])
        assert torch.equal(found, torch.full((2, 4), 2.0))
    assert len(compiled) == 1
    for t in static.values():
        t.copy_(GIVEN)  # outside of the mode, too
    torch._dynamo.reset()


def unseen(*leaves: Any, kind: str = "cpu") -> str:
    return Inputs(leaves, {}, kind).unseen


class Kind(enum.Enum):
    ONE = 1


def test_what_the_host_reads_is_not_recorded() -> None:
    """On a GPU, a number in the host's memory is part of a kernel's launch."""
    assert not unseen(torch.ones(2), 1, 0.5, "text", None, torch.float16, Kind.ONE, torch.relu, torch.Size([2]))
    assert unseen(torch.ones(2), torch.tensor(0.5), kind="cuda") == "an input lies in the host's memory"
    assert unseen(SimpleNamespace(x=torch.ones(2)), kind="cuda") == "input 0.x lies in the host's memory"
    assert unseen(np.ones(2)) == "input 0 is a ndarray, into which Python does not look"
    assert unseen(torch.ones(2, 2).to_sparse()) == "an input is sparse or nested"
    slope = torch.ones(2, requires_grad=True)
    assert unseen(slope) == "an input gets a gradient"
    with torch.no_grad():
        assert not unseen(slope)


def test_one_tensor_twice_is_not_two() -> None:
    other = torch.ones(2, 4)
    assert signature([ONE, ONE]) == signature([other, other])
    assert signature([ONE, ONE]) != signature([ONE, other])
    assert signature([ONE, other, ONE]) != signature([ONE, other, other])


@contextlib.contextmanager
def less_precise() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    "within",
    [
        torch.inference_mode,
        torch.no_grad,
        lambda: torch.autocast("cpu", torch.bfloat16),
        less_precise,
        lambda: nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH),
    ],
    ids=["inference mode", "without gradients", "autocast", "the precision of products", "kinds of attention"],
)
def test_a_call_in_another_mode_or_under_another_setting_has_a_graph_of_its_own(within: Callable[[], Any]) -> None:
    before = modes()
    with within():
        assert modes() != before
    assert modes() == before
