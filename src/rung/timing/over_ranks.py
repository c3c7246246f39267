"""What a measurement showed of each rank of a job, and what the exchange between them costs."""

from __future__ import annotations

import socket
import statistics
from collections.abc import Callable
from typing import Any

from rung.launch import Team
from rung.measure import median_interval
from rung.measure.stats import Interval as Estimate
from rung.records.bench import OverRanks, RankTime
from rung.records.measured import Figure, Interval
from rung.records.record import record_of
from rung.timing.timed import Drawn

LEAST = 20  # samples of steps without exchange: their median is known no worse than that of the steps with it


def _power(drawn: list[Drawn]) -> float | None:
    """Watts over all blocks."""
    seconds = sum(one.seconds for one in drawn)
    return sum(one.joules for one in drawn) / seconds if seconds > 0 else None


def _clock(drawn: list[Drawn]) -> float | None:
    seen = [one.clock for one in drawn if one.clock is not None]
    return statistics.median(seen) if seen else None


class RanksSeen:
    """Gathers what each rank answers while the job as a whole is measured. parallel: how they do it."""

    def __init__(self, team: Team, parallel: str) -> None:
        self._team, self._parallel = team, parallel
        self._samples: list[list[float]] = [[] for _ in team.hosts]
        self._drawn: list[list[Drawn]] = [[] for _ in team.hosts]

    @property
    def begins_here(self) -> bool:
        """Whether rank 0 is on this host."""
        return bool(self._team.hosts[0] == socket.gethostname())

    def block(self) -> None:
        """To be called after each block that the team was asked for."""
        for samples, drawn, answer in zip(self._samples, self._drawn, self._team.answers, strict=True):
            samples += answer["samples"]
            if "drawn" in answer:
                drawn.append(record_of(Drawn, answer["drawn"]))

    def summary(self, ask: Callable[..., Any], count: int, step: Estimate, begin: int) -> OverRanks:
        """count: samples of a block; step: of the job, ns; begin: the first sample that counts."""
        ask("memory")
        memory = list(self._team.answers)
        count = max(LEAST, count)
        ask("alone", count=count)
        alone = [median_interval(samples) if samples else None for samples in self._team.answers]
        kept = [samples[begin:] for samples in self._samples]
        slowest = [max(range(len(of_one_step)), key=of_one_step.__getitem__) for of_one_step in zip(*kept, strict=True)]
        ranks = [
            RankTime(
                rank=rank,
                host=host,
                time=record_of(Interval, median_interval(kept[rank])),
                last=slowest.count(rank) / len(slowest),
                alone=record_of(Interval, alone[rank]) if alone[rank] else None,
                memory=memory[rank],
                power=_power(self._drawn[rank]),
                clock=_clock(self._drawn[rank]),
            )
            for rank, host in enumerate(self._team.hosts)
        ]
        own = [rank.alone for rank in ranks if rank.alone]
        if len(own) < len(ranks):
            return OverRanks(parallel=self._parallel, ranks=ranks, exposed=None, imbalance=None)
        worst = max(own, key=lambda time: time.value)
        exposed = Figure(
            value=step.value - worst.value,
            low=step.low - worst.high,  # wider than 95 %: both are at their ends at once
            high=step.high - worst.low,
        )
        imbalance = worst.value / statistics.fmean(time.value for time in own) - 1
        return OverRanks(parallel=self._parallel, ranks=ranks, exposed=exposed, imbalance=imbalance)
