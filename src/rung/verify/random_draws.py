"""Random numbers that a forward draws itself: noise, time steps, masks.

Two programs can be compared only if they draw the same numbers. From one seed the untouched model and a candidate do, if compiled code asks torch for
them, as the untouched model does (`SharedDraws.adapt`). The reference in float64 would draw others. It is given those that the untouched model drew.
`rung.verify.randomness` tests whether a candidate, as it is timed, draws from the same distribution.
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

MANUAL_SEED = torch.manual_seed  # torch's own: a candidate may replace it, and runs before that is noticed

# Operators of aten whose result is random, and holds nothing that is computed: attention with dropout, for one, is not among them.
RANDOM_OPERATORS = {
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli", "multinomial", "poisson", "binomial",
    "normal_", "uniform_", "bernoulli_", "random_", "exponential_", "geometric_", "log_normal_", "cauchy_", "_sample_dirichlet", "_standard_gamma",
}  # fmt: skip
ROW_MAJOR = {"rand", "randn", "randint", "randperm"}  # laid out in rows, whatever the layout of other tensors is
DEPENDS_ON_WEIGHTS = "what is drawn depends on the weights"
DRAW_WITHOUT_WEIGHTS = "draw numbers that do not, as in mean + std * torch.randn_like(std) (docs/how-to/workload.md)"
DROPOUT = "native_dropout"  # gives its mask beside its output; on a CPU it is `bernoulli_`


class DrawsDiffer(WorkloadError):
    """Two runs of the untouched model, on one batch and from one seed, draw different random numbers."""


@dataclass(frozen=True)
class Draw:
    """One call of a random operator. values: its result; of dropout, its mask."""

    operator: str
    values: torch.Tensor


def draws_random_numbers(run: Callable[[], Any], device: Device) -> bool:
    """Whether a run draws random numbers, from any generator. The state of torch's own generators may not show it: the forward may make a
    generator, or restore the state. So the operators are recorded, too. A run that raises under torch's dispatch modes is repeated without them,
    and then only torch's own generators count."""

    def generator_states() -> list[torch.Tensor]:
        of_gpu = [torch.cuda.get_rng_state(device.index)] if device.is_gpu else []
        return [torch.get_rng_state(), *of_gpu]

    before, recorder = generator_states(), RecordDraws()
    try:
        with recorder:
            run()
    except Exception:
        run()
    return bool(recorder.tape) or not all(map(torch.equal, before, generator_states()))


class RecordDraws(TorchDispatchMode):
    """Records the draws inside of it in `tape`."""

    def __init__(self) -> None:
        super().__init__()
        self.tape: list[Draw] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        operator = function.overloadpacket.__name__
        if operator in RANDOM_OPERATORS:
            self.tape.append(Draw(operator, result.detach().clone()))
        elif operator == DROPOUT:
            self.tape.append(Draw(operator, result[1].detach().clone()))
        return result


class ReplayDraws(TorchDispatchMode):
    """Gives the draws inside of it the values of a tape, in the dtypes that they would have. Raises DrawsDiffer where the run draws others."""

    def __init__(self, tape: list[Draw]) -> None:
        super().__init__()
        self._remaining = iter(tape)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        operator = function.overloadpacket.__name__
        if operator in RANDOM_OPERATORS:
            return self._fill(operator, result)
        if operator == DROPOUT:
            given, rate = args[0], args[1]
            mask = self._fill(operator, result[1])
            return given * mask / (1 - rate), mask
        return result

    def _fill(self, operator: str, drawn: torch.Tensor) -> torch.Tensor:
        recorded = next(self._remaining, None)
        if recorded is None or recorded.operator != operator or recorded.values.shape != drawn.shape:
            raise DrawsDiffer(
                f"in float64 its forward draws {operator} of {tuple(drawn.shape)}, and as it is {_describe(recorded)}, so no candidate can be compared "
                "with it; draw its random numbers in inputs(seed)."
            )
        return drawn.copy_(recorded.values)


def _describe(draw: Draw | None) -> str:
    return f"{draw.operator} of {tuple(draw.values.shape)}" if draw else "nothing"


def same_draws(a: list[Draw], b: list[Draw]) -> bool:
    """Whether two runs drew the same."""
    return len(a) == len(b) and all(
        one.operator == other.operator and torch.equal(one.values, other.values)
        for one, other in zip(a, b, strict=True)
    )


class SharedDraws:
    """The random numbers of the batch that steps are compared on. All of the steps draw the same."""

    def __init__(self, untouched: Any) -> None:
        """untouched: the step of the untouched model. It is run to record its draws; its weights are put anew before they count."""
        self._untouched = untouched
        self.use_batch(0, None)

    def use_batch(self, seed: int, batch: Batch) -> None:
        """The steps run on this batch next."""
        self._seed, self._batch = seed, batch
        self._tape: list[Draw] | None = None

    def adapt(self, plan: Plan) -> Plan:
        """The plan with compiled code that draws, from one seed, what the untouched model draws. Some operators draw numbers in the layout of
        an image. Inductor lays convolutions out differently, which would change the order of the draws, so it is told not to."""
        if not plan.compiles:
            return plan
        of_images = any(draw.operator not in ROW_MAJOR and draw.values.dim() > 3 for draw in self._tape or [])
        layout = (("layout_optimization", False),) if of_images else ()
        return replace(plan, inductor=(*plan.inductor, ("fallback_random", True), *layout))

    def seeded(self, step: Any) -> Any:
        """A step that draws the same numbers in every run on a batch."""
        return _StepRunBy(self._run_seeded, step)

    def recorded(self) -> Any:
        """The step of the untouched model. Every run checks that it draws the same numbers again."""
        return _StepRunBy(self._run_recorded, self._untouched)

    def _run_seeded(self, step: Any, batch: Batch) -> Any:
        MANUAL_SEED(self._seed)
        return step(batch)

    def _run_recorded(self, step: Any, batch: Batch) -> Any:
        with RecordDraws() as recorder:
            result = self._run_seeded(step, batch)
        if self._tape is not None and not same_draws(recorder.tape, self._tape):
            raise DrawsDiffer(
                f"its forward draws random numbers, and {DEPENDS_ON_WEIGHTS}, so no candidate can be compared with it; {DRAW_WITHOUT_WEIGHTS}."
            )
        self._tape = recorder.tape
        return result

    @contextlib.contextmanager
    def replayed(self) -> Iterator[None]:
        """Inside of it the reference draws what the untouched model draws on this batch."""
        if self._tape is None:
            self._run_recorded(self._untouched, self._batch)
        with ReplayDraws(self._tape or []):
            yield


class _StepRunBy:
    """A step that another function runs. In all else it is that step."""

    def __init__(self, run: Callable[[Any, Batch], Any], step: Any) -> None:
        self._run_step, self._step = run, step

    def __call__(self, batch: Batch) -> Any:
        return self._run_step(self._step, batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)
