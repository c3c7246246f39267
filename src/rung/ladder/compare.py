"""Is B faster than A, and does it compute the same? Two sides in fresh processes, interleaved, until it is clear."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rung.errors import UsageError
from rung.ladder.duel import Duel, Limits, Setup, Side, SideFailed, fight, open_worker
from rung.ladder.verification import joined
from rung.launch import WorkerFailed
from rung.measure import COMPARE

NAMES = {"best": "A", "candidate": "B"}
# What may differ between two runs of one environment.
VOLATILE = ("time",)


def compare(
    a: Side,
    b: Side,
    *,
    device: str | None = None,
    margin: float = 0.01,
    verify: bool = False,
    budget: float | None = None,
    deadline: float = 900.0,
    logs: Path | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Restarts A and B side by side until B is shown to be faster, slower or the same within `margin` (a share).

    verify: first shows that B computes what A computes; where it does not, nothing is timed. budget: seconds after
    which no further restart begins; what is not clear by then is `inconclusive`.

    Returns plain values: verdict (faster, slower, same, inconclusive, not equal), comparison (speedup of B over A
    with its interval, confidence, the smallest visible change), times and restarts (ns a step), memory (bytes),
    verification, and what differs between the environments. Raises WorkloadError where a side fails, by name.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rung-compare-") as folder:
        setup = Setup(device, logs or Path(folder), Limits(prepare=deadline))
        result: dict[str, Any] = {"kind": "compare", "a": _described(a), "b": _described(b), "margin": margin}
        if verify:
            say("verifying that B computes what A computes ...")
            result["verification"] = _verified(setup, a, b)
            if not result["verification"]["passed"]:
                return {**result, "verdict": "not equal", "seconds": time.monotonic() - began}

        def seen(duel: Duel) -> None:
            ratios = [r.log_ratio() for r in duel.restarts]
            say(f"restart {len(ratios)}: B is {_percent(ratios[-1])} than A")

        def left() -> float:
            return float("inf") if budget is None else budget - (time.monotonic() - began)

        try:
            duel = fight(setup, a, b, log="compare", left=left, looks=COMPARE, margin=margin, seen=seen)
        except SideFailed as failure:
            raise WorkerFailed(f"{NAMES[failure.side]}: {failure}", failure.error.kind, exit_code=failure.error.exit_code) from failure  # fmt: skip
    found = duel.as_dict()
    answer = found["comparison"]["answer"]
    for key in ("times", "memory", "first_run_seconds"):
        found[key] = {NAMES[side].lower(): value for side, value in found[key].items()}
    return {
        **result,
        "verdict": "inconclusive" if answer == "undecided" else answer,
        "comparison": found["comparison"],
        "times": found["times"],
        "memory": found["memory"],
        "first_run_seconds": found["first_run_seconds"],
        "restarts": [{"a": r["best"], "b": r["candidate"]} for r in duel.samples],
        "warnings": [_named(w) for w in found["warnings"]],
        "environment": duel.environments["candidate"],
        "differs": _differences(duel.environments["best"], duel.environments["candidate"]),
        "seconds": time.monotonic() - began,
    }


@contextmanager
def at_revision(side: Side, revision: str) -> Iterator[Side]:
    """The same side from another git revision of the repository around the current directory.

    The revision is checked out into a worktree beside the repository's own files, which stay as they are; its
    root, and `src` in it, come first on the workers' PYTHONPATH.
    """
    root = Path(_git(Path.cwd(), "rev-parse", "--show-toplevel"))
    here = Path.cwd().resolve().relative_to(root.resolve())
    commit = _git(root, "rev-parse", "--verify", f"{revision}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="rung-base-") as folder:
        tree = Path(folder) / "tree"
        _git(root, "worktree", "add", "--detach", str(tree), commit)
        try:
            path = f"{tree}:{tree / 'src'}"
            yield replace(side, cwd=tree / here, env={**side.env, "PYTHONPATH": path})
        finally:
            _git(root, "worktree", "remove", "--force", str(tree))


def _git(where: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(where), *arguments], capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        raise UsageError(f"git {arguments[0]} in {where}: {said}; --base needs a git repository and a revision of it.")
    return done.stdout.strip()


def _verified(setup: Setup, a: Side, b: Side) -> dict[str, Any]:
    same = (a.target, a.options) == (b.target, b.options)
    if a.cwd != b.cwd:
        raise UsageError("--verify compares within one revision; with --base, leave one of the two out.")
    found: list[dict[str, Any]] = []
    against = None if same else {"target": a.target, "options": a.options}
    with ExitStack() as stack:
        worker = open_worker(stack, setup, b, "verify")
        worker.receive("open", setup.limits.prepare)
        for numerics in worker.call("precisions", setup.limits.prepare):
            found.append(worker.call("verify", setup.limits.prepare, numerics=numerics, against=against))
            if not found[-1]["passed"]:
                break
    return joined(found)


def _described(side: Side) -> dict[str, Any]:
    return {"target": side.target, "options": side.options, "rungs": list(side.rungs), "env": side.env}


def _differences(a: dict[str, Any], b: dict[str, Any]) -> dict[str, list[Any]]:
    return {k: [a.get(k), b.get(k)] for k in {**a, **b} if k not in VOLATILE and a.get(k) != b.get(k)}


def _named(warning: str) -> str:
    for side, name in NAMES.items():
        warning = warning.replace(side, name)
    return warning


def _percent(log_ratio: float) -> str:
    import math

    change = math.expm1(abs(log_ratio))
    return f"{change:.1%} {'faster' if log_ratio >= 0 else 'slower'}"
