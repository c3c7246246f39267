"""Gradients beside a kink: a value next to it (ReLU at zero, the two largest of a pool) is on the one side or the other by rounding alone.

What goes to the other side changes gradients by far more than rounding does, in the candidate or in the untouched model. By how much shows
in the untouched model's own gradients once its weights are moved by as many times an ulp as a candidate may be times off. Outputs and
losses have kinks and no jumps, and are judged as ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from rung.verify.observe import GRADIENT, Row
from rung.verify.reference import jittered
from rung.verify.tolerance import ALLOWED, MEDIAN

DRAWS = 8  # a kink that rounding may reach is crossed in one in four of them, and more (a small convolutional network)
TIMES = 2  # what one draw shows: another crosses as many again
MOST = 0.02  # of a gradient that is believed to come of kinks: a mistake changes more
OF_KINKS = (GRADIENT, "change of ")

Moves = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def beside_kinks(found: list[Row], moved: Callable[[Moves], list[Row]]) -> list[Row]:
    """The rows of one case in full precision, those that would be refused with what kinks may change of them (`Row.kink`).

    moved: the rows of that case with the untouched model in the candidate's place, from weights that its argument moves.
    """
    late = [row for row in found if _off(row)]
    if not late or any(row.error > MOST for row in late):
        return found
    crossed = {row.what: 0.0 for row in late}
    for draw in range(DRAWS):
        for row in moved(partial(jittered, seed=draw, times=ALLOWED["exact"])):
            if row.what in crossed and math.isfinite(row.error):
                crossed[row.what] = min(max(crossed[row.what], TIMES * row.error), MOST)
        if all(row.error <= crossed[row.what] for row in late):
            break
    return [replace(row, kink=crossed.get(row.what, 0.0)) for row in found]


def _off(row: Row) -> bool:
    """Whether it would be refused, and kinks could be why."""
    allowed = ALLOWED["exact"] * max(row.noise, MEDIAN * row.beside)
    return row.what.startswith(OF_KINKS) and allowed < min(row.error, MOST)
