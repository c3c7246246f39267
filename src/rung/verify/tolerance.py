"""How far off a candidate may be: the untouched model's own error, some times over.

A gradient may be more than that beside a kink: a value next to one (ReLU at zero, the two largest of a pool) is on the one side or the other
by rounding alone. What goes to the other side changes gradients by far more than rounding does, in the candidate or in the untouched model.
By how much shows in the untouched model's own gradients once its weights are moved by as many times an ulp as a candidate may be times off, and by more.
Outputs and losses have kinks and no jumps, and are judged as ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from rung.plan import Numerics
from rung.verify.observe import GRADIENT, Row
from rung.verify.reference import jittered
from rung.verify.verdict import Check

# How many times the untouched model's own error a candidate may have. In full precision a re-ordered sum may
# well be ten times off while a real mistake is thousands; at low precision a mistake may be only ten times off.
# fp8 is judged by bfloat16's error, whose unit in the last place is 1/32 of FP8's: on sharp weights an honest product
# was seen at 8 times, a layer zeroed at 40 times of it.
ALLOWED = {"exact": 30.0, "tf32": 3.0, "bf16": 3.0, "fp8": 16.0}
# Times its size: a gradient of which the untouched model is off by more is nothing but rounding. Another program's may be many times as large,
# as a re-ordered sum's, so as much is allowed as in full precision. Of one bias of deberta-v3-base (training, bfloat16, H200) the untouched
# model was off by 40 and torch.compile by 740 times its gradient.
ROUNDING_ALONE = 1.0
# Half of the median error of its kind is any quantity's noise; of gradients, whatever their sizes: SDPA in the place of attention
# by hand needs a fifth of the median (seven architectures at toy size, in bfloat16).
MEDIAN = 0.5
OF_KINKS = (GRADIENT, "change of ")  # what rows of these are called: they alone have jumps at kinks
# Errors below this are rounding, whatever the untouched model's are: some ulp of float32, about half a unit roundoff of the others. Of TF32
# it is the whole one, 2^-11: cuDNN computes a 3-D convolution in float32 in the usual layout, and with TF32 channels-last, where 3.0e-4
# was seen on an H100. What is allowed in full precision is asked beside.
FLOOR = {"exact": 2e-6, "tf32": 2.0**-11, "bf16": 1e-3, "fp8": 0.02}
# The same of a workload in float64: some hundred ulp of it, and a hundred thousandth of what float32 would be off by.
FLOOR_DOUBLE = 1e-12


def judge(found: Sequence[Row], numerics: Numerics, double: bool = False, untouched: Sequence[Row] = ()) -> list[Check]:
    """A quantity's noise is the untouched model's worst error over the cases: one lucky case must not make
    a candidate wrong. A single number (the loss) may be right by chance, so its kind's median counts too; and a gradient is
    next to nothing beside others, so theirs does. One of which nothing but rounding is left may be off by more. double: the workload
    computes in float64 itself; untouched: rows of more cases, in which the untouched model alone was run (`unlucky`)."""
    least = FLOOR_DOUBLE if double and numerics == "exact" else FLOOR[numerics]

    def kind(what: str) -> str:
        if what.endswith(")") and "elements" in what:  # of an output, and nothing of the whole ones is judged by them
            return what.split(" ")[0] + " elements"
        return "output" if what == "loss" or what.startswith("output") else what.split(" ")[0]

    worst: dict[str, float] = {}
    by_kind: dict[str, list[float]] = {}
    for row in found:
        if math.isfinite(row.noise):
            worst[row.what] = max(worst.get(row.what, 0.0), row.noise)
            by_kind.setdefault(kind(row.what), []).append(row.noise)
    checks = []
    for row in found:
        if numerics == "tf32" and kind(row.what).startswith("scale"):
            continue  # float32 cut off to TF32, not rounded, has a common factor
        of_kind = sorted(by_kind.get(kind(row.what), [0.0]))
        usual = max(of_kind[len(of_kind) // 2] if not row.floor else 0.0, row.beside)
        own = max(worst.get(row.what, 0.0), _elsewhere(row, untouched))
        noise = max(own, MEDIAN * usual)
        rounding_alone = own > ROUNDING_ALONE and row.what.startswith(GRADIENT)
        allowed = ALLOWED["exact" if rounding_alone else numerics]
        tolerance = max(allowed * noise, least, row.floor, row.kink)
        checks.append(Check(row.what, numerics, row.case, row.error, noise, tolerance, row.why))
    return checks


def _elsewhere(row: Row, untouched: Sequence[Row]) -> float:
    """What the untouched model's worst error in more cases is of this row: as a share of its size there, or here if that is less. One number may
    come out next to zero in some case, as the mean of an output, and any error is many times that."""
    return max(
        (
            other.noise * (min(1.0, other.size / row.size) if row.size else 1.0)
            for other in untouched
            if other.what == row.what and math.isfinite(other.noise)
        ),
        default=0.0,
    )


def unlucky(found: Sequence[Row], checks: Sequence[Check]) -> set[str]:
    """What a candidate is refused for, where all of it is of few numbers: the loss, the scale of an output, a gradient of few elements. Of such
    the untouched model's error may be small by luck in all the cases, as three errors of one number are. So they are looked at in more."""
    few = {row.what for row in found if row.few}
    refused = [check for check in checks if not check.passed]
    if all(check.what in few and math.isfinite(check.error) for check in refused):
        return {check.what for check in refused}
    return set()


DRAWS = 8  # of each; a kink that rounding may reach is crossed in one in four of them, and more (a small convolutional network)
# Times an ulp that weights are moved by: as many as a candidate may be times off. Then by more, since a batch norm takes out most of what moved weights
# do to its input, and not what another program rounds within it (a variational autoencoder's decoder on a CPU was moved across nothing by 30).
MOVED = (ALLOWED["exact"], 100.0)
JUMP = 3.0  # times what weights moved by so much do to a gradient without any kink: what is more comes of one
TIMES = 2  # what one draw shows: another crosses as many again
MOST = 0.02  # of a gradient that is believed to come of kinks: a mistake changes more

Moves = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def beside_kinks(found: list[Row], moved: Callable[[Moves], list[Row]]) -> list[Row]:
    """The rows of one case in full precision, those that would be refused with what kinks may change of them (`Row.kink`).

    moved: the rows of that case with the untouched model in the candidate's place, from weights that its argument moves.
    """
    late = [row for row in found if _off(row)]
    if not late or any(row.error > MOST for row in late):
        return found
    crossed = {row.what: 0.0 for row in late}
    smooth = {row.what: math.inf for row in late}  # what weights moved by an ulp do, at most, where no kink is crossed
    for draw in range(DRAWS * len(MOVED)):
        times = MOVED[draw // DRAWS]
        for row in moved(partial(jittered, seed=draw, times=times)):
            if row.what not in crossed or not math.isfinite(row.error):
                continue
            if times == MOVED[0]:
                smooth[row.what] = min(smooth[row.what], row.error / times)
            elif row.error < JUMP * times * smooth[row.what]:
                continue
            crossed[row.what] = min(max(crossed[row.what], TIMES * row.error), MOST)
        if all(row.error <= crossed[row.what] for row in late):
            break
    return [replace(row, kink=crossed.get(row.what, 0.0)) for row in found]


def _off(row: Row) -> bool:
    """Whether it would be refused, and kinks could be why."""
    allowed = ALLOWED["exact"] * max(row.noise, MEDIAN * row.beside)
    return row.what.startswith(OF_KINKS) and allowed < min(row.error, MOST)
