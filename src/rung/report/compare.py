"""A comparison on the terminal: the verdict first, then what it rests on."""

from __future__ import annotations

import math
from typing import Any

from rung.report import units

SENTENCES = {
    "faster": "B is faster than A",
    "slower": "B is slower than A",
    "same": "B is the same as A within",
    "inconclusive": "it is not clear whether B is faster than A",
    "not equal": "B does not compute what A computes",
}


def compare_lines(result: dict[str, Any]) -> list[str]:
    """The verdict, the two sides, memory, and what a reader must know to believe it."""
    verdict = result["verdict"]
    lines = [f"A  {_side(result['a'])}", f"B  {_side(result['b'])}"]
    proof = result.get("verification")
    if verdict == "not equal":
        return [*lines, f"{SENTENCES[verdict]}:", *(f"  {f}" for f in proof["failures"][:5])] if proof else lines
    comparison = result["comparison"]
    lines += [
        f"step   A {units.duration_interval(result['times']['a'])}, B {units.duration_interval(result['times']['b'])}",
        f"memory A {units.data_size(units.peak(result['memory']['a']))}, B {units.data_size(units.peak(result['memory']['b']))}",
    ]
    if proof:
        lines.append(f"equal  yes: {proof['checks']} comparisons of outputs, loss, gradients and weights ({', '.join(proof['precisions'])})")  # fmt: skip
    lines += [f"differs in {what}: {a} and {b}" for what, (a, b) in result["differs"].items()]
    lines += [f"note: {warning}" for warning in result["warnings"]]
    sentence = SENTENCES[verdict] + (f" {_share(result['margin'])}" if verdict == "same" else "")
    restarts = comparison["restarts"]
    lines.append(
        f"{sentence}: {units.interval(comparison['speedup'])} at {comparison['confidence']:.1%} confidence, "
        f"{restarts} restart{'s' if restarts != 1 else ''} of both."
    )
    visible = comparison["visible"]
    if visible is not None and math.isfinite(visible):
        lines.append(f"The smallest change that this could have seen: {_share(visible)}.")
    if verdict == "inconclusive":
        lines.append("Give it more time (--budget), or a machine with less noise, to see smaller changes.")
    return lines


def _side(side: dict[str, Any]) -> str:
    parts = [side["target"], *(f"--{k} {v}" for k, v in side["options"].items())]
    parts += [f"with {' + '.join(side['rungs'])}"] if side["rungs"] else []
    parts += [f"{k}={v}" for k, v in side["env"].items()]
    return units.clean(" ".join(parts))


def _share(value: float) -> str:
    return f"{100 * value:.2g} %"
