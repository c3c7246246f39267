"""Ways to show that a rung is in effect: a counter of the trace, a name in it, or what the worker says of itself."""

from __future__ import annotations

import re
from collections.abc import Callable

from rung.rungs.rung import Counters, Evidence, Proof

Prove = Callable[[Evidence], Proof]


def rewritten(name: str) -> Prove:
    """The pass of this name found something to rewrite in the graphs that the candidate runs."""

    def proof(e: Evidence) -> Proof:
        count = int(e.worker.get("matches", {}).get(name, 0))
        return Proof(count > 0, f"{count} rewritten in the captured graphs")

    return proof


def fewer(counter: str, what: str, left: float = 1.0) -> Prove:
    """A counter of the trace (launches, kernels, gemms) fell, to less than `left` of what it was."""

    def proof(e: Evidence) -> Proof:
        if not e.before or not e.after:
            return Proof(None, "no trace of both sides")
        old, new = getattr(e.before, counter), getattr(e.after, counter)
        if not old:
            return Proof(None, f"the trace counts no {what}")
        return Proof(new < left * old, f"{old:.0f} -> {new:.0f} {what} a step")

    return proof


def more_often(pattern: str, what: str) -> Prove:
    """Kernels, operators or runtime calls whose names match are more frequent than before, or came in."""

    def proof(e: Evidence) -> Proof:
        if not e.after:
            return Proof(None, "no trace of the candidate")
        old, new = _occurrences(e.before, pattern) if e.before else 0.0, _occurrences(e.after, pattern)
        return Proof(new > old, f"{old:.0f} -> {new:.0f} {what} a step")

    return proof


def less_often(pattern: str, what: str) -> Prove:
    """Kernels whose names match were there and are fewer now, or gone."""

    def proof(e: Evidence) -> Proof:
        if not e.before or not e.after:
            return Proof(None, "no trace of both sides")
        old, new = _occurrences(e.before, pattern), _occurrences(e.after, pattern)
        return Proof(new < old, f"{old:.0f} -> {new:.0f} {what} a step")

    return proof


def occurs(pattern: str, what: str) -> Prove:
    """Names that match are there, as often as they may have been before: what the rung replaces can show the same."""

    def proof(e: Evidence) -> Proof:
        if not e.after:
            return Proof(None, "no trace of the candidate")
        count = _occurrences(e.after, pattern)
        return Proof(count > 0, f"{count:.0f} {what} a step")

    return proof


def reported(key: str, wanted: object, what: str) -> Prove:
    """The candidate's worker found this value in effect in its own process."""

    def proof(e: Evidence) -> Proof:
        if key not in e.worker:
            return Proof(None, f"the worker says nothing of {what}")
        value = e.worker[key]
        return Proof(value == wanted, f"{what} is {value} in the worker")

    return proof


def less_memory(e: Evidence) -> Proof:
    """At its peak the candidate has less memory in use."""
    before, after = (e.memory.get(side, {}).get("allocated") for side in ("best", "candidate"))
    if not before or not after:
        return Proof(None, "the peak of memory is not known on this device")
    return Proof(after < before, f"{before / 2**30:.2f} -> {after / 2**30:.2f} GiB at the peak")


def counted(key: str, what: str) -> Prove:
    """The candidate's worker counted at least one."""

    def proof(e: Evidence) -> Proof:
        count = int(e.worker.get(key, 0))
        return Proof(count > 0, f"{count} {what} in the worker")

    return proof


def all_of(*proofs: Prove) -> Prove:
    """All of them: one that fails decides; what cannot be told does not stand in the way of what can."""

    def proof(e: Evidence) -> Proof:
        results = [prove(e) for prove in proofs]
        known = [result.shown for result in results if result.shown is not None]
        return Proof(all(known) if known else None, "; ".join(result.says for result in results))

    return proof


def _occurrences(counters: Counters, pattern: str) -> float:
    return sum(n for name, n in counters.names.items() if re.search(pattern, name))
