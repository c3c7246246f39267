"""What the restarts of an interleaved A/B run showed, as it is collected and as it is written down."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from rung.engine.disturbed import compiled_anew
from rung.measure import (
    CLIMB,
    Comparison,
    Looks,
    Ranking,
    Restart,
    judge,
    median_interval,
)
from rung.measure.core_time import MOST_WAITED, CoreTime, total, waiting
from rung.quantities import ratio
from rung.records.compare import Interleaved, Ranked, WarmUp
from rung.records.measured import Compared, Environment, Interval, Witness
from rung.records.record import record_of
from rung.timing.other_gpus import other_gpus
from rung.timing.timed import Warmed

DELAY = 2e6  # nanoseconds of a block that pipes and the scheduler may take on a busy machine
APART = 1.25  # times, between what usual and shortest steps say of two sides: more is the waiting's doing


@dataclass
class ABRun:
    """An interleaved A/B run: fresh workers of two or more sides, timed in alternating blocks, in one or more restarts.

    Args:
        comparison: the second side against the first, where there are two.
        ranking: all sides, where there are more.
        restarts: one for each time that fresh workers were timed.
        samples: nanoseconds a step, per restart and side.
        warm: what the warm-up showed, per restart and side.
        environments: of the last restart on the first GPU, by side.
        warnings: sentences for the report.
        outside: by side, the largest share of a block's wall time that its samples leave out.
        blocks: by side, two times in nanoseconds for each block. The first is how long this process waited for it, by its own clock. The
            second is what the block's samples add up to. A side's own report is not trusted without the first.
        compiled: by side, how many graphs were compiled while it was timed.
        witness: the checks on the timed run of the last side, where they were made (`rung.ladder.candidate.Candidate.witness`).
        cpu_restarts: the restarts in CPU time a step. Empty on a GPU.
        cores: by side, how long its threads ran and waited in all. Empty on a GPU.
        ranks: of each side; 0 where a side is one process.
        elsewhere: restarts that ran on another GPU than the first: their index in `restarts`, and the GPU's name.
    """

    comparison: Comparison | None = None
    ranking: Ranking | None = None
    restarts: list[Restart] = field(default_factory=list)
    samples: list[dict[str, list[float]]] = field(default_factory=list)
    warm: list[dict[str, Warmed]] = field(default_factory=list)
    environments: dict[str, Environment] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    outside: dict[str, float] = field(default_factory=dict)
    blocks: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    compiled: dict[str, int] = field(default_factory=dict)
    witness: Witness = field(default_factory=Witness)
    cpu_restarts: list[Restart] = field(default_factory=list)
    cores: dict[str, CoreTime] = field(default_factory=dict)
    ranks: int = 0
    elsewhere: dict[int, str] = field(default_factory=dict)

    def add(self, other: ABRun, gpu: str = "") -> None:
        """Takes in what was seen of the same sides in one more restart. gpu: on which it ran, empty for the first."""
        if gpu:
            self.elsewhere[len(self.restarts)] = gpu
        self.restarts += other.restarts
        self.cpu_restarts += other.cpu_restarts
        self.samples += other.samples
        self.warm += other.warm
        self.warnings += other.warnings
        if not gpu:
            self.environments = other.environments
        for side, blocks in other.blocks.items():
            self.blocks.setdefault(side, []).extend(blocks)
            self.outside[side] = max(self.outside.get(side, 0.0), other.outside[side])
            self.compiled[side] = self.compiled.get(side, 0) + other.compiled[side]
        for side, cores in other.cores.items():
            self.cores[side] = total([self.cores.get(side, CoreTime(0, 0)), cores])

    @property
    def waited(self) -> dict[str, float]:
        """By side, the share of the time that its threads could have run in which they waited for a core."""
        return {side: got.share_waited for side, got in self.cores.items()}

    def by_cpu_time(self, a: int = 0, b: int = 1, looks: Looks = CLIMB) -> Comparison | None:
        """Side b against side a in CPU time, at the confidence of the next planned look; None where it is not known."""
        ratios = [restart.log_ratio(a, b) for restart in self.cpu_restarts]
        return judge(ratios, looks=looks, last=True) if ratios else None

    @property
    def hidden(self) -> dict[str, float]:
        """By side, the share of the time of its blocks that its samples leave out: of the best explained block, or, beyond what
        pipes and schedulers may take, of three in four. What is told wrongly in fewer hardly moves the comparison, which is a
        Hodges-Lehmann estimate."""
        return {side: _hidden(blocks) for side, blocks in self.blocks.items()}

    def record(self) -> Interleaved:
        """All that restarts gave, of which there is at least one."""
        firsts = self.warm[0]
        anew = [f"{side}: {compiled_anew(count)}" for side, count in self.compiled.items() if count]
        waited = {side: f"{side}: {said}" for side, share in self.waited.items() if (said := waiting(share))}
        sides = list(firsts)
        cpu = self.by_cpu_time() if len(sides) == 2 else None
        applied = firsts[sides[-1]].applied
        of_first = [row for k, row in enumerate(self.samples) if k not in self.elsewhere]
        # A fork holds less memory than a fresh process, as the untouched model is one; its first run is no user's.
        alike = [w for w in self.warm if all(one.forked for one in w.values())] or self.warm
        fresh = next((w for w in self.warm if not any(one.forked for one in w.values())), firsts)
        return Interleaved(
            comparison=record_of(Compared, self.comparison) if self.comparison else None,
            ranking=record_of(Ranked, self.ranking) if self.ranking else None,
            restarts=self.samples,
            times={
                s: record_of(Interval, median_interval([x for r in of_first for x in r[s]])) for s in sides if of_first
            },
            memory={s: max((w[s].memory for w in alike), key=lambda m: max(m.values())) for s in sides},
            first_run_seconds={s: fresh[s].first_run_seconds for s in sides},
            warm_up=[{s: WarmUp(runs=w[s].runs, steady=w[s].steady) for s in sides} for w in self.warm],
            applied=applied,
            matches=applied.get("matches", {}),
            hidden=self.hidden,
            witness=self.witness,
            compiled_while_timed=self.compiled,
            waited=self.waited,
            cpu_time=record_of(Compared, cpu) if cpu else None,
            warnings=sorted({*self.warnings, *unexplained(self.outside), *anew, *waited.values()}),
            other_gpus=other_gpus(self.samples, self.elsewhere) or UNSET,
            busy=self.doubt() if len(sides) == 2 else "",
        )

    def doubt(self, a: int = 0, b: int = 1) -> str:
        """Why the speedup of side b over side a is doubtful, as a sentence without its end, where threads waited for CPU cores; else empty."""
        busy, share = [r for r in self.restarts if r.shortest], max(self.waited.values(), default=0.0)
        apart = far_apart(busy, a, b)
        if not busy or not (apart or share > MOST_WAITED):
            return ""
        said = f"threads waited for a CPU core {share:.0%} of the time, so the speedup is doubtful"
        if not apart:
            return said
        usual = statistics.median(r.usual(a, b) for r in busy)
        least = statistics.median(r.least(a, b) for r in busy)
        steps = f"usual steps make it {ratio(math.exp(usual))}×, the shortest ones {ratio(math.exp(least))}×"
        return f"{said} ({steps}, and no more is claimed than both show)"


def far_apart(restarts: Sequence[Restart], a: int = 0, b: int = 1) -> bool:
    """Whether usual and shortest steps tell different stories of two sides."""
    return any(r.shortest and abs(r.usual(a, b) - r.least(a, b)) > math.log(APART) for r in restarts)


def pair_of(ab_run: ABRun, name: str) -> ABRun:
    """The untouched model and the side of this name, as an A/B run of two sides, from one of several sides."""
    sides = {"best": "best", "candidate": name}
    found = ABRun(warnings=ab_run.warnings, environments=ab_run.environments)
    found.samples = [{new: row[old] for new, old in sides.items()} for row in ab_run.samples]
    found.warm = [{new: row[old] for new, old in sides.items()} for row in ab_run.warm]
    for of in ("outside", "blocks", "compiled", "cores"):
        setattr(found, of, {new: getattr(ab_run, of)[old] for new, old in sides.items() if old in getattr(ab_run, of)})
    order = list(ab_run.warm[-1])
    k, n = order.index(name), len(order)
    found.restarts = [_of_two(ab_run.restarts[-1], k, n)]
    found.cpu_restarts = [_of_two(restart, k, n) for restart in ab_run.cpu_restarts[-1:]]
    return found


def _of_two(restart: Restart, k: int, n: int) -> Restart:
    """The first and the k-th of n sides. A round visits all sides and then all again in reverse."""
    rounds = tuple((r[0], r[k], r[2 * n - 1 - k], r[2 * n - 1]) for r in restart.rounds)
    return Restart(rounds, (restart.shortest[0], restart.shortest[k]) if restart.shortest else ())


def unexplained(outside: Mapping[str, float]) -> list[str]:
    """What to say of sides whose samples leave out much of the wall time of a block."""
    return [
        f"{side}: up to {share:.0%} of a block's wall time is not in its samples"
        for side, share in outside.items()
        if share > 0.25
    ]


def _hidden(blocks: Sequence[tuple[float, float]]) -> float:
    least = min(1 - claimed / waited for waited, claimed in blocks)
    beyond = sorted(1 - (claimed + DELAY) / waited for waited, claimed in blocks)
    return max(0.0, least, beyond[3 * len(beyond) // 4])
