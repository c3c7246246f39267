"""Ranks that would share weights where this torch cannot."""

from __future__ import annotations

import pytest
import torch

import rung
from rung.engine.parallel import in_parallel
from rung.errors import WorkloadError
from rung.hardware import torch_versions
from rung.hardware.device import pick
from rung.hardware.ranks import Ranks


def test_sharding_on_a_cpu_that_this_torch_cannot_do_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_versions, "shards_on_cpu", lambda: False)
    monkeypatch.setattr(Ranks, "here", Ranks(0, 2))
    workload = rung.Workload(
        "sharded", model=lambda: torch.nn.Linear(2, 2), inputs=lambda seed: torch.ones(1, 2), loss=lambda output, x: output.sum(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), parallel="fsdp2",
    )  # fmt: skip
    with pytest.raises(WorkloadError, match=r"fully_shard of torch .* does not run on a CPU\.$"):
        in_parallel(workload, workload.model(), pick("cpu"))
