"""Random numbers that a forward draws itself: noise, time steps, masks.

Two programs can be compared only if they draw the same numbers. From one seed the untouched model and a candidate do, as long as compiled code asks
torch for them, as the untouched model does (`Draws.equally`). The reference in float64 would draw others: it is given those that the untouched model drew.
Whether what a candidate draws as it is timed has the same distribution is asked by `rung.verify.randomness`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rung.errors import WorkloadError
from rung.hardware.device import Device
from rung.plan import Plan
from rung.workload import Batch

SEEDED = torch.manual_seed  # torch's own: a candidate may replace it, and runs before that is noticed

# Operators of aten whose result is random, and holds nothing that is computed: attention with dropout, for one, is not among them.
RANDOM = {
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli", "multinomial", "poisson", "binomial",
    "normal_", "uniform_", "bernoulli_", "random_", "exponential_", "geometric_", "log_normal_", "cauchy_", "_sample_dirichlet", "_standard_gamma",
}  # fmt: skip
OF_A_SHAPE = {"rand", "randn", "randint", "randperm"}  # laid out in rows, whatever the layout of others is
BY_WEIGHTS = "what is drawn depends on the weights"
OTHERWISE = "draw numbers that do not, as in mean + std * torch.randn_like(std) (docs/how-to/workload.md)"
DROPOUT = "native_dropout"  # gives its mask beside its output; on a CPU it is `bernoulli_`


class Unlike(WorkloadError):
    """A run draws other random numbers than another of the untouched model on the same batch, from the same seed."""


@dataclass(frozen=True)
class Draw:
    """One call of a random operator. values: what it gave; of dropout, its mask."""

    operator: str
    values: torch.Tensor


def draws(run: Callable[[], Any], device: Device) -> bool:
    """Whether a run draws random numbers, whatever generator they are of. torch's own may be where it was before: of a generator that the forward
    makes, or where the forward puts the state back. Of what does not run beside torch's dispatch modes, only torch's own are seen."""

    def state() -> list[torch.Tensor]:
        of_gpu = [torch.cuda.get_rng_state(device.index)] if device.is_gpu else []
        return [torch.get_rng_state(), *of_gpu]

    before, recorded = state(), Recorded()
    try:
        with recorded:
            run()
    except Exception:
        run()
    return bool(recorded.tape) or not all(map(torch.equal, before, state()))


class Recorded(TorchDispatchMode):
    """Keeps what is drawn inside of it, in `tape`."""

    def __init__(self) -> None:
        super().__init__()
        self.tape: list[Draw] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        operator = function.overloadpacket.__name__
        if operator in RANDOM:
            self.tape.append(Draw(operator, result.detach().clone()))
        elif operator == DROPOUT:
            self.tape.append(Draw(operator, result[1].detach().clone()))
        return result


class Replayed(TorchDispatchMode):
    """What is drawn inside of it has the values of a tape, in the dtypes that it would have. Raises Unlike where others are drawn."""

    def __init__(self, tape: list[Draw]) -> None:
        super().__init__()
        self._left = iter(tape)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        operator = function.overloadpacket.__name__
        if operator in RANDOM:
            return self._filled(operator, result)
        if operator == DROPOUT:
            given, rate = args[0], args[1]
            mask = self._filled(operator, result[1])
            return given * mask / (1 - rate), mask
        return result

    def _filled(self, operator: str, drawn: torch.Tensor) -> torch.Tensor:
        kept = next(self._left, None)
        if kept is None or kept.operator != operator or kept.values.shape != drawn.shape:
            raise Unlike(
                f"in float64 its forward draws {operator} of {tuple(drawn.shape)}, and as it is {_said(kept)}, so no candidate can be compared "
                "with it; draw its random numbers in inputs(seed)."
            )
        return drawn.copy_(kept.values)


def _said(draw: Draw | None) -> str:
    return f"{draw.operator} of {tuple(draw.values.shape)}" if draw else "nothing"


def same_draws(a: list[Draw], b: list[Draw]) -> bool:
    """Whether two runs drew the same."""
    return len(a) == len(b) and all(
        one.operator == other.operator and torch.equal(one.values, other.values)
        for one, other in zip(a, b, strict=True)
    )


class Draws:
    """The random numbers of every batch that steps are compared on: equal for all of them."""

    def __init__(self, untouched: Any) -> None:
        """untouched: the step of the untouched model, which is run to know what it draws; its weights are put anew before they count."""
        self._untouched = untouched
        self.on(0, None)

    def on(self, seed: int, batch: Batch) -> None:
        """What runs next runs on this batch."""
        self._seed, self._batch = seed, batch
        self._tape: list[Draw] | None = None

    def equally(self, plan: Plan) -> Plan:
        """The plan whose compiled code draws, from one seed, what the untouched model does. Numbers that take the layout of an image have to
        find the layout that it has there: Inductor gives convolutions another, in which they would be drawn in another order."""
        if not plan.compiles:
            return plan
        of_images = any(draw.operator not in OF_A_SHAPE and draw.values.dim() > 3 for draw in self._tape or [])
        layout = (("layout_optimization", False),) if of_images else ()
        return replace(plan, inductor=(*plan.inductor, ("fallback_random", True), *layout))

    def seeded(self, step: Any) -> Any:
        """A step that draws the same numbers in every run on a batch."""
        return _Seeded(step, self.from_the_seed)

    def untouched(self) -> Any:
        """The step of the untouched model, of which is asked whether it does."""
        return _Seeded(self._untouched, self.recorded)

    def from_the_seed(self, step: Any, batch: Batch) -> Any:
        SEEDED(self._seed)
        return step(batch)

    def recorded(self, step: Any, batch: Batch) -> Any:
        with Recorded() as drawn:
            result = self.from_the_seed(step, batch)
        if self._tape is not None and not same_draws(drawn.tape, self._tape):
            raise Unlike(
                f"its forward draws random numbers, and {BY_WEIGHTS}, so no candidate can be compared with it; {OTHERWISE}."
            )
        self._tape = drawn.tape
        return result

    @contextlib.contextmanager
    def given(self) -> Iterator[None]:
        """Inside of it the reference draws what the untouched model does on this batch."""
        if self._tape is None:
            self.recorded(self._untouched, self._batch)
        with Replayed(self._tape or []):
            yield


class _Seeded:
    """A step that is run in another way. In all else it is that step."""

    def __init__(self, step: Any, run: Callable[[Any, Batch], Any]) -> None:
        self._step, self._run_step = step, run

    def __call__(self, batch: Batch) -> Any:
        return self._run_step(self._step, batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)
