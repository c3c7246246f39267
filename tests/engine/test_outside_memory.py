"""What a replay writes outside of its graph's memory. On a GPU: skips, saying so, without one."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from rung.engine.cuda_graph import PROOFS, WARM_CALLS, GraphedStep
from rung.engine.outside_memory import OutsideMemory, in_use
from rung.hardware import pick

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs need a GPU")
STATES = ("active_allocated", "active_awaiting_free", "inactive")


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from(STATES))))
def test_all_that_is_in_use_is_read_and_nothing_else(blocks: list[tuple[int, str]]) -> None:
    segment = {"address": 1 << 20, "blocks": [{"size": 512 * n, "state": state} for n, state in blocks]}
    used, at = set(), 1 << 20
    for n, state in blocks:
        used |= {at + 512 * k for k in range(n)} if state == STATES[0] else set()
        at += 512 * n
    runs = in_use(segment)
    read = [address + 512 * k for address, size in runs for k in range(size // 512)]
    assert set(read) == used
    assert len(read) == len(used)
    assert all(one[0] + one[1] < other[0] for one, other in itertools.pairwise(runs))


def test_where_the_allocator_does_not_tell_a_replay_is_not_taken_for_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> None:
        raise RuntimeError("snapshot is not supported by cudaMallocAsync")

    monkeypatch.setattr(torch.cuda, "memory_snapshot", refuses)
    assert not OutsideMemory(SimpleNamespace(pool=lambda: (0, 1)), 0).unchanged()


class Counts(nn.Linear):
    def __init__(self) -> None:
        super().__init__(64, 64)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return super().forward(x)


def attends(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])[0]


OUTSIDE = torch.zeros(64)
MADE: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], Any] | None, bool]] = {
    "products": (lambda: nn.Sequential(nn.Linear(64, 8192), nn.GELU(), nn.Linear(8192, 64)), None, True),
    "convolutions": (lambda: nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3), nn.Flatten()), None, True),
    "attention": (nn.Identity, attends, True),
    "dropout": (lambda: nn.Dropout(0.5).train(), None, False),
    "a counter": (Counts, None, False),
    "a tensor of nobody's": (nn.Identity, lambda x: OUTSIDE.add_(x.sum(0)), False),
    "a table that is turned round": (nn.Identity, lambda x: OUTSIDE.copy_(OUTSIDE.roll(1)), False),
}


@needs_gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("case", MADE)
def test_whether_replays_write_outside(case: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    make, function, harmless = MADE[case]
    monkeypatch.setitem(globals(), "OUTSIDE", torch.arange(64.0, device="cuda"))
    torch._dynamo.reset()
    model = make().cuda()
    model = model if case == "dropout" else model.eval()
    body: Callable[[Any], Any] = function or model
    body = torch.compile(body, dynamic=False) if compiled else body

    def forward(x: torch.Tensor) -> Any:
        with torch.no_grad():
            return body(x)

    run = GraphedStep(forward, pick("cuda"), model)
    for k in range(WARM_CALLS + PROOFS + 2):
        x = torch.full((256, 64), 0.01 * k, device="cuda")
        found = run(x).clone()
        if harmless:
            torch.testing.assert_close(found, forward(x))
    assert next(iter(run._graphs.values())).harmless == (PROOFS if harmless else None)
    if case == "a counter":
        assert float(model.calls) == WARM_CALLS + PROOFS + 2


@needs_gpu
def test_a_model_whose_weights_are_gone_is_computed_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Linear(2048, 2048).cuda().requires_grad_(False), torch.ones(4, 2048, device="cuda")
    run = GraphedStep(model, pick("cuda"), model)
    for _ in range(WARM_CALLS + PROOFS + 1):
        run(x)
    model.cpu()
    torch.cuda.empty_cache()
    model.cuda()
    model.weight.data = torch.zeros(2048, 2048, device="cuda")
    torch.cuda.empty_cache()
    torch.testing.assert_close(run(x), model.bias.expand(4, -1))
    model.register_forward_hook(lambda *a: a[2] + 1)
    torch.testing.assert_close(run(x), model.bias.expand(4, -1) + 1)
