"""The search behind `rung kernels tune`: launch configurations against what the rules give, on the GPU at hand.

From the rule on, one thing at a time is changed to what is quickest, until nothing is quicker. What that finds must then give
the same results, be shown to be faster by alternating with the rule, and cost nothing where there is a sixteenth of the work.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from rung.errors import UsageError
from rung.hardware import Device
from rung.kernels import configs
from rung.kernels.examples import Example, Shape
from rung.kernels.tuned import Config, Key, Trial, trying
from rung.kernels.variations import variations
from rung.measure import ROUNDS, SIGNED_RANK, Comparison, Restart, interleaved, judge
from rung.measure.timers import Timer, timer_for

Step = Callable[[], object]
LOOKS = 6  # rounds in which configurations that differ in one thing take turns
SAMPLES = 3  # of a block
WORTH = 0.02  # what a configuration has to be faster by: less is within what a clock or a driver changes
SECONDS = 5.0  # to show it
FEWER = 16  # a configuration holds for every number of rows: it is asked of so many times fewer, too


@dataclass(frozen=True)
class Tuned:
    """way: forward or backward; use: the configuration, or None where the rule's stays; speedup: over the rule's, with `use`;
    tried: how many configurations were timed; failed: why others were not."""

    example: str
    way: str
    key: Key
    shape: Shape
    rule: Config
    use: Config | None
    speedup: Comparison | None
    why: str
    tried: int
    failed: list[str] = field(default_factory=list)


def tune(
    name: str, example: Example, shape: Shape, dtype: torch.dtype, device: Device, seen: set[Key]
) -> Iterator[Tuned]:
    """Each kernel that the function launches at this shape, forward and then backward. seen: problems that are left out, and to
    which these are added."""
    sizes = [example.inputs(s, dtype, device.torch_name) for s in (shape, (max(1, shape[0] // FEWER), *shape[1:]))]
    for k, way in enumerate(("forward", "backward")):
        steps = [passes(example.call, inputs)[k] for inputs in sizes]
        trial = Trial()
        with trying(trial):
            steps[0]()
        for key, rule in list(trial.asked.items()):
            if key not in seen:
                seen.add(key)
                search = _Search(trial, key, device, example, sizes[0], steps)
                with trying(trial):
                    found = _tuned(name, way, key, rule, shape, search)
                trial.using[key] = found.use or rule
                yield found


def _tuned(name: str, way: str, key: Key, rule: Config, shape: Shape, search: _Search) -> Tuned:
    best = search.best(rule)
    found = partial(Tuned, name, way, key, shape, rule, tried=search.tried, failed=search.failed)
    if best == rule:
        return found(use=None, speedup=None, why="nothing that was tried is quicker")
    if not search.agrees(rule, best):
        return found(use=None, speedup=None, why=f"{best} gives other results")
    large, small = (search.shown(step, rule, best) for step in search.steps)
    if large.answer != "faster" or large.speedup.value < 1 + WORTH:
        return found(use=None, speedup=large, why=f"nothing that was tried is quicker by {WORTH:.0%}")
    if small.answer == "slower":
        return found(use=None, speedup=large, why=f"slower with {FEWER} times fewer rows")
    return found(use=best, speedup=large, why="faster")


class _Search:
    """Over the configurations of one kernel. steps: at the shape, and with fewer rows."""

    def __init__(
        self, trial: Trial, key: Key, device: Device, example: Example, inputs: tuple[Any, ...], steps: Sequence[Step]
    ) -> None:
        self.trial, self.key, self.device, self.steps = trial, key, device, steps
        self._results = partial(_results, example.call, inputs)
        self.tried, self.failed = 1, list[str]()

    def best(self, rule: Config) -> Config:
        """The quickest that changes of one thing at a time lead to."""
        warp, best, seen = configs.warp_size(torch.device(self.device.torch_name)), rule, [rule]
        while True:
            others = variations(self.key.kernel, best, warp, self.device.vendor == "amd")
            new = [config for config in others if config not in seen]
            seen += new
            quickest = self._quickest(best, new)
            if quickest == best:
                return best
            best = quickest

    def _quickest(self, best: Config, others: Sequence[Config]) -> Config:
        taken = {0: (best, self._timer(best, self.steps[0]))}
        for config in others:
            try:
                taken[len(taken)] = config, self._timer(config, self.steps[0])
            except Exception as error:  # out of shared memory, or of registers: what a search finds out
                self.failed.append(
                    f"{_text(config)}: {(str(error).strip().splitlines() or [type(error).__name__])[0][:160]}"
                )
        self.tried += len(taken) - 1
        blocks = [partial(self._block, config, timer) for config, timer in taken.values()]
        restart, _ = interleaved(blocks, LOOKS)
        gains = {k: restart.log_ratio(0, k) for k in range(1, len(taken))}
        quickest = max(gains, key=gains.__getitem__, default=0)
        taken_config = taken[quickest if gains and gains[quickest] > WORTH / 4 else 0][0]
        taken.clear()
        _free(self.device)
        return taken_config

    def shown(self, step: Step, rule: Config, best: Config) -> Comparison:
        """The best against the rule, in rounds until it is clear."""
        blocks = [partial(self._block, config, self._timer(config, step)) for config in (rule, best)]
        until, said = time.monotonic() + SECONDS, list[Comparison]()

        def more(so_far: Restart) -> bool:
            last = time.monotonic() >= until
            found = judge(so_far.log_ratios(), looks=ROUNDS, margin=0.01, last=last, method=SIGNED_RANK)
            said[:] = [found] if found else said
            return not (found and found.final)

        interleaved(blocks, 1, more)
        blocks.clear()
        _free(self.device)
        return said[0]

    def agrees(self, rule: Config, best: Config) -> bool:
        """Whether results and gradients are those of the rule, but for the rounding that another order of sums gives."""
        found = []
        for config in (rule, best):
            self.trial.using[self.key] = config
            found.append(self._results())
        return all(_close(a, b) for a, b in zip(*found, strict=True))

    def _timer(self, config: Config, step: Step) -> Timer:
        self.trial.using[self.key] = config
        step()  # compiles
        try:
            return timer_for(step, self.device, "graph" if self.device.is_gpu else "auto")
        except UsageError:
            return timer_for(step, self.device, "events")

    def _block(self, config: Config, timer: Timer) -> Sequence[float]:
        self.trial.using[self.key] = config
        return timer.block(SAMPLES).samples


def passes(fn: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> tuple[Step, Step]:
    """The forward pass, which keeps what the backward pass needs, and the backward pass.

    A backward pass runs on the stream of its forward pass, and its leaves' gradients on that of the first pass which read
    them. So that it can be recorded on a stream, the first call there runs the forward pass, on leaves of its own; that is
    one of those that a timer makes before it records.
    """
    kept: dict[Any, Any] = {}

    def backward() -> object:
        stream = torch.cuda.current_stream() if inputs[0].is_cuda else None
        if stream not in kept:
            own = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
            outputs = _outputs(fn, own)
            kept[stream] = outputs, [x for x in own if x.requires_grad], [torch.randn_like(y) for y in outputs]
        outputs, wanted, grads = kept[stream]
        return torch.autograd.grad(outputs, wanted, grads, retain_graph=True)

    return lambda: fn(*inputs), backward


def _outputs(fn: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    found = fn(*inputs)
    return found if isinstance(found, tuple) else (found,)


def _results(fn: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Outputs, and the gradients of a sum of them in which every element counts otherwise."""
    outputs = _outputs(fn, inputs)
    generator = torch.Generator(outputs[0].device).manual_seed(0)
    grads = [torch.randn(y.shape, generator=generator, device=y.device, dtype=y.dtype) for y in outputs]
    return [*outputs, *torch.autograd.grad(outputs, [x for x in inputs if x.requires_grad], grads)]


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Two units in the last place, of the element and of the typical one; of float32 the square root of a long sum's terms more."""
    eps = max(2 * torch.finfo(a.dtype).eps, 64 * torch.finfo(torch.float32).eps)
    x, y = a.detach().float(), b.detach().float()
    return bool(((x - y).abs() <= eps * (y.abs() + y.square().mean().sqrt())).all())


def _free(device: Device) -> None:
    """Graphs hold memory, and each other."""
    gc.collect()
    if device.is_gpu:
        torch.cuda.empty_cache()


def _text(config: Config) -> str:
    return ", ".join(f"{k}={v}" for k, v in config.items())
