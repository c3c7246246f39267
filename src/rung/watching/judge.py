"""What the lines of a job's ranks mean: who is slow, throttled, silent, or stands still.

A rank is compared with the median rank, by its own pace where that is known: ranks that wait for each other take steps of one length.
Nothing is said of fewer than three lines, and of a rank only what most of its newest lines show.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path

from rung.records.watch import Finding, Kind, Sample, State, Watched, WatchedRank

NEWEST = 6  # lines of a rank: half a minute of them by default
LEAST = 3  # lines
MOSTLY = 2 / 3  # of the lines
SLOWER = 0.05  # by this share a rank is a straggler
SLOW_CLOCK = 0.9  # of the median clock of equal GPUs
SILENT = 20.0  # seconds, or four lines where these are written less often
STALLED = 30.0  # seconds without a step, or five steps where these take longer
FEW = 3  # sentences of one kind, and ranks that one lists
DEAR = 0.01  # the share of the time that being watched may take


def judged(folder: Path, ranks: Sequence[Sequence[Sample]], now: float) -> Watched:
    """The state of a job.

    Args:
        folder: where its ranks write.
        ranks: the newest lines of each, oldest first; one rank at least.
        now: seconds of the clock of this host.
    """
    newest_at = max(lines[-1].at for lines in ranks)
    last = max((lines[-1] for lines in ranks), key=lambda line: (line.began, line.at))  # of the process that began last
    ours = [lines for lines in ranks if lines[-1].rank < last.world and _of_this_job(lines[-1], last, newest_at)]
    paces = {lines[-1].rank: pace for lines in ours if (pace := _pace(lines))}
    medians = {rank: statistics.median(pace) for rank, pace in paces.items()}
    # Of two ranks, the faster: their mean would hide half of what they differ by.
    typical = statistics.median_low(medians.values()) if len(medians) > 1 else None
    seen = [_rank(lines, newest_at, medians.get(lines[-1].rank), typical) for lines in ours]
    seen.sort(key=lambda rank: rank.rank)
    steps = [rank.step_ns for rank in seen if rank.step_ns is not None]
    exposed = [rank.exchange_ns for rank in seen if rank.exchange_ns is not None] if last.world > 1 else []
    costs = [rank.cost for rank in seen if rank.cost is not None]
    step_ns = statistics.median(steps) if steps else None
    state: State = "running"
    if all(rank.ended for rank in seen):
        state = "ended"
    elif now - newest_at > _patience(last):
        state = "silent"
    found: list[Finding] = []
    if state == "silent":
        text = f"no rank has reported for {_seconds(now - newest_at)}: the job was killed, or it writes to another folder than {folder}"
        found.append(Finding(kind="silent", ranks=[], text=text))
    elif state == "running":
        found += [*_silent(seen, last), *_missing(seen, last, newest_at), *_stalled(seen, last, step_ns)]
    if state != "silent":
        found += [*_stragglers(seen, ours, paces, typical), *_throttled(seen), *_slow_clocks(seen)]
    return Watched(
        folder=str(folder), state=state, world=last.world, step=max(rank.step for rank in seen), step_ns=step_ns,
        exposed_ns=statistics.median(exposed) if exposed else None, least_exposed_ns=min(exposed, default=None),
        cost=statistics.median(costs) if costs else None, findings=found, notes=list(_notes(seen, last, costs)), ranks=seen,
    )  # fmt: skip


def _of_this_job(line: Sample, last: Sample, newest_at: float) -> bool:
    """Whether a rank's newest line is of the job that `last` is of, and not of an earlier one in the same folder."""
    if line.at >= min(last.at, last.began):
        return True
    if line.ended:
        return False
    patience = _patience(last)
    if last.began - line.began <= patience:  # it began with the others and stopped writing at once
        return True
    # It may be a rank that began early and is about to write its next line.
    return last.began - line.at <= patience and newest_at - last.began <= patience


def _patience(line: Sample) -> float:
    return max(SILENT, 4 * line.every)


def _timed(lines: Sequence[Sample]) -> list[Sample]:
    """The newest lines in which a step ended."""
    return [line for line in lines if line.step_ns is not None][-NEWEST:]


def _pace(lines: Sequence[Sample]) -> list[float]:
    """Nanoseconds of each of the newest lines; empty where there are too few of them."""
    timed = _timed(lines)
    return list(map(_own, timed)) if len(timed) >= LEAST else []


def _own(line: Sample) -> float:
    """Nanoseconds of a step by the rank itself, where that is known, else of the whole step."""
    return line.own_ns or line.step_ns or 0.0


def _rank(lines: Sequence[Sample], newest_at: float, pace: float | None, typical: float | None) -> WatchedRank:
    line, timed, recent = lines[-1], _timed(lines), lines[-NEWEST:]
    reasons = Counter(reason for one in recent for reason in set(one.throttled))
    return WatchedRank(
        rank=line.rank, local=line.local, host=line.host, gpu=line.gpu, seen=max(0.0, newest_at - line.at), step=line.step,
        step_ns=_median(one.step_ns for one in timed), own_ns=_median(one.own_ns for one in timed),
        exchange_ns=_median(one.exchange_ns for one in timed),
        slower=pace / typical - 1 if pace and typical else None,
        allocated=line.allocated, reserved=line.reserved, resident=line.resident, used=line.used, total=line.total,
        power=_median(one.power for one in recent), limit=line.limit, core=_median(one.core for one in recent),
        celsius=line.celsius, throttled={reason: n / len(recent) for reason, n in reasons.most_common()},
        idle=line.idle, stands=line.stands, cost=_median(one.cost for one in recent), ended=line.ended,
    )  # fmt: skip


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _silent(seen: Sequence[WatchedRank], last: Sample) -> list[Finding]:
    lost = [rank for rank in seen if not rank.ended and rank.seen > _patience(last)]
    return _told("silent", lost, lambda rank: f"{_name(rank)} has not reported for {_seconds(rank.seen)}")


def _missing(seen: Sequence[WatchedRank], last: Sample, newest_at: float) -> list[Finding]:
    """Ranks that have not written anything, once the others have for a while."""
    missing = last.world - len(seen)
    if missing <= 0 or newest_at - last.began < _patience(last):
        return []
    there = {rank.rank for rank in seen}
    which = list(islice((rank for rank in range(last.world) if rank not in there), FEW))
    listed = ", ".join(map(str, which)) + (" and others" if missing > len(which) else "")
    text = (
        f"{missing} of {last.world} ranks {'has' if missing == 1 else 'have'} not reported: {_plural(missing)} {listed}"
    )
    return [Finding(kind="missing", ranks=which, text=text)]


def _stalled(seen: Sequence[WatchedRank], last: Sample, step_ns: float | None) -> list[Finding]:
    limit = max(STALLED, 5 * (step_ns or 0.0) / 1e9)
    here = [rank for rank in seen if not rank.ended and rank.seen <= _patience(last)]
    stuck = [rank for rank in here if rank.idle > limit]
    if len(stuck) < len(here) or len(here) < 2:
        return _told(
            "stalled", stuck, lambda rank: f"{_name(rank)} has not finished a step for {_seconds(rank.idle)}{_at(rank)}"
        )
    behind = min(rank.step for rank in stuck)
    first = [rank for rank in stuck if rank.step == behind]
    text = f"no rank has finished a step for {_seconds(min(rank.idle for rank in stuck))}"
    if len(first) < len(stuck):
        one = first[0]
        more = f" and {len(first) - 1} more are" if len(first) > 1 else " is"
        text += f": {_name(one)}{more} at step {behind + 1}{_at(one)}, the others are ahead"
    elif places := Counter(rank.stands for rank in stuck if rank.stands).most_common():
        text += f"; {_where_they_stand(stuck, places)}"
    return [Finding(kind="stalled", ranks=[rank.rank for rank in stuck], text=text)]


def _where_they_stand(stuck: Sequence[WatchedRank], places: Sequence[tuple[str, int]]) -> str:
    """places: how many ranks stand at each, the most first."""
    if len(places) == 1:
        return f"all are at {places[0][0]}"
    # Most ranks wait for the one that does something else. Of two places with as many ranks, either may be the one that waits.
    named = places[-1:] if places[-1][1] < places[-2][1] else places[:FEW]
    ranks = [next(rank for rank in stuck if rank.stands == place) for place, _ in named]
    more = f", and others at {len(places) - FEW} more" if len(named) == FEW < len(places) else ""
    return ", ".join(f"{_name(rank)} is at {rank.stands}" for rank in ranks) + more


def _stragglers(
    seen: Sequence[WatchedRank],
    ours: Sequence[Sequence[Sample]],
    paces: dict[int, list[float]],
    typical: float | None,
) -> list[Finding]:
    if not typical:
        return []
    slow = [rank for rank in seen if _straggles(rank, paces, typical)]
    slow.sort(key=lambda rank: -(rank.slower or 0.0))
    lines = {one[-1].rank: one for one in ours}
    found = []
    for host, some in _whole_hosts(seen, slow).items():
        least = min(rank.slower or 0.0 for rank in some)
        text = f"all {len(some)} ranks of {host} take {_percent(least)} or more longer than the median rank"
        found.append(Finding(kind="straggler", ranks=[rank.rank for rank in some], text=text))
    told = {rank for finding in found for rank in finding.ranks}

    def sentence(rank: WatchedRank) -> str:
        alone = " by itself" if rank.own_ns is not None and rank.exchange_ns is not None else ""
        since = _since(lines[rank.rank], typical)
        reason = next((reason for reason, share in rank.throttled.items() if share >= 0.5), "")
        why = f"; its GPU is throttled ({reason})" if reason else ""
        return f"{_name(rank)} takes {_percent(rank.slower or 0.0)} longer{alone} than the median rank, for the last {_seconds(since)}{why}"

    return found + _told("straggler", [rank for rank in slow if rank.rank not in told], sentence)


def _straggles(rank: WatchedRank, paces: dict[int, list[float]], typical: float) -> bool:
    pace = paces.get(rank.rank, [])
    above = sum(one >= (1 + SLOWER) * typical for one in pace)
    return bool(pace) and (rank.slower or 0.0) >= SLOWER and above >= MOSTLY * len(pace)


def _whole_hosts(seen: Sequence[WatchedRank], slow: Sequence[WatchedRank]) -> dict[str, list[WatchedRank]]:
    """Hosts with several ranks that are all slow, where there is more than one host."""
    number, by_host = Counter(rank.host for rank in seen), defaultdict(list)
    for rank in slow:
        by_host[rank.host].append(rank)
    return {host: some for host, some in by_host.items() if len(some) == number[host] > 1 and len(number) > 1}


def _since(lines: Sequence[Sample], typical: float) -> float:
    """Seconds for which the newest of its lines have been slow without a break."""
    first = lines[-1].at
    for line in reversed([line for line in lines if line.step_ns is not None]):
        if _own(line) < (1 + SLOWER / 2) * typical:
            break
        first = line.at - line.every
    return max(0.0, lines[-1].at - first)


def _throttled(seen: Sequence[WatchedRank]) -> list[Finding]:
    """A reason that holds for most GPUs is said once: at full load, a power cap holds all of them down."""
    readable = [rank for rank in seen if rank.core is not None or rank.power is not None or rank.throttled]
    by_reason: dict[str, list[WatchedRank]] = defaultdict(list)
    for rank in readable:
        for reason, share in rank.throttled.items():
            if share >= 0.5:
                by_reason[reason].append(rank)
    found = []
    for reason, some in by_reason.items():
        if len(some) > 1 and 2 * len(some) > len(readable):
            clock = _median(rank.core for rank in some)
            at = f" at a median clock of {_clock(clock)}" if clock else ""
            text = f"{len(some)} of {len(readable)} GPUs are throttled ({reason}){at}"
            found.append(Finding(kind="throttled", ranks=[rank.rank for rank in some], text=text))
            continue

        def sentence(rank: WatchedRank, reason: str = reason) -> str:
            others = _median(other.core for other in readable if other.gpu == rank.gpu and other is not rank)
            beside = f", and the median of the others {_clock(others)}" if others else ""
            runs = f": its clock is {_clock(rank.core)}{beside}" if rank.core else ""
            return f"the GPU of {_name(rank)} is throttled ({reason}){runs}"

        found += _told("throttled", some, sentence)
    return found


def _slow_clocks(seen: Sequence[WatchedRank]) -> list[Finding]:
    """GPUs whose driver gives no reason, beside three or more of their kind."""
    found = []
    kinds = defaultdict(list)
    for rank in seen:
        if rank.core and rank.step_ns is not None:
            kinds[rank.gpu].append(rank)
    for some in kinds.values():
        middle = statistics.median(rank.core or 0.0 for rank in some)
        slow = [
            rank
            for rank in some
            if len(some) > LEAST and not rank.throttled and (rank.core or 0.0) < SLOW_CLOCK * middle
        ]

        def sentence(rank: WatchedRank, middle: float = middle) -> str:
            return f"the GPU of {_name(rank)} runs at {_clock(rank.core)}, the median of its kind at {_clock(middle)}, and its driver gives no reason"

        found += _told("slow clock", slow, sentence)
    return found


def _notes(seen: Sequence[WatchedRank], last: Sample, costs: Sequence[float]) -> Iterable[str]:
    if last.world > 1 and any(rank.step_ns for rank in seen) and not any(rank.own_ns for rank in seen):
        yield (
            "Rung does not know each rank's own pace, so a slow rank looks like the ranks that wait for it: pass the model that "
            "DistributedDataParallel wraps to rung.watch(model)"
        )
    if last.world > 1 and last.broadcasts:
        yield (
            "DDP broadcasts the model's buffers before each forward, which can hide a rank that is late before it: "
            "if no buffer changes in training, pass broadcast_buffers=False to DistributedDataParallel"
        )
    if costs and statistics.median(costs) > DEAR:
        yield f"watching costs {statistics.median(costs):.1%} of the time: write less often, with rung.watch(every=30)"


def _told(kind: Kind, ranks: Sequence[WatchedRank], sentence: Callable[[WatchedRank], str]) -> list[Finding]:
    """A sentence for each of the first few, and one for the rest."""
    found = [Finding(kind=kind, ranks=[rank.rank], text=sentence(rank)) for rank in ranks[:FEW]]
    if rest := ranks[FEW:]:
        listed = ", ".join(str(rank.rank) for rank in rest[:FEW]) + (" and others" if len(rest) > FEW else "")
        text = f"the same ({kind}) is true of {len(rest)} more: {_plural(len(rest))} {listed}"
        found.append(Finding(kind=kind, ranks=[rank.rank for rank in rest], text=text))
    return found


def _name(rank: WatchedRank) -> str:
    return f"rank {rank.rank} on {rank.host}"


def _at(rank: WatchedRank) -> str:
    return f" (at {rank.stands})" if rank.stands else ""


def _plural(number: int) -> str:
    return "rank" if number == 1 else "ranks"


def _seconds(value: float) -> str:
    whole = round(value)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min"


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _clock(mhz: float | None) -> str:
    return f"{(mhz or 0.0) / 1e3:.2f} GHz"
