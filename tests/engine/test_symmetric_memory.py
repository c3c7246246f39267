"""Memory that ranks share: where one of them cannot have it, all say so in the same sentence, and none waits for another."""

import os
from collections.abc import Iterator

import pytest
import torch
from forked_ranks import importable, ranks

from rung.engine import symmetric_memory
from rung.errors import WorkloadError
from rung.launch import Team


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    log = tmp_path_factory.mktemp("ranks") / "log"
    with Team("memory_ranks:Rank", log, ranks(2), lambda _, answers: answers, importable(__file__)) as started:
        started.call("join", 60)
        yield started


def test_ranks_that_lack_nothing_share(team: Team) -> None:
    assert team.call("asked", 60) == ["", ""]


@pytest.mark.parametrize(
    ("lacking", "says"),
    [
        ("GPU", "rank 1 cannot share memory: it is GPUs that do, and the model is on a CPU."),
        ("operator", "rank 1 cannot share memory: no operator today."),
        ("memory", "rank 1 cannot share memory: no memory today."),
        ("handle", "rank 1 cannot share memory: no handle today."),
        ("sum", "rank 1 cannot share memory: a sum of 32768 numbers in bfloat16 is wrong."),
    ],
)
def test_what_one_rank_lacks_all_refuse(team: Team, lacking: str, says: str) -> None:
    assert team.call("asked", 60, lacking=lacking, rank=1) == [says, says]


def test_what_all_lack_is_said_of_all(team: Team) -> None:
    assert set(team.call("asked", 60, lacking="memory")) == {"the ranks cannot share memory: no memory today."}


def test_ranks_on_two_hosts_do_not_share(team: Team) -> None:
    here, there = team.call("asked", 60, lacking="host", rank=1)
    assert here == there
    assert here.startswith("the ranks cannot share memory: they are on 2 hosts (")
    assert "elsewhere" in here


@pytest.mark.parametrize(
    ("dtype", "count", "called"),
    [
        ("float32", 3, ("one", 32)),
        ("bfloat16", 33, ("one", 64)),
        ("float32", 2**16, ("one", 2**16)),
        ("float32", 2**16 + 1, ("two", 2**16 + 32)),
        ("bfloat16", 2**17 + 1, ("two", 2**17 + 32)),
        ("float32", 2**23, ("two", 2**23)),
    ],
)
def test_small_sums_are_read_at_once_and_all_in_whole_vectors(
    team: Team, dtype: str, count: int, called: tuple[str, int]
) -> None:
    for found in team.call("summed", 60, dtype=dtype, count=count):
        assert found == {"called": [list(called)], "right": True}


def test_inductor_fuses_products_of_a_group_once_it_was_enabled(team: Team) -> None:
    assert team.call("taken_by_the_pass", 60) == [[False, True], [False, True]]


GPU = torch.device("cuda", 0)


@pytest.fixture
def has_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetric_memory, "_has_operator", lambda name: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("has_operators")
@pytest.mark.parametrize("reached", [False, True])
def test_gpus_have_to_reach_each_other(reached: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda mine, other: reached)
    if reached:
        symmetric_memory._refuse(GPU, [0, 1])
    else:
        with pytest.raises(WorkloadError, match="GPU 0 cannot read the memory of GPU 1"):
            symmetric_memory._refuse(GPU, [0, 1])


@pytest.mark.usefixtures("has_operators")
def test_a_gpu_that_a_rank_is_not_shown_is_found_out_by_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda mine, other: pytest.fail("asked"))
    symmetric_memory._refuse(GPU, [0, 0])
    symmetric_memory._refuse(GPU, [0, 7])


@pytest.mark.usefixtures("has_operators")
def test_more_ranks_than_the_kernels_take() -> None:
    with pytest.raises(WorkloadError, match="they are 9, and at most 8 can"):
        symmetric_memory._refuse(GPU, [0] * 9)


def test_a_torch_without_the_operators_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetric_memory, "_has_operator", lambda name: name != "two_shot_all_reduce_")
    with pytest.raises(WorkloadError, match=r"torch .* has no symm_mem::two_shot_all_reduce_ for this GPU"):
        symmetric_memory._refuse(GPU, [0])


@pytest.mark.skipif(torch.version.cuda is not None or torch.version.hip is not None, reason="this torch is for GPUs")
def test_a_torch_for_the_cpu_has_none_of_them() -> None:
    assert not symmetric_memory._has_operator("one_shot_all_reduce")
    assert not symmetric_memory._has_operator("an operator that is not declared")


@pytest.mark.parametrize("before", [None, "0"])
def test_multicast_is_off_while_it_is_shared(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "TORCH_SYMM_MEM_DISABLE_MULTICAST"
    monkeypatch.delenv(name, raising=False) if before is None else monkeypatch.setenv(name, before)
    with symmetric_memory._without_multicast():
        assert os.environ[name] == "1"
    assert os.environ.get(name) == before
