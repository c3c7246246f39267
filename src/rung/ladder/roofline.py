"""The roofline lower bound of a step's time: its arithmetic at the best rate allowed, and the weights of its products read once."""

from __future__ import annotations

from rung.plan import CONTRACTS, Numerics, contract
from rung.records.climb import Floor
from rung.records.workload import Facts

# Bytes of a weight's element, at most, in products that a contract allows. A copy in a smaller dtype would do as well.
WIDTH: dict[Numerics, int] = {"exact": 8, "tf32": 8, "bf16": 2, "fp8": 1}


def roofline_bound(flops: float | None, facts: Facts, numerics: Numerics) -> Floor | None:
    """The least time that a step can take; None where the chip's rates or the step's FLOP are not known.

    flops: of a step; facts: `rates` (FLOP/s), `bandwidth` (bytes/s), `weights_read` and `stepped_bytes`
    (`rung.ladder.reads`). In training, the optimizer comes after all products; in inference, reading the weights may hide
    behind them.
    """
    rates, bandwidth = facts.rates, facts.bandwidth
    if not rates or not flops or not bandwidth:
        return None
    own = contract(facts.own_precision) or "exact"
    lowest = max(numerics, own, key=CONTRACTS.index)
    precision = max((p for p in rates if _allowed(p, lowest)), key=lambda p: float(rates[p]))
    arithmetic = flops / rates[precision]
    if facts.mode == "train":
        seconds = arithmetic + (facts.stepped_bytes or 0) / bandwidth
    else:
        read = facts.weights_read or {}
        widths = {size: min(int(size), WIDTH[lowest]) for size in read}
        seconds = max(arithmetic, sum(n * widths[size] for size, n in read.items()) / bandwidth)
    return Floor(seconds=seconds, precision=precision)


def _allowed(precision: str, numerics: Numerics) -> bool:
    """fp16 has another range: no contract allows it."""
    needs = {"fp64": "exact", "fp32": "exact", "tf32": "tf32", "bf16": "bf16", "fp8": "fp8"}.get(precision)
    return needs is not None and CONTRACTS.index(needs) <= CONTRACTS.index(numerics)
