"""How far off a candidate may be: a multiple of the untouched model's own error.

At a non-differentiable point a gradient may be off by more. A value next to one (a ReLU at zero, the two largest of a pool) lies on the one side or
the other by rounding alone. If it changes sides, in the candidate or in the untouched model, gradients jump by far more than rounding changes them.
How far shows in the untouched model's own gradients once its weights are moved: by as many times an ulp as a candidate may be times off, and by
more. Outputs and losses do not jump there, and get no such allowance.
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
JUMPING = (GRADIENT, "change of ")  # begin the names of the rows that jump at non-differentiable points
# Errors below this are rounding, whatever the untouched model's are: some ulp of float32, about half a unit roundoff of the others. Of TF32
# it is the whole one, 2^-11: cuDNN computes a 3-D convolution in float32 in the usual layout, and with TF32 channels-last, where 3.0e-4
# was seen on an H100. What is allowed in full precision is asked beside.
FLOOR = {"exact": 2e-6, "tf32": 2.0**-11, "bf16": 1e-3, "fp8": 0.02}
# The same of a workload in float64: some hundred ulp of it, and a hundred thousandth of what float32 would be off by.
FLOOR_DOUBLE = 1e-12


def judge(
    compared: Sequence[Row], numerics: Numerics, double: bool = False, untouched: Sequence[Row] = ()
) -> list[Check]:
    """A check with its tolerance for every row. double: the workload computes in float64 itself; untouched: rows of more cases, in which the
    untouched model alone was run (`unlucky`).

    A quantity's noise is the untouched model's worst error over the cases: one lucky case must not make a candidate wrong. A single number (the
    loss) may be right by chance, so half of its kind's median error counts, too. A gradient may be next to nothing beside others, so half of
    the median over gradients counts. Of what is nothing but rounding in the untouched model, more is allowed."""
    least = FLOOR_DOUBLE if double and numerics == "exact" else FLOOR[numerics]
    worst, medians = _worst_noise(compared), _median_noise(compared)
    checks = []
    for row in compared:
        if numerics == "tf32" and _kind(row.what).startswith("scale"):
            continue  # float32 cut off to TF32, not rounded, has a common factor
        usual = max(medians.get(_kind(row.what), 0.0) if not row.floor else 0.0, row.median_noise)
        own = max(worst.get(row.what, 0.0), _noise_elsewhere(row, untouched))
        noise = max(own, MEDIAN * usual)
        rounding_alone = own > ROUNDING_ALONE and row.what.startswith(GRADIENT)
        allowed = ALLOWED["exact" if rounding_alone else numerics]
        tolerance = max(allowed * noise, least, row.floor, row.jump)
        checks.append(Check(row.what, numerics, row.case, row.error, noise, tolerance, row.why))
    return checks


def _kind(what: str) -> str:
    """The kind of a quantity. Only quantities of one kind share a median error."""
    if what.endswith(")") and "elements" in what:  # of an output, and nothing of the whole ones is judged by them
        return what.split(" ")[0] + " elements"
    return "output" if what == "loss" or what.startswith("output") else what.split(" ")[0]


def _worst_noise(compared: Sequence[Row]) -> dict[str, float]:
    """Of every quantity, the untouched model's largest finite error over the cases."""
    worst: dict[str, float] = {}
    for row in compared:
        if math.isfinite(row.noise):
            worst[row.what] = max(worst.get(row.what, 0.0), row.noise)
    return worst


def _median_noise(compared: Sequence[Row]) -> dict[str, float]:
    """Of every kind, the median of the untouched model's finite errors."""
    by_kind: dict[str, list[float]] = {}
    for row in compared:
        if math.isfinite(row.noise):
            by_kind.setdefault(_kind(row.what), []).append(row.noise)
    return {kind: sorted(noises)[len(noises) // 2] for kind, noises in by_kind.items()}


def _noise_elsewhere(row: Row, untouched: Sequence[Row]) -> float:
    """The untouched model's worst error of this quantity in more cases. It is a share of the quantity's size there, or here if that is less: a
    single number, as the mean of an output, may come out next to zero in some case, and any error is many times that."""
    return max(
        (
            other.noise * (min(1.0, other.size / row.size) if row.size else 1.0)
            for other in untouched
            if other.what == row.what and math.isfinite(other.noise)
        ),
        default=0.0,
    )


def unlucky(compared: Sequence[Row], checks: Sequence[Check]) -> set[str]:
    """The quantities that a candidate is refused for, if all of them are of few numbers: the loss, the scale of an output, a gradient of few
    elements. Of these the untouched model's error may be small by luck in all the cases, as three errors of one number are. So it is run on more."""
    few = {row.what for row in compared if row.few}
    refused = [check for check in checks if not check.passed]
    if all(check.what in few and math.isfinite(check.error) for check in refused):
        return {check.what for check in refused}
    return set()


# Of weights, for each of MOVED. A non-differentiable point that rounding may reach is crossed in one in four of them, and more (a small
# convolutional network).
DRAWS = 8
# Times an ulp that weights are moved by: as many as a candidate may be times off. Then by more, since a batch norm takes out most of what moved weights
# do to its input, and not what another program rounds within it (a variational autoencoder's decoder on a CPU was moved across nothing by 30).
MOVED = (ALLOWED["exact"], 100.0)
JUMP = 3.0  # times what weights moved by so much change of a smooth gradient: a larger change is a jump
TIMES = 2  # what one draw shows: another crosses as many again
MOST = 0.02  # of a gradient that a jump is believed to change: a mistake changes more

Moves = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def allow_jumps(compared: list[Row], moved: Callable[[Moves], list[Row]]) -> list[Row]:
    """The rows of one case in full precision. Those that would be refused are given what non-differentiable points may change of them (`Row.jump`).

    moved: makes the rows of that case with the untouched model in the candidate's place, from weights that its argument moves.
    """
    refused = [row for row in compared if _may_be_jump(row)]
    if not refused or any(row.error > MOST for row in refused):
        return compared
    jumps = {row.what: 0.0 for row in refused}
    smooth = {row.what: math.inf for row in refused}  # what weights moved by an ulp change, at most, without a jump
    for draw in range(DRAWS * len(MOVED)):
        times = MOVED[draw // DRAWS]
        for row in moved(partial(jittered, seed=draw, times=times)):
            if row.what not in jumps or not math.isfinite(row.error):
                continue
            if times == MOVED[0]:
                smooth[row.what] = min(smooth[row.what], row.error / times)
            elif row.error < JUMP * times * smooth[row.what]:
                continue
            jumps[row.what] = min(max(jumps[row.what], TIMES * row.error), MOST)
        if all(row.error <= jumps[row.what] for row in refused):
            break
    return [replace(row, jump=jumps.get(row.what, 0.0)) for row in compared]


def _may_be_jump(row: Row) -> bool:
    """Whether it would be refused, and a non-differentiable point could be why."""
    allowed = ALLOWED["exact"] * max(row.noise, MEDIAN * row.median_noise)
    return row.what.startswith(JUMPING) and allowed < min(row.error, MOST)
