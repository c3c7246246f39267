"""Mistakes of several ranks that no error tells are named; honest ways to train together are not."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_ranks import ranks
from sharding import NEEDS_SHARDS

from rung.launch import Team
from rung.verify.ranks import _sums, _the_same

HERE = str(Path(__file__).parent)
PATH = {"PYTHONPATH": os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))}


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """One process group for all cases: starting ranks takes most of the time."""
    log = tmp_path_factory.mktemp("ranks") / "log"
    with Team("ranked_mistakes:Ranked", log, ranks(2), lambda _, answers: answers, PATH) as made:
        yield made


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("", ""),
        ("none of its own", ""),
        pytest.param("of shards", "", marks=NEEDS_SHARDS),
        ("no numbers", ""),
        ("no mistake, writes", ""),
        ("same data, tensor-parallel", ""),
        ("tensor-parallel", "ranks 0 and 1 get different batches"),
        ("same data", "ranks 0 and 1 get the same batch"),
        ("same data, own", "ranks 0 and 1 get the same batch"),
        pytest.param("same data, shards", "ranks 0 and 1 get the same batch", marks=NEEDS_SHARDS),
        ("unsynchronized", "the weights of the ranks diverge"),
        ("no exchange", "the weights of the ranks diverge"),
        ("one parameter", "the weights of the ranks diverge"),
        ("wrong gradients", "the gradient of 0.weight is not the mean"),
    ],
)
def test_a_mistake_is_named_on_every_rank(team: Team, mistake: str, said: str) -> None:
    for doubts in team.call("doubts", 120, mistake=mistake):
        assert [doubt.startswith(said) for doubt in doubts] == ([True] if said else [])


def test_batches_that_are_only_ordered_otherwise_are_not_the_same() -> None:
    import torch

    one = torch.arange(6.0)
    everywhere = [_sums([one]), _sums([one.flip(0)]), _sums([one.clone()])]
    assert _the_same(everywhere) == (0, 2)
    assert _the_same(everywhere[:2]) is None
    assert _the_same([[], []]) is None
