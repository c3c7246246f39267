"""What a climb asks of a candidate, asked of two ranks at once."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forked_ranks import ranks
from sharding import NEEDS_SHARDS

from rung.hardware.torch_versions import shards_called_lists
from rung.ladder.answers import Loaded, Untouched, Verified
from rung.launch import Team
from rung.records.measured import Witness
from rung.records.record import record_of
from rung.timing.merge_answers import merge_answers
from rung.timing.workers import WORKLOAD
from rung.trace import read

TARGET = f"{Path(__file__).parents[1] / 'timing' / 'ranked_workload.py'}:make"
SHARDED = ["fsdp-keep-gathered", "fsdp-bf16-weights", "fsdp-prefetch"]


class Asked:
    """Two ranks with a workload open."""

    def __init__(self, folder: Path, rungs: list[str], parallel: str) -> None:
        self.folder, self.team = folder, Team(WORKLOAD, folder / "log", ranks(2), merge_answers)
        options = {"parallel": parallel, "blocks": 3 if parallel == "fsdp2" else 0}
        self.ask("open", target=TARGET, options=options, rungs=rungs, device="cpu")

    def ask(self, method: str, **arguments: Any) -> Any:
        return self.team.call(method, 120, **arguments)


@pytest.fixture(scope="module", params=["ddp", pytest.param("fsdp2", marks=NEEDS_SHARDS)])
def asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    ddp = request.param == "ddp"
    rungs = ["fused-optimizer", "ddp-gradient-views", "ddp-buckets-8", "rank-cores"] if ddp else ["bf16", *SHARDED]
    made = Asked(tmp_path_factory.mktemp(request.param), rungs, request.param)
    with made.team:
        yield made


def test_it_is_timed_looked_at_recorded_and_verified(asked: Asked) -> None:
    facts = record_of(Loaded, asked.ask("facts", save="model.pt")).facts
    assert facts.ranks == 2
    ddp = facts.parallel == "ddp"
    warm = record_of(Untouched, asked.ask("warm", seconds=0.2))
    assert not warm.apart
    if ddp:
        assert warm.applied["optimizer_fused"]
        assert warm.applied["ddp gradient_as_bucket_view"] is True
        assert warm.applied["ddp bucket_cap_mb"] == 8
    else:
        assert (warm.applied["weights"], warm.applied["ahead"]) == ("bf16", 2 if shards_called_lists() else 1)
    each = ddp and len(os.sched_getaffinity(0)) >= 2
    assert warm.applied["cores"] == ("own" if each else "all")
    assert len(asked.ask("block", count=5)["samples"]) == 5
    trace = asked.folder / "trace.json.gz"
    asked.ask("profile", path=str(trace), steps=2)
    assert any("gloo" in name for name in read(trace).events["name"].unique())
    assert asked.ask("watch") is ddp  # of shards no rank has all that is compared
    asked.ask("block", count=2)
    witness = record_of(Witness, asked.ask("witness"))
    assert not witness.failures
    assert bool(witness.left) is not ddp
    found = record_of(Verified, asked.ask("verify", numerics="exact", alone=False, backwards=False))
    assert found.passed, found.failures
    assert found.precisions == ["exact over 2 ranks"]
    assert found.memory


def test_weights_that_go_apart_while_it_is_timed_are_seen(asked: Asked) -> None:
    """`alone` leaves the exchange out."""
    if asked.ask("alone", count=2) is None:
        pytest.skip("FSDP2 gathers weights in every step")
    asked.ask("watch")
    asked.ask("block", count=2)
    assert any("diverge" in said for said in asked.ask("witness")["failures"])
