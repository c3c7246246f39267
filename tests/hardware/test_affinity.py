"""Cores of a rank: its share of those that are near its GPU. That ranks get them is in tests/ladder/test_candidate_over_ranks.py."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.hardware import affinity
from rung.hardware.affinity import cores_of, own_cores, share


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight threads of four cores on two nodes, numbered as most servers do: the second thread of core 0 is 4."""
    for core in range(8):
        topology = tmp_path / f"devices/system/cpu/cpu{core}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{core % 4},{core % 4 + 4}\n")
        (topology.parent / f"node{core % 4 // 2}").mkdir()
    for node in (0, 1):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{2 * node}-{2 * node + 1},{2 * node + 4}-{2 * node + 5}\n")
    monkeypatch.setattr(affinity, "SYS", tmp_path)


@pytest.mark.usefixtures("two_nodes")
def test_threads_of_a_core_and_cores_of_a_node_stay_together() -> None:
    assert cores_of(1) == {2, 3, 6, 7}
    assert cores_of(-1) == set()
    assert [share(set(range(8)), 2, place) for place in (0, 1)] == [{0, 1, 4, 5}, {2, 3, 6, 7}]
    assert [share(cores_of(1), 2, place) for place in (0, 1)] == [{2, 6}, {3, 7}]


@pytest.mark.usefixtures("two_nodes")
@pytest.mark.parametrize(
    ("allowed", "nodes", "given"),
    [
        ({0, 1, 2, 3, 4, 5, 6, 7}, [0, 1, 0, 1], [{0, 4}, {2, 6}, {1, 5}, {3, 7}]),
        ({0, 1, 4, 5}, [1, 0, 1, 0], [{1}, {0}, {5}, {4}]),  # no core on the second node
        ({0, 1, 2, 3, 4, 5, 6, 7}, [0, 1, -1], [{1, 2, 5}, {3, 6, 7}, {0, 4}]),  # of one GPU nobody says the node
        ({0, 4}, [0, 0, 1], [set(), set(), set()]),
    ],
)
def test_ranks_near_a_node_share_its_cores_and_none_has_those_of_another(
    allowed: set[int], nodes: list[int], given: list[set[int]]
) -> None:
    assert [own_cores(allowed, nodes, place) for place in range(len(nodes))] == given


@given(st.sets(st.integers(0, 255), min_size=1, max_size=64), st.integers(1, 16))
def test_ranks_have_all_cores_and_none_twice(cores: set[int], ranks: int) -> None:
    shares = [share(cores, ranks, place) for place in range(ranks)]
    if len(cores) < ranks:
        assert not any(shares)
        return
    assert set().union(*shares) == cores
    assert sum(map(len, shares)) == len(cores)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
