"""Is B faster than A, and does it compute the same? Sides in fresh processes, interleaved, until it is clear."""

from __future__ import annotations

import logging
import math
import os
import statistics
import string
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from rung.errors import UsageError
from rung.hardware.environment import differences
from rung.launch import WorkerFailed, log_folder
from rung.measure import COMPARE, Restart
from rung.plan import in_words
from rung.quantities import ratio
from rung.recipes.compatibility import no_match_message
from rung.records.compare import ComparedSide, Comparison, Ranked, Ranking
from rung.records.measured import Compared, Verification
from rung.records.record import plain, record_of
from rung.runs import temporary_folder
from rung.side import Launcher, Limits, Setup, Side
from rung.timing.ab_run import ABRun
from rung.timing.interleaved import run_interleaved
from rung.timing.timed import Warmed
from rung.timing.worker_group import SideFailed
from rung.timing.workers import open_worker
from rung.verify.verdict import joined
from rung.workload.load import KERNELBENCH

progress = logging.getLogger(__name__)

CHECKOUT = "rung-base-"  # begins the name of the temporary folder that a revision is checked out into
LETTERS = string.ascii_uppercase
T = TypeVar("T")
UNITS = {"times": "ns", "restarts": "ns", "first_run_seconds": "s", "memory": "bytes"}  # a time is that of one step


def compare(
    *sides: Side,
    device: str | None = None,
    margin: float = 0.01,
    verify: bool = False,
    budget: float | None = None,
    deadline: float = 900.0,
    logs: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
    launcher: Launcher | None = None,
) -> Comparison | Ranking:
    """Restarts the sides (A, B and so on) together until each pair is shown to differ, or to be the same within
    `margin` (a share).

    verify: first shows that all compute what A computes; where one does not, nothing is timed. budget: seconds after
    which no further restart begins; what is not clear by then is `inconclusive`. launcher: of the ranks of each side, where a side is to be
    more than one process; results are compared in one. Raises WorkloadError where a side fails, by name.
    """
    if not 2 <= len(sides) <= len(LETTERS):
        raise UsageError(f"a comparison needs 2 to {len(LETTERS)} sides; {len(sides)} were given.")
    named = dict(zip(LETTERS, sides, strict=False))
    began = time.monotonic()
    with log_folder("rung-compare-") as folder:
        until = math.inf if budget is None else began + budget
        setup = Setup(device, logs or folder, Limits(prepare=deadline), launcher=launcher, until=until)
        recorded = {name: _recorded(side) for name, side in named.items()}
        verification: Verification | UnsetType = UNSET
        if verify:
            for k, name in enumerate(list(named)[1:]):
                say(f"verifying that {name} computes what A computes ...")
                verification = verified(setup, sides[0], named[name], audited=k > 0)
                if not verification.passed:
                    return document(
                        recorded,
                        margin=margin,
                        results_compared=verify,
                        verdict="not equal",
                        not_equal=name,
                        verification=verification,
                        seconds=time.monotonic() - began,
                    )

        timing = time.monotonic()
        ended = [timing]  # restarts
        so_far: list[Restart] = []

        def seen(ab_run: ABRun) -> None:
            ratios = [
                f"{name} is {_ratio(ab_run.restarts[-1].log_ratio(0, k))} as fast as A"
                for k, name in enumerate(named)
                if k
            ]
            say(f"restart {len(ab_run.restarts)}: {', '.join(ratios)}")
            ended.append(time.monotonic())
            so_far[:] = ab_run.restarts
            if len(ab_run.restarts) == 2 and budget is None and (told := how_long(ended[-1] - ended[-2])):
                say(told)
            if len(ab_run.restarts) == 1 and budget is not None:
                first = time.monotonic() - timing
                if told := too_short(budget - (timing - began), first):
                    say(told)

        def left() -> float:
            return until - time.monotonic()

        try:
            ab_run = run_interleaved(setup, named, log="compare", left=left, looks=COMPARE, margin=margin, seen=seen)
        except KeyboardInterrupt:
            for k, name in enumerate(list(named)[1:] if so_far else (), start=1):
                say(stopped_at(name, [restart.log_ratio(0, k) for restart in so_far]))
            raise
        except SideFailed as failure:
            e = failure.error
            raise WorkerFailed(f"{failure.side}: {failure}", e.kind, e.traceback, e.exit_code) from failure
    found = ab_run.record()
    environments = list(ab_run.environments.values())
    cpu = ab_run.by_cpu_time(looks=COMPARE) if len(sides) == 2 else None
    answer = found.comparison or found.ranking
    assert answer is not None
    return document(
        recorded,
        answer,
        margin=margin,
        results_compared=verify,
        verdict=verdict_of(answer),
        verification=verification,
        unit="restart",
        ranks=ab_run.ranks or UNSET,
        times=lowered(found.times),
        memory=lowered(found.memory),
        first_run_seconds=lowered(found.first_run_seconds),
        waited=lowered(found.waited),
        cpu_time=record_of(Compared, cpu) if cpu else None,
        restarts=[lowered(r) for r in ab_run.samples],
        warnings=[*found.warnings, *idle(named, ab_run.warm[0]), *(unseen_variables(named) if verify else [])],
        environment=environments[-1],
        differs=differences([plain(environment) for environment in environments]),
        seconds=time.monotonic() - began,
    )


def failure(result: Comparison | Ranking, slower: float | None, inconclusive: bool) -> str:
    """Why a job that asked for this comparison fails, as a sentence; empty where it does not. slower: the share by which B may not be
    slower, if any; inconclusive: whether it fails where that cannot be told."""
    if result.verdict == "not equal":
        return f"{result.not_equal or 'B'} does not compute what A computes."
    if inconclusive and result.verdict == "inconclusive":
        return "the comparison ended before it was clear whether B is slower (--fail-if-inconclusive)."
    if slower is None or result.verdict != "slower" or not isinstance(result, Comparison) or not result.comparison:
        return ""
    by = 1 / result.comparison.speedup.value - 1
    return f"B is {by:.1%} slower than A, and {slower:.1%} is the limit." if by >= slower else ""


def stopped_at(name: str, log_ratios: Sequence[float]) -> str:
    """What restarts had shown of a side when the comparison was stopped: no verdict."""
    mean, count = statistics.fmean(log_ratios), len(log_ratios)
    said = f"stopped after {count} restart{'' if count == 1 else 's'}: {name} was {_ratio(mean)} as fast as A"
    if count > 1:
        said += f" on average, and from {_ratio(min(log_ratios))} to {_ratio(max(log_ratios))}"
    few = count < COMPARE[0][0]
    return f"{said}; {f'a verdict needs at least {COMPARE[0][0]} restarts' if few else 'that was not clear yet'}"


def how_long(restart: float) -> str:
    """What to say of a comparison without a budget that may take minutes; empty where it will not. restart: seconds of one that finds compiled
    code in the cache."""
    fewest, most = (looks[0] * restart / 60 for looks in (COMPARE[0], COMPARE[-1]))
    if most < 1:
        return ""
    return (
        f"a restart takes {restart:.0f} s, and {COMPARE[0][0]} to {COMPARE[-1][0]} are needed, more where the sides are close: "
        f"{max(1, round(fewest))} to {math.ceil(most)} minutes in all. --budget SECONDS ends it sooner"
    )


def too_short(budget: float, restart: float) -> str:
    """What to say of a budget in which no verdict can be reached; empty where one can. budget, restart: seconds; later restarts find
    compiled code in the cache and take no longer than the first."""
    needed = COMPARE[0][0]
    if needed * restart <= budget:
        return ""
    fit = max(1, int(budget // restart))
    return (
        f"the budget allows about {fit} restart{'' if fit == 1 else 's'} of {restart:.0f} s; the earliest verdict needs {needed}, "
        f"about {needed * restart:.0f} s: give --budget {math.ceil(1.2 * needed * restart)} or more"
    )


def document(
    sides: Mapping[str, ComparedSide], answer: Compared | Ranked | UnsetType = UNSET, **fields: Any
) -> Comparison | Ranking:
    """The record of a comparison: two sides are `a` and `b`, more are a table of their own. fields: those that both have in common."""
    if len(sides) == 2:
        return Comparison(units=UNITS, **lowered(sides), comparison=answer, **fields)  # type: ignore[arg-type]
    return Ranking(units=UNITS, sides=lowered(sides), ranking=answer, **fields)  # type: ignore[arg-type]


def verdict_of(answer: Compared | Ranked) -> str:
    if isinstance(answer, Compared):
        return "inconclusive" if answer.answer == "undecided" else answer.answer
    return "inconclusive" if any(pair.answer == "undecided" for pair in answer.pairs) else "ranked"


def idle(sides: Mapping[str, Side], warm: Mapping[str, Warmed]) -> list[str]:
    """What to say of rewrites that a side was given and that found nothing in its graph. warm: what its worker said."""
    said = []
    for side, state in warm.items():
        applied = state.applied
        for name in (n for n, count in applied.get("matches", {}).items() if not count and n in sides[side].rungs):
            said.append(f"{side}: {no_match_message(name, applied['skipped'])}")
    return said


def unseen_variables(sides: Mapping[str, Side]) -> list[str]:
    """What to say of sides that were verified and differ in variables: each was verified in one process with A, which had that side's."""
    first, *others = (set(_recorded(side).env.items()) for side in sides.values())
    differ = (
        (name, sorted({key for key, _ in env ^ first})) for name, env in zip(list(sides)[1:], others, strict=True)
    )
    return [
        f"A and {name} were verified in one process with {name}'s variables, so what {', '.join(keys)} "
        f"{'changes' if len(keys) == 1 else 'change'} in the results was not compared"
        for name, keys in differ
        if keys
    ]


def lowered(record: Mapping[str, T]) -> dict[str, T]:
    return {name.lower(): value for name, value in record.items()}


@contextmanager
def at_revision(side: Side, revision: str) -> Iterator[Side]:
    """The same side from another git revision of the repository around the current directory.

    The revision is checked out into a worktree beside the repository's own files, which stay as they are; its
    root, and `src` in it, come first on the workers' PYTHONPATH.
    """
    root = Path(_git(Path.cwd(), "rev-parse", "--show-toplevel"))
    here = Path.cwd().resolve().relative_to(root.resolve())
    commit = _git(root, "rev-parse", "--verify", f"{revision}^{{commit}}")
    with temporary_folder(CHECKOUT) as folder:
        _forget_checkouts(root)
        tree = folder / "tree"
        _git(root, "worktree", "add", "--detach", str(tree), commit)
        try:
            before = side.env.get("PYTHONPATH") or os.environ.get("PYTHONPATH")
            path = os.pathsep.join(filter(None, [*_roots(tree), before]))
            target = _in(tree, root.resolve(), side.target)
            env = {**side.env, "PYTHONPATH": path}
            yield replace(side, target=target, cwd=tree / here, env=env, revision=revision)
        finally:
            _git(root, "worktree", "remove", "--force", str(tree))


def _roots(folder: Path | None) -> list[str]:
    """Where the checkout around a folder has its packages."""
    root = _git(folder or Path.cwd(), "rev-parse", "--show-toplevel")
    return [root, os.path.join(root, "src")]


def _forget_checkouts(root: Path) -> None:
    """Has git forget the worktrees of runs that were killed, whose folders are gone."""
    for line in _git(root, "worktree", "list", "--porcelain").splitlines():
        tree = Path(line.removeprefix("worktree "))
        if line.startswith("worktree ") and tree.parent.name.startswith(CHECKOUT) and not tree.parent.exists():
            _git(root, "worktree", "remove", "--force", str(tree))


def _in(tree: Path, root: Path, target: str) -> str:
    """A target as the checkout in `tree` has it: the file of an absolute path would be the one of today."""
    if target.startswith(KERNELBENCH):
        before, where, after = KERNELBENCH, target.removeprefix(KERNELBENCH), ""
    else:
        where, colon, name = target.rpartition(":")
        before, after = "", colon + name
    if not where.endswith(".py"):
        return target
    file = Path(os.path.normpath(Path(where).parent.resolve() / Path(where).name))
    if not file.is_relative_to(root):
        raise UsageError(f"{where} lies outside the repository {root}; --base needs a target that its revisions have.")
    return f"{before}{tree / file.relative_to(root)}{after}" if Path(where).is_absolute() else target


def _git(where: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(where), *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        raise UsageError("--base needs git, which was not found: install it, or put it on the PATH.") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        raise UsageError(f"git {arguments[0]} in {where}: {said}; --base needs a git repository and a revision of it.")
    return done.stdout.strip()


def verified(setup: Setup, a: Side, b: Side, audited: bool = False) -> Verification:
    """Whether b computes what a computes, in full precision and in the lowest that it runs in. Raises where that cannot be told, because
    a's results depend on chance or on the calls before, or are not finite; audited: that was asked already."""
    if a.call or b.call:
        raise UsageError(
            "--verify compares workloads; plain functions (--call) are timed only, unless --inputs makes arguments for them."
        )
    found: list[Verification] = []
    against: dict[str, Any] | None = None
    if (a.target, a.options, a.cwd) != (b.target, b.options, b.cwd):
        against = {"target": a.target, "options": a.options, "before": b.target}
    if against and a.cwd != b.cwd:
        roots, before = _roots(a.cwd), _roots(b.cwd)
        against |= {"folder": str(a.cwd or ""), "roots": roots, "roots_before": before}
    with ExitStack() as stack:
        worker = open_worker(stack, setup, b, "verify")
        worker.receive("open", setup.limits.prepare)
        if not audited:
            progress.info("can A be verified?")
            worker.call("audit", setup.limits.prepare, against=against)
        for numerics in worker.call("precisions", setup.limits.prepare):
            progress.info("verifying in %s", in_words(numerics))
            answer = worker.call("verify", setup.limits.prepare, numerics=numerics, against=against)
            found.append(record_of(Verification, answer))
            if not found[-1].passed:
                break
    return joined(found)


def _recorded(side: Side) -> ComparedSide:
    """A side as it was asked for. The path of a revision's checkout is another in every run."""
    return ComparedSide(
        target=side.target,
        options=side.options,
        rungs=list(side.rungs),
        env={name: value for name, value in side.env.items() if not (side.revision and name == "PYTHONPATH")},
        original=side.original or UNSET,
        revision=side.revision or UNSET,
    )


def _ratio(log_ratio: float) -> str:
    """As the verdict has it: below 1 where B is the slower one."""
    return f"{ratio(math.exp(log_ratio))}×"
