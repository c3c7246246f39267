"""Tables that depend on constants only become inputs of the graph; nothing else does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager
from torch.utils.checkpoint import checkpoint

from rung.rewrites import RewriteBackend

DIM = 8


def table(length: int, power: float = 100.0) -> Tensor:
    inverse = power ** (-torch.arange(0, DIM, dtype=torch.float32) / DIM)
    return torch.outer(torch.arange(length, dtype=torch.float32), inverse)


def run(function: Any, *arguments: Tensor) -> tuple[RewriteBackend, Any, Any]:
    """The backend, what the function gives and what it gives after the rewrite (the second call of it)."""
    backend = RewriteBackend(["hoisted-constants"], inner="eager")
    compiled = torch.compile(function, backend=backend, dynamic=False)
    compiled(*(a.clone() for a in arguments))
    return backend, function(*(a.clone() for a in arguments)), compiled(*(a.clone() for a in arguments))


def test_a_table_of_angles_becomes_an_input_and_is_not_computed_again():
    seen: list[str] = []

    class Looking(RewriteBackend):
        def compiled(self, gm, inputs):  # type: ignore[no-untyped-def]
            seen.append(gm.code)
            return super().compiled(gm, inputs)

    def function(x: Tensor) -> Tensor:
        angle = table(x.shape[0])
        return x * angle.cos().to(x.dtype) + x.flip(-1) * angle.sin().to(x.dtype)

    backend = Looking(["hoisted-constants"], inner="eager")
    x = torch.randn(5, DIM)
    assert torch.equal(torch.compile(function, backend=backend, dynamic=False)(x), function(x))
    assert backend.matches == {"hoisted-constants": 2}
    assert "cos" not in seen[0]
    assert "arange" not in seen[0]


def test_equal_tables_are_one_input():
    def function(x: Tensor) -> Tensor:
        for _ in range(3):
            x = x * table(x.shape[0]).cos()
        return x * table(x.shape[0], 7.0).cos()

    backend, want, got = run(function, torch.randn(5, DIM))
    assert torch.equal(want, got)
    assert backend.matches == {"hoisted-constants": 4}
    assert len(backend._added[0](())) == 2


def written_in_part(x: Tensor) -> Tensor:
    one, other = torch.zeros(DIM), torch.zeros(DIM)
    other[1::2] = 1.5
    return x * one.exp() + x * other.exp()


def written_as_a_whole(x: Tensor) -> Tensor:
    one, other = torch.arange(DIM).float(), torch.arange(DIM).float()
    other.add_(3)
    return x * one.cos() + x * other.cos()


def read_before_and_after(x: Tensor) -> Tensor:
    one = torch.arange(DIM).float()
    first = one.cos()
    one[2:].fill_(5.0)
    return x * first + x * one.cos()


def written_afterwards(x: Tensor) -> Tensor:
    one, other = torch.zeros(DIM).exp(), torch.zeros(DIM).exp()
    y = x * one + x * other
    other.add_(3)
    return y + other


@pytest.mark.parametrize("function", [written_in_part, written_as_a_whole, read_before_and_after, written_afterwards])
def test_a_table_that_is_written_is_not_the_one_that_begins_as_it_does(function):
    _, want, got = run(function, torch.randn(5, DIM))
    assert torch.equal(want, got)


def test_of_equal_tables_the_one_that_is_returned_stays_the_callers_own():
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * table(x.shape[0]).cos(), table(x.shape[0]).cos()

    compiled = torch.compile(function, backend=RewriteBackend(["hoisted-constants"], inner="eager"), dynamic=False)
    x = torch.randn(5, DIM)
    compiled(x)[1].zero_()
    torch.testing.assert_close(compiled(x), function(x))


def test_a_table_is_held_as_small_as_it_was_before_it_was_broadcast():
    def function(x: Tensor) -> Tensor:
        return x * table(x.shape[1]).cos()[None].expand(x.shape[0], -1, -1)

    backend, want, got = run(function, torch.randn(64, 5, DIM))
    assert torch.equal(want, got)
    assert [one.shape for one in backend._added[0](())] == [(5, DIM)]


def test_a_table_that_reads_itself_many_times_over_takes_no_longer():
    def function(x: Tensor) -> Tensor:
        found = table(x.shape[0]).cos()
        for _ in range(40):  # written out, it would be a text of 2**40 parts
            found = (found + found) * 0.5
        return x * found

    backend, want, got = run(function, torch.randn(5, DIM))
    assert torch.equal(want, got)
    assert backend.matches == {"hoisted-constants": 1}


def test_gradients_flow_past_the_table():
    def function(x: Tensor) -> Tensor:
        return (x * table(x.shape[0]).sin()).sum()

    class Differentiated(RewriteBackend):
        def compiled(self, gm, inputs):  # type: ignore[no-untyped-def]
            return aot_eager(gm, inputs)

    backend = Differentiated(["hoisted-constants"])
    x, y = (torch.ones(5, DIM, requires_grad=True) for _ in range(2))
    function(x).backward()
    torch.compile(function, backend=backend, dynamic=False)(y).backward()
    assert backend.matches["hoisted-constants"] == 1
    torch.testing.assert_close(x.grad, y.grad)


def test_another_shape_has_another_table():
    def function(x: Tensor) -> Tensor:
        return x * table(x.shape[0]).cos()

    compiled = torch.compile(function, backend=RewriteBackend(["hoisted-constants"], inner="eager"), dynamic=False)
    for length in (5, 9, 5):
        x = torch.randn(length, DIM)
        assert torch.equal(compiled(x), function(x))


def test_under_autocast_the_table_keeps_the_dtype_that_it_has_there():
    def function(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (x @ x.t()) * table(x.shape[0])[:, :1].cos().to(torch.bfloat16)

    backend, want, got = run(function, torch.randn(5, DIM))
    assert torch.equal(want, got)
    assert got.dtype == torch.bfloat16
    assert backend.matches["hoisted-constants"] == 1


def returned(x: Tensor) -> tuple[Tensor, Tensor]:
    cos = table(x.shape[0]).cos()
    return x * cos, cos


def written(x: Tensor) -> Tensor:
    cos = table(x.shape[0]).cos()
    cos.mul_(x)
    return cos + x


def of_an_input(x: Tensor) -> Tensor:
    return x * torch.outer(x[:, 0], x[0]).cos()


def cheap(x: Tensor) -> Tensor:
    return x + torch.full((x.shape[0], x.shape[0]), float("-inf")).triu(1)[:, :1]


def random(x: Tensor) -> Tensor:
    return x * torch.rand(x.shape[0], 1).cos()


def checkpointed(x: Tensor) -> Tensor:
    return checkpoint(lambda y: y * table(y.shape[0]).cos(), x, use_reentrant=False)


@pytest.mark.parametrize("function", [returned, written, of_an_input, cheap, random, checkpointed])
def test_what_is_left_as_it_is(function):
    x = torch.randn(5, DIM)
    torch.manual_seed(0)
    want = [function(x.clone()), function(x.clone())]
    torch.manual_seed(0)
    backend = RewriteBackend(["hoisted-constants"], inner="eager")
    compiled = torch.compile(function, backend=backend, dynamic=False)
    assert backend.matches == {"hoisted-constants": 0}
    torch.testing.assert_close([compiled(x.clone()), compiled(x.clone())], want)
    assert backend.matches == {"hoisted-constants": 0}
