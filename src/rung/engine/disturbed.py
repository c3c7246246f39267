"""What goes on in a process while it is timed: looked at from within, and put into words."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from rung.measure import MINIMUM_RUNS, Collected
from rung.measure.noise import explain, grows
from rung.records.measured import Sensors

NEVER_STEADY = "the step time never settled: the machine or the workload drifts, so the median holds for this run only."
OWN = 256  # bytes a sample: what the measuring keeps in the process of a function that is timed in place, and more
THROTTLED = 0.1  # share of the readings from which a throttled clock is worth a word


def graphs_compiled() -> int:
    """How many graphs Dynamo has compiled in this process so far; 0 where it is not loaded."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return int(dynamo.counters["stats"].get("unique_graphs", 0)) if dynamo else 0


def bytes_of(batch: Any) -> int:
    """Of all tensors in a batch together."""
    import torch
    from torch.utils import _pytree as pytree

    return sum(t.numel() * t.element_size() for t in pytree.tree_leaves(batch) if isinstance(t, torch.Tensor))


def elements(batch: Any) -> int:
    """Of all tensors in a batch together."""
    import torch
    from torch.utils import _pytree as pytree

    return sum(t.numel() for t in pytree.tree_leaves(batch) if isinstance(t, torch.Tensor))


def shapes_of(batches: Sequence[Any]) -> list[str]:
    """The different sets of shapes among batches, as texts; one where all are alike."""
    import torch
    from torch.utils import _pytree as pytree

    def shape(t: torch.Tensor) -> str:
        # Of a nested tensor torch tells no shape, or one that equals no other's.
        return f"({t.size(0)} rows, {t.numel()} elements)" if t.is_nested else str(tuple(t.shape))

    found = [[shape(t) for t in pytree.tree_leaves(b) if isinstance(t, torch.Tensor)] for b in batches]
    return list(dict.fromkeys(" ".join(shapes) for shapes in found))


def not_finite(result: Any) -> str:
    """`nan` or `inf`, where a tensor of a step's result holds one; empty where all is finite. Where its sum is finite nothing is
    allocated beside the result, whose peak of memory is looked at later."""
    import torch

    from rung.engine.parts import parts

    for _, tensor in parts(result)[0]:
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            continue
        # Formats of one byte know no sums.
        if tensor.element_size() > 1 and not math.isfinite(
            float(tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32)))
        ):
            if bool(tensor.isnan().any()):
                return "nan"
            if bool(tensor.isinf().any()):  # and not a sum too large
                return "inf"
    return ""


def sample_warnings(found: Collected, trend: float | None) -> list[str]:
    """What the times themselves show. trend: `rung.measure.stats.trend`."""
    said = explain(found.kept, always=found.begin is None)
    if found.begin is None:
        return [NEVER_STEADY, *said]
    if trend:
        said.append(
            f"the second half of the steps is {abs(trend):.2%} {'slower' if trend > 0 else 'faster'} than the first, and not by "
            "chance: the interval holds this drift, and is wider than one of 95%."
        )
    if found.begin > MINIMUM_RUNS:
        said.append(f"the first {found.begin} steps are left out: the stream settled only after them.")
    return said


def process_warnings(seen: dict[str, Any], in_use: Sequence[int], samples: int) -> list[str]:
    """What only the process could see. seen: `shapes` of its batches, where it has any, and `compiled` graphs; in_use:
    bytes before the first block and after each, of so many samples together. Its `original`: the elements of batches that a
    recipe leaves alone."""
    shapes, compiled, said = seen.get("shapes", []), seen["compiled"], []
    growth = grows(in_use) if in_use[-1] - in_use[0] > OWN * samples else None
    if seen.get("original"):
        said.append(left_to_the_original(seen["original"]))
    if len(shapes) > 1:
        said.append(
            f"its inputs change their shapes from seed to seed ({', '.join(shapes[:3])}): the samples are of different work."
        )
    if compiled:
        said.append(f"{compiled_anew(compiled)}.")
    if growth is not None:
        said.append(f"memory in use grew by {growth:.0%} over the steps and did not stop: the workload leaks.")
    return said


def compiled_anew(count: int) -> str:
    """count: graphs, while a step was timed."""
    graphs = f"{count} graph{'s were' if count > 1 else ' was'}"
    return f"{graphs} compiled while it was timed: something that it is compiled for changes"


def left_to_the_original(size: int) -> str:
    """size: elements of the batches."""
    return f"the recipe leaves inputs of this size ({size} elements) to the model as it is: this is the time of the model itself."


def gpu_warnings(sensors: Sensors | None) -> list[str]:
    """Clocks that were held down. sensors: `rung.hardware.sensors.Watch.summary`."""
    return [f"the GPU held its clocks down for its {why} in {share:.0%} of the readings."
            for why, share in (sensors.throttled if sensors else {}).items() if share > THROTTLED]  # fmt: skip
