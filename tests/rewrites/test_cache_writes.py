"""Writes to a part of a cache that become writes to the whole of it, which compilers do in place."""

from typing import Any

import pytest
import torch
from torch import nn

from rung.rewrites import RewriteBackend

ROWS, HEADS, LENGTH, WIDTH = 3, 2, 8, 4


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.randn(ROWS, HEADS, LENGTH, WIDTH))


class Copied(Cache):
    def forward(self, rows, position):
        self.cache[: len(rows)].index_copy_(2, position, 2 * rows)
        return self.cache[: len(rows)].sum(2)


class Assigned(Cache):
    def forward(self, rows, position):
        self.cache[1 : len(rows) + 1, :, position] = 2 * rows
        return self.cache.sum(2)


class Further(Cache):
    """Of a part that does not begin where the cache does, along the dimension that is written, too; and the view that is returned is read."""

    def forward(self, rows, position):
        part = self.cache[1 : len(rows) + 1, :, 2:]
        return part.index_copy_(2, position, rows).sum() + self.cache.sum(0)


class Whole(Cache):
    def forward(self, rows, position):
        self.cache.index_copy_(2, position, rows[:1].expand(ROWS, -1, -1, -1).contiguous())
        return self.cache.sum(2)


class OfAnInput(Cache):
    """Not of a buffer of its own but of something that it has worked out."""

    def forward(self, rows, position):
        made = self.cache * 2
        made[: len(rows)].index_copy_(2, position, rows)
        return made.sum(2)


class Broadcast(Cache):
    def forward(self, rows, position):
        self.cache[: len(rows), :, position] = rows[:, :, :1, :1]
        return self.cache.sum(2)


class Nothing(Cache):
    def forward(self, rows, position):
        self.cache[2:1, :, position] = rows[:0]
        return self.cache.sum(2)


def compared(make, inner="eager"):
    ours, theirs = make(), make()
    theirs.load_state_dict(ours.state_dict())
    backend = RewriteBackend(["in-place-cache"], inner)
    compiled = torch.compile(ours, backend=backend, dynamic=False, fullgraph=True)
    with torch.no_grad():
        for places in ([3], [5]):
            rows, position = torch.randn(2, HEADS, len(places), WIDTH), torch.tensor(places)
            torch.testing.assert_close(compiled(rows, position), theirs(rows, position))
            assert torch.equal(ours.cache, theirs.cache)
    return backend


@pytest.mark.parametrize("make", [Copied, Assigned, Further])
def test_a_write_to_a_part_is_one_to_the_whole(make):
    assert compared(make).rewritten == {"in-place-cache": 1}


@pytest.mark.parametrize("make", [Whole, OfAnInput, Nothing])
def test_other_writes_are_left(make):
    backend = compared(make)
    assert backend.rewritten == {}
    assert backend.skipped == []


def test_rows_that_are_repeated_while_they_are_written_are_left():
    backend = compared(Broadcast)
    assert backend.rewritten == {}
    assert "another shape" in backend.skipped[0]


class _Seen(Exception):
    pass


@pytest.mark.parametrize(("passes", "copied"), [((), True), (("in-place-cache",), False)])
def test_inductor_copies_no_part_of_the_cache(passes: Any, copied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import graph as inductor

    seen: list[list[str]] = []

    def looked_at(self: Any, gm: Any, *rest: Any, **more: Any) -> None:
        seen.append([str(node.target) for node in gm.graph.nodes])
        raise _Seen  # what it makes of the graph takes long, and is not asked for

    monkeypatch.setattr(inductor.GraphLowering, "__init__", looked_at)
    run = torch.compile(Copied(), backend=RewriteBackend(passes), dynamic=False)
    with torch.no_grad(), pytest.raises(Exception, match="_Seen"):
        run(torch.randn(2, HEADS, 1, WIDTH), torch.tensor([3]))
    assert ("aten.copy_.default" in seen[0]) is copied
    assert ("aten.index_put_.default" in seen[0]) is not copied
