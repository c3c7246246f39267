"""Merges the answers of a job's ranks into one: the slowest rank decides how long a step takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Answers = Sequence[Any]


def merge_answers(method: str, answers: Answers) -> Any:
    """One answer to a call of a method. answers: of all ranks, in their order."""
    return _RULES.get(method, _first)(answers)


def _first(answers: Answers) -> Any:
    """Of what is the same on all ranks."""
    return answers[0]


def _largest(answers: Answers) -> Any:
    """A number, or the largest of each of several by name."""
    if not isinstance(answers[0], dict):
        return max(answers)
    return {name: max(answer[name] for answer in answers) for name in answers[0]}


def _sentences(answers: Answers) -> list[str]:
    """Sentences of all ranks, each once."""
    return list(dict.fromkeys(sentence for answer in answers for sentence in answer))


def _warm(answers: Answers) -> dict[str, Any]:
    """Its samples are those of the slowest rank already (`Timed._until_steady`)."""
    memory = _largest([answer["memory"] for answer in answers])
    said = {
        name: _sentences([answer[name] for answer in answers]) for name in ("doubts", "apart") if name in answers[0]
    }
    return {**answers[0], "memory": memory, **said}


def _disturbances(answers: Answers) -> dict[str, Any]:
    return {**answers[0], "compiled": max(answer["compiled"] for answer in answers)}


def _timer(answers: Answers) -> dict[str, Any]:
    return {**answers[0], "sample_ns": max(answer["sample_ns"] for answer in answers)}


def _block(answers: Answers) -> dict[str, Any]:
    """A step has ended where the last rank has ended it."""
    steps = [max(of_one_step) for of_one_step in zip(*(answer["samples"] for answer in answers), strict=True)]
    outside, compiled = (max(answer[name] for answer in answers) for name in ("outside", "compiled"))
    cores = [answer["cores"] for answer in answers]
    total = {name: sum(c[name] for c in cores) for name in cores[0]} if all(cores) else None
    found = {**answers[0], "samples": steps, "outside": outside, "compiled": compiled, "cores": total}
    found.pop("drawn", None)  # each rank's own (`over_ranks.py`)
    return found


def _witness(answers: Answers) -> dict[str, Any]:
    """What any of them shows."""
    unseen = [answer["unseen"] for answer in answers if answer["unseen"]]
    failures = _sentences([answer["failures"] for answer in answers])
    return {**answers[0], "failures": failures, "unseen": max(unseen, default=None)}


def _verify(answers: Answers) -> dict[str, Any]:
    """All ranks have to agree. What all of them say is said once, the rest with the rank that said it."""
    everywhere = set.intersection(*(set(answer["failures"]) for answer in answers))
    failures = [said for said in answers[0]["failures"] if said in everywhere]
    failures += [
        f"rank {k}: {s}" for k, answer in enumerate(answers) for s in answer["failures"] if s not in everywhere
    ]
    worst = max((answer["worst"] for answer in answers if answer["worst"]), key=_times_tolerance, default=None)
    return {
        **answers[0],
        "passed": all(answer["passed"] for answer in answers),
        "checks": sum(answer["checks"] for answer in answers),
        "precisions": [f"{name} over {len(answers)} ranks" for name in answers[0]["precisions"]],
        "failures": failures,
        "worst": worst,
        "memory": _largest([answer["memory"] for answer in answers]),
    }


def _times_tolerance(check: dict[str, Any]) -> float:
    """How many times its tolerance a comparison is off; null stands for what is not finite."""
    error, tolerance = check["error"], check["tolerance"]
    return math.inf if error is None or tolerance is None else float(error / tolerance)


_RULES: dict[str, Callable[[Answers], Any]] = {
    "first": _largest,
    "estimate": _largest,
    "memory": _largest,
    "in_use": _largest,
    "disturbances": _disturbances,
    "doubts": _sentences,
    "warm": _warm,
    "use_shape": _warm,
    "witness": _witness,
    "verify": _verify,
    "timer": _timer,
    "block": _block,
}
