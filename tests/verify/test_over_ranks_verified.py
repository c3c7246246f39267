"""A candidate over several ranks is held against one process on the batches of all of them: mistakes are refused, on every rank that sees them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest
from forked_ranks import importable, ranks
from sharding import NEEDS_SHARDS

from rung.launch import Team, WorkerFailed
from rung.rungs import plan_of
from rung.rungs.ranks import EXCHANGE
from rung.timing.merge_answers import merge_answers

PATH = importable(__file__)


# Of each rung of the exchange that gloo can do: how ranks train together, and a mistake under it with what is said.
RUNGS = {
    "ddp-buckets-8": ("ddp", "stale bucket", "gradient of"),
    "ddp-buckets-100": ("ddp", "same data", "off by"),
    "ddp-gradient-views": ("ddp", "sum", "gradient of"),
    "ddp-static-graph": ("ddp", "stale bucket", "gradient of"),
    "ddp-one-graph": ("ddp", "sum", "gradient of"),
    "ddp-compiled-backward": ("ddp", "no all-reduce", "gradient of"),
    "ddp-symmetric-memory": ("ddp", "stale memory", "gradient of"),
    "fsdp-keep-gathered": ("fsdp2", "no all-reduce", "get no gradient"),
    "fsdp-prefetch": ("fsdp2", "same data", "off by"),
    "fsdp-bf16-weights": ("fsdp2", "no all-reduce", "get no gradient"),
}
# What some go with.
BESIDE = {"ddp-compiled-backward": ["compile"], "fsdp-bf16-weights": ["bf16"]}


def cases() -> Iterator[Any]:
    for rung, (parallel, mistake, said) in RUNGS.items():
        yield pytest.param(mistake, rung, said, marks=NEEDS_SHARDS if parallel == "fsdp2" else ())


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Team]]:
    """One process group of so many ranks for all cases: starting ranks takes most of the time."""
    with ExitStack() as stack:

        @cache
        def of(count: int) -> Team:
            log = tmp_path_factory.mktemp("ranks") / "log"
            return stack.enter_context(Team("wrong_ranks:Verified", log, ranks(count), merge_answers, PATH))

        yield of


@pytest.fixture(params=[2, 4])
def team(request: pytest.FixtureRequest, teams: Callable[[int], Team]) -> Team:
    return teams(request.param)


OF_TWO = pytest.mark.parametrize("team", [2], indirect=True)  # which is seen with two, four would only see again


@pytest.mark.parametrize(
    ("team", "parallel"), [(2, "ddp"), pytest.param(2, "fsdp2", marks=NEEDS_SHARDS), (4, "ddp")], indirect=["team"]
)
def test_what_torch_itself_does_is_what_one_process_computes(team: Team, parallel: str) -> None:
    found = team.call("verify", 120, numerics="exact", parallel=parallel)
    assert found["passed"], found["failures"]
    assert found["precisions"] == [f"exact over {len(team.hosts)} ranks"]


@OF_TWO
@pytest.mark.parametrize("parallel", ["ddp", pytest.param("fsdp2", marks=NEEDS_SHARDS)])
def test_gradients_are_clipped_by_the_norm_over_all_ranks(team: Team, parallel: str) -> None:
    found = team.call("verify", 120, numerics="exact", parallel=parallel, most=0.01)
    assert found["passed"], found["failures"]


@OF_TWO
def test_a_sum_in_the_place_of_a_mean_shows_where_gradients_are_clipped(team: Team) -> None:
    found = team.call("verify", 120, numerics="exact", mistake="sum", rungs=["ddp-gradient-views"], most=0.01)
    assert any("gradient norm" in failure for failure in found["failures"]), found["failures"]


@OF_TWO
@pytest.mark.parametrize("parallel", ["ddp", pytest.param("fsdp2", marks=NEEDS_SHARDS)])
def test_each_rank_writes_to_its_own_batch_alone(team: Team, parallel: str) -> None:
    found = team.call("verify", 120, numerics="exact", parallel=parallel, writes=True)
    assert found["passed"], found["failures"]


@OF_TWO
def test_a_batch_that_is_not_written_to_is_refused_on_each_rank(team: Team) -> None:
    failures = team.call("verify", 120, numerics="exact", writes=True, mistake="unwritten input")["failures"]
    for rank in range(2):
        said = f"rank {rank}: the candidate does not write to input [{rank}], as the baseline does"
        assert any(failure.startswith(said) for failure in failures), failures


@OF_TWO
def test_a_rung_that_computes_the_same_passes(team: Team) -> None:
    found = team.call("verify", 120, numerics="bf16", rungs=["bf16", "fused-optimizer"])
    assert found["passed"], found["failures"]


def passing() -> Iterator[Any]:
    for case in cases():
        # A minute of compiling. Its steps are compared with usual ones in tests/engine/test_compiled_backward.py, too.
        long = [pytest.mark.long] if case.values[1] == "ddp-compiled-backward" else []
        yield pytest.param(case.values[1], marks=[*case.marks, *long])


@OF_TWO
@pytest.mark.parametrize("rung", list(passing()))
def test_a_rung_of_the_exchange_passes(team: Team, rung: str) -> None:
    found = verified(team, rung)
    assert found["passed"], found["failures"]


@pytest.mark.parametrize(
    ("mistake", "said"), [("no all-reduce", "gradient of"), ("stale bucket", "gradient of"), ("same data", "off by")]
)
def test_a_mistake_of_the_ranks_is_refused(team: Team, mistake: str, said: str) -> None:
    found = team.call("verify", 120, numerics="exact", mistake=mistake)
    assert not found["passed"]
    assert any(said in failure for failure in found["failures"]), found["failures"]


@OF_TWO
@pytest.mark.parametrize(("mistake", "rung", "said"), list(cases()))
def test_a_mistake_under_a_rung_of_the_exchange_is_refused(team: Team, mistake: str, rung: str, said: str) -> None:
    found = verified(team, rung, mistake)
    assert not found["passed"]
    assert any(said in failure for failure in found["failures"]), found["failures"]


def verified(team: Team, rung: str, mistake: str = "") -> Any:
    """A rung of the exchange with what it goes with, at the precision at which it does something."""
    rungs = [*BESIDE.get(rung, ()), rung]
    numerics = plan_of(rungs).numerics
    return team.call("verify", 120, numerics=numerics, mistake=mistake, rungs=rungs, parallel=RUNGS[rung][0])


@OF_TWO
def test_a_sum_that_nobody_waits_for_is_refused(team: Team) -> None:
    found = verified(team, "ddp-symmetric-memory", "unawaited memory")
    assert any("gradient of" in failure for failure in found["failures"]), found["failures"]


@pytest.mark.parametrize("rungs", [[], ["fused-optimizer"]], ids=str)
def test_a_tensor_parallel_model_is_compared_part_by_part(team: Team, rungs: list[str]) -> None:
    found = parts(team, rungs=rungs)
    for of_one in found:
        assert of_one["passed"], of_one["failures"]
        assert of_one["checks"] > 20


@OF_TWO
@pytest.mark.parametrize(
    ("mistake", "rank", "said"), [("unsummed", 0, "output"), ("unstepped part", 1, "change of 0.weight")]
)
def test_a_mistake_of_a_tensor_parallel_model_is_refused(team: Team, mistake: str, rank: int, said: str) -> None:
    failures = parts(team, mistake=mistake)[rank]["failures"]
    assert any(said in failure for failure in failures), failures


def parts(team: Team, **asked: Any) -> list[Any]:
    """What each rank says."""
    team.call("verify_parts", 120, **asked)
    return list(team.answers)


@OF_TWO
def test_a_mistake_is_seen_below_full_precision_too(team: Team) -> None:
    assert not team.call("verify", 120, numerics="bf16", rungs=["bf16"], mistake="stale bucket")["passed"]


def test_every_rung_of_the_exchange_is_tried_here() -> None:
    """torch's compression of gradients needs NCCL."""
    assert {*RUNGS, "bf16-gradients"} == {rung.name for rung in EXCHANGE}


def test_all_ranks_have_to_agree() -> None:
    """What one of them alone sees is said with its number."""
    good: dict[str, Any] = {
        "passed": True,
        "checks": 3,
        "precisions": ["exact"],
        "failures": [],
        "worst": None,
        "memory": {"rss": 1},
    }
    bad = {**good, "passed": False, "failures": ["a", "b"], "memory": {"rss": 5}}
    found = merge_answers("verify", [good, bad])
    assert not found["passed"]
    assert found["failures"] == ["rank 1: a", "rank 1: b"]
    assert found["memory"] == {"rss": 5}
    assert merge_answers("verify", [{**bad, "failures": ["a"]}, bad])["failures"] == ["a", "rank 1: b"]


def test_a_rank_that_fails_ends_the_others(team: Team) -> None:
    """They would wait for its part of the exchange for ever. Nothing can be asked of these ranks afterwards, so this comes last."""
    with pytest.raises(WorkerFailed) as failed:
        team.call("verify", 120, numerics="exact", mistake="one rank's raises")
    assert f"rank 1 of {len(team.hosts)} on" in str(failed.value)
    assert "no step today" in str(failed.value)
