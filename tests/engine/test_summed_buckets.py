"""Buckets of gradients that are summed in shared memory are those that DistributedDataParallel exchanges by itself."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import importable, ranks

from rung.launch import Team

PATH = importable(__file__)

SMALL_BUCKETS = 0.001  # MiB: one a layer and dtype


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """Two ranks on a CPU, where gloo stands in for the memory."""
    log = tmp_path_factory.mktemp("ranks") / "log"
    with Team("summed_ranks:Rank", log, ranks(2), lambda _, answers: answers, PATH) as started:
        started.call("join", 60, gpu=False)
        yield started


def compared(team: Team, near: float = 1e-6, exchanged: str = "", **options: Any) -> list[int]:
    """How many buckets of each rank went through the memory, once all gradients are known to be those of the usual exchange."""
    usual = team.call("gradients", 60, hook=False, **options)
    mine = team.call("gradients", 60, hook=True, exchanged=exchanged, **options)
    assert mine[0]["steps"] == mine[1]["steps"]
    for expected, found in zip(usual[0]["steps"], mine[0]["steps"], strict=True):
        for name, values in expected.items():
            torch.testing.assert_close(torch.tensor(found[name]), torch.tensor(values), rtol=near, atol=near, msg=name)
    return [one["count"] for one in mine]


def test_one_bucket_a_dtype_larger_than_the_memory(team: Team) -> None:
    """Three steps of one bucket in float32 and one in bfloat16; that in float64 takes torch's usual way."""
    assert team.call("room", 20)[0] < 2 * 24 * 25
    assert compared(team, find_unused_parameters=True) == [6, 6]


def test_small_buckets(team: Team) -> None:
    small, whole = compared(team, bucket_cap_mb=SMALL_BUCKETS), compared(team)
    assert small[0] == small[1] > whole[0]


@pytest.mark.parametrize("options", [{"gradient_as_bucket_view": True}, {"static_graph": True}], ids=str)
def test_beside_other_arguments(team: Team, options: dict[str, bool]) -> None:
    assert compared(team, bucket_cap_mb=SMALL_BUCKETS, **options)[0]


def test_gradients_that_are_accumulated_first(team: Team) -> None:
    assert compared(team, accumulate=True)[0]
    assert compared(team, accumulate=True, gradient_as_bucket_view=True)[0]


def test_sums_in_bfloat16(team: Team) -> None:
    """Of all dtypes, as torch's own compression does it."""
    counted = compared(team, near=2e-2, exchanged="bfloat16", find_unused_parameters=True)
    assert counted == [9, 9]
    exact, rounded = (team.call("gradients", 60, hook=True, exchanged=dtype)[0] for dtype in ("", "bfloat16"))
    assert exact["steps"] != rounded["steps"]


def test_what_is_in_effect_is_told(team: Team) -> None:
    with_hook = team.call("wrapped", 60, rungs=["ddp-symmetric-memory"])[0]
    assert with_hook["in effect"]["buckets in symmetric memory"] > 0
    assert with_hook["in effect"]["gradients"] == ""
    assert not with_hook["lacks"]
    both = team.call("wrapped", 60, rungs=["ddp-symmetric-memory", "bf16-gradients"])[0]
    assert both["in effect"]["gradients"] == "bf16"
    assert both["in effect"]["buckets in symmetric memory"] > 0
    assert not both["lacks"]
    assert "buckets in symmetric memory" not in team.call("wrapped", 60, rungs=[])[0]["in effect"]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_sum_in_memory_that_they_share(tmp_path: Path) -> None:
    with Team("summed_ranks:Rank", tmp_path / "log", ranks(2), lambda _, answers: answers, PATH) as team:
        team.call("join", 120, gpu=True)
        assert compared(team, near=1e-5)[0]
        assert compared(team, near=1e-5, bucket_cap_mb=SMALL_BUCKETS, gradient_as_bucket_view=True)[0]
        assert compared(team, near=2e-2, exchanged="bfloat16")[0]
