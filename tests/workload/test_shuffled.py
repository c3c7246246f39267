"""Batches of other seeds out of one: other values in every column, and none that was not there."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rung.errors import UsageError
from rung.workload.shuffled import shuffled

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.complex64]


def drawn(shape: list[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(100, shape, generator=generator)
    return whole.to(dtype)


def values(tensor: torch.Tensor) -> list[Any]:
    return sorted(tensor.flatten().tolist(), key=str)


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4), st.sampled_from(DTYPES), st.integers(0, 50), st.integers(1, 9)
)
def test_a_batch_of_another_seed_has_the_same_values_in_each_column(
    shape: list[int], dtype: torch.dtype, drawn_with: int, seed: int
) -> None:
    given_ = drawn(shape, dtype, drawn_with)
    anchor = torch.arange(7.0).flip(0)  # varies whatever the other does
    make = shuffled((given_, anchor))
    again, other = make(0)[0], make(seed)[0]
    assert torch.equal(again, given_)
    assert again.data_ptr() != given_.data_ptr()
    assert (other.shape, other.dtype) == (given_.shape, given_.dtype)
    assert torch.equal(make(seed)[0], other)
    if len({str(row) for row in given_.tolist()}) > 1:
        columns = [tensor.reshape(len(tensor), -1).T for tensor in (other, given_)]
        assert [values(column) for column in columns[0]] == [values(column) for column in columns[1]]
    assert values(other) == values(given_)


def test_seeds_give_different_batches_and_a_single_row_is_permuted() -> None:
    make = shuffled({"ids": torch.randint(1000, (4, 64)), "pixels": torch.randn(1, 3, 8, 8)})
    batches = [make(seed) for seed in range(4)]
    for name in ("ids", "pixels"):
        assert len({tuple(batch[name].flatten().tolist()) for batch in batches}) == 4
    rows = {tuple(row) for row in batches[0]["ids"].tolist()}
    assert not any(tuple(row) in rows for row in batches[1]["ids"].tolist())  # columns are turned each by itself
    channels = [sorted(batch["pixels"][0, 1].flatten().tolist()) for batch in batches]
    assert all(channel == channels[0] for channel in channels)  # none of its values came from another channel


def test_rows_that_are_all_the_same_are_permuted_within() -> None:
    row = torch.randn(1, 32)
    other = shuffled(row.expand(4, 32))(1)
    assert not torch.equal(other, row.expand(4, 32))
    assert values(other[0]) == values(row)


@pytest.mark.parametrize("apart", [0, 50])
def test_rows_of_integers_with_ranges_of_their_own_keep_their_values(apart: int) -> None:
    """Edges between users and items: an index of one is out of range for the other."""
    generator = torch.Generator().manual_seed(0)
    users, items = torch.randint(50, (40,), generator=generator), torch.randint(10, (40,), generator=generator)
    edges = torch.stack([users, items + apart])
    other = shuffled(edges)(1)
    assert not torch.equal(other, edges)
    assert [values(row) for row in other] == [values(row) for row in edges]


def test_columns_of_integers_with_ranges_of_their_own_keep_their_values() -> None:
    table = torch.stack([torch.arange(6).roll(2), 100 + torch.arange(6), 10 + torch.arange(6)] * 3, 1)
    other = shuffled(table)(1)
    assert not torch.equal(other, table)
    assert [values(column) for column in other.T] == [values(column) for column in table.T]


@pytest.mark.parametrize(
    "stays",
    [
        torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]]),
        torch.tensor([[0.0, float("-inf"), 0.0], [0.0, 0.0, float("-inf")]]),
        torch.tensor([[True, False], [False, True]]),
        torch.arange(8).expand(2, 8),
        torch.tensor([0, 3, 3, 9], dtype=torch.uint8),
        torch.linspace(0, 1, 5),
        torch.tensor([7, 5, 5, 2]),
        torch.tensor(3.0),
    ],
    ids=["mask", "additive mask", "bool", "positions", "offsets", "times", "sorted lengths", "number"],
)
def test_masks_and_positions_stay_as_they_are(stays: torch.Tensor) -> None:
    make = shuffled([torch.randn(2, 4), stays, "text", None])
    _, kept, text, nothing = make(3)
    assert torch.equal(kept, stays)
    assert (text, nothing) == ("text", None)
    with pytest.raises(UsageError, match="give a function that makes the batch of a seed"):
        shuffled(stays)


def test_a_step_that_writes_to_its_batch_does_not_change_the_next() -> None:
    make = shuffled((torch.randn(3, 4), torch.ones(3)))
    for tensor in make(0):
        tensor.zero_()
    assert all(tensor.any() for tensor in make(0))


def test_the_batch_is_copied_off_its_graph() -> None:
    source = torch.randn(4, 4, requires_grad=True)
    assert not shuffled(source * 2)(1).requires_grad


def test_a_batch_keeps_its_layout_and_what_is_differentiated() -> None:
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    at = torch.randn(5, 2, requires_grad=True)
    make = shuffled((image, at))
    for seed in (0, 1):
        images, points = make(seed)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert points.is_leaf
        assert points.requires_grad
    assert not torch.equal(make(1)[0], image)
    assert not torch.equal(make(1)[1], at)
