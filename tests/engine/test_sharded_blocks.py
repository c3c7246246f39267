"""Which modules of a model FSDP2 gathers by themselves: called ones with parameters, none within another."""

import pytest
from torch import nn

from rung.engine.parallel import _blocks


class Block(nn.Module):
    def __init__(self, width: int = 4, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.layer, self.inner = nn.Linear(4, width), inner

    def forward(self, x):
        return self.layer(x)


def holding(*lists: nn.Module) -> nn.Module:
    model = nn.Module()
    for k, held in enumerate(lists):
        model.add_module(f"list{k}", held)
    return model


def several(count: int = 3) -> nn.ModuleList:
    return nn.ModuleList(Block() for _ in range(count))


SHARED = Block()

CASES = {
    "one list": (holding(several()), [3]),
    "two lists": (holding(several(2), several(4)), [2, 4]),
    "a list inside of a block": (holding(nn.ModuleList(Block(inner=several()) for _ in range(3))), [3]),
    "stages that differ": (holding(nn.ModuleList(Block(width, several(2)) for width in (4, 5, 6))), [2, 2, 2]),
    "a list of lists": (holding(nn.ModuleList([several(2), several(2)])), [2, 2]),
    "one that is no module to call": (holding(nn.ModuleList([Block(), nn.ModuleDict(), Block()])), [2]),
    "one without parameters": (holding(nn.ModuleList([Block(), nn.ReLU(), Block()])), [2]),
    "the same block twice": (holding(nn.ModuleList([SHARED, SHARED, Block()])), [2]),
    "the same block in two lists": (holding(nn.ModuleList([SHARED, Block()]), nn.ModuleList([SHARED, Block()])), [2, 1]),
    "a block that is an attribute, too": (holding(SHARED, nn.ModuleList([SHARED, Block(), Block()])), [3]),
    "one within another": (holding(nn.ModuleList([Block(inner=SHARED), SHARED])), [1]),
    "no list": (holding(nn.Sequential(Block(), Block())), []),
}  # fmt: skip


@pytest.mark.parametrize(("model", "counts"), CASES.values(), ids=CASES)
def test_blocks(model: nn.Module, counts: list[int]) -> None:
    found = _blocks(model)
    assert [len(blocks) for blocks in found] == counts
    parts = [id(part) for blocks in found for block in blocks for part in block.modules()]
    assert len(parts) == len(set(parts))
