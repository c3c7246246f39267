"""The search behind `rung kernels tune`: launch configurations against what the rules give, on the GPU at hand.

From the rule on, one thing at a time is changed to what is quickest, until nothing is quicker. What that finds must then give
the same results, be shown to be faster by alternating with the rule, and not be slower where there are fewer rows.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch

from rung.errors import UsageError, first_line
from rung.hardware import Device
from rung.kernels import configs
from rung.kernels.examples import Example, Shape
from rung.kernels.tuned import Key, Trial, trying
from rung.kernels.variations import Config, variations
from rung.measure import ROUNDS, SIGNED_RANK, Comparison, Restart, interleaved, judge
from rung.measure.timers import Timer, timer_for

Step = Callable[[], object]
LOOKS = 6  # rounds in which configurations that differ in one thing take turns
SAMPLES = 3  # of a block
WORTH = 0.02  # what a configuration has to be faster by: less is within what a clock or a driver changes
LOSS = 0.01  # what it may cost where there are fewer rows
SECONDS = 5.0  # to show either
FEWER = 16  # a configuration holds for every number of rows: it is asked of so many times fewer, too
AT_ONCE = 1 << 25  # elements that are compared together


@dataclass(frozen=True)
class Tuned:
    """way: forward or backward; outcome: faster (with `use`), or why the rule's configuration stays: shown, that nothing else is
    worth it, or unclear; speedup: of the whole pass, over the rule's; tried: how many configurations were timed; failed: why
    others were not."""

    function: str
    way: str
    key: Key
    shape: Shape
    rule: Config
    use: Config | None
    outcome: Literal["faster", "shown", "unclear"]
    why: str
    speedup: Comparison | None = None
    tried: int = 1
    failed: list[str] = field(default_factory=list)


def tune(
    name: str,
    example: Example,
    shape: Shape,
    dtype: torch.dtype,
    device: Device,
    seen: set[Key],
    before: Mapping[Key, Config],
) -> Iterator[Tuned]:
    """Each kernel that the function launches at this shape, forward and then backward. seen: problems that are left out, and to
    which these are added; before: what an earlier search found."""
    inputs = [example.inputs(s, dtype, device.torch_name) for s in dict.fromkeys((shape, example.fewer(shape, FEWER)))]
    for k, way in enumerate(("forward", "backward")):
        # Each is made anew for a timer and ends with it: a graph needs what its backward pass read.
        steps = [lambda given=given, k=k: passes(example.call, given)[k] for given in inputs]
        trial = Trial()
        with trying(trial):
            steps[0]()()
        for key, rule in list(trial.asked.items()):
            if key not in seen:
                seen.add(key)
                with trying(trial):
                    search = _Search(trial, key, device, partial(_results, example.call, inputs[0]), steps)
                    found = _tuned(partial(Tuned, name, way, key, shape, rule), rule, before.get(key), search)
                trial.using[key] = found.use or rule
                yield found


def _tuned(told: Callable[..., Tuned], rule: Config, before: Config | None, search: _Search) -> Tuned:
    best = search.best(rule, before)
    found = partial(told, tried=search.tried, failed=search.failed)
    if best == rule:
        return found(use=None, outcome="shown", why="nothing that was tried is quicker")
    if not search.agrees(rule, best):
        return found(use=None, outcome="shown", why=f"{_text(best)} gives other results")
    large, *small = (search.shown(step, rule, best) for step in search.steps)
    found = partial(found, speedup=large)
    if large.answer == "undecided":
        return found(use=None, outcome="unclear", why=f"{_text(best)} may be quicker: it did not get clear")
    if large.answer != "faster" or large.speedup.value < 1 + WORTH:
        return found(use=None, outcome="shown", why=f"nothing that was tried is quicker by {WORTH:.0%}")
    if any(few.speedup.low < 1 - LOSS for few in small):
        return found(
            use=None, outcome="shown", why=f"{_text(best)} may cost more than {LOSS:.0%} where there are fewer rows"
        )
    return found(use=best, outcome="faster", why="faster")


class _Search:
    """Over the configurations of one kernel. results: of a call, with gradients; steps: make a step, at the shape and with fewer
    rows."""

    def __init__(
        self,
        trial: Trial,
        key: Key,
        device: Device,
        results: Callable[[], list[torch.Tensor]],
        steps: Sequence[Callable[[], Step]],
    ) -> None:
        self.trial, self.key, self.device, self.results, self.steps = trial, key, device, results, steps
        self.tried, self.failed = 1, list[str]()

    def best(self, rule: Config, before: Config | None) -> Config:
        """The quickest that changes of one thing at a time lead to. before: another one to begin with."""
        warp, best, seen = configs.warp_size(torch.device(self.device.torch_name)), rule, [rule]
        others = [before] if before and before != rule else []
        while True:
            others += variations(self.key.kernel, best, warp, self.device.vendor == "amd")
            new = [config for config in others if config not in seen]
            seen += new
            quickest = self._quickest(best, new)
            if quickest == best:
                return best
            best, others = quickest, []

    def _quickest(self, best: Config, others: Sequence[Config]) -> Config:
        timers = [(best, self._timer(best, self.steps[0]))]
        for config in others:
            try:
                timers.append((config, self._timer(config, self.steps[0], like=timers[0][1].name)))
            except Exception as error:  # out of shared memory, or of registers: what a search finds out
                self.failed.append(f"{_text(config)}: {first_line(error, 160) or type(error).__name__}")
        self.tried += len(timers) - 1
        restart, _ = interleaved([partial(self._block, *timer) for timer in timers], LOOKS)
        gains = {k: restart.log_ratio(0, k) for k in range(1, len(timers))}
        quickest = max(gains, key=gains.__getitem__, default=0)
        found = timers[quickest if gains and gains[quickest] > WORTH / 4 else 0][0]
        timers.clear()
        _free(self.device)
        return found

    def shown(self, step: Callable[[], Step], rule: Config, best: Config) -> Comparison:
        """The best against the rule, in rounds until it is clear."""
        first = self._timer(rule, step)
        timers = [(rule, first), (best, self._timer(best, step, like=first.name))]
        until, said = time.monotonic() + SECONDS, list[Comparison]()

        def more(so_far: Restart) -> bool:
            last = time.monotonic() >= until
            found = judge(so_far.log_ratios(), looks=ROUNDS, margin=LOSS, last=last, method=SIGNED_RANK)
            said[:] = [found] if found else said
            return not (found and found.final)

        interleaved([partial(self._block, *timer) for timer in timers], 1, more)
        del first
        timers.clear()
        _free(self.device)
        return said[0]

    def agrees(self, rule: Config, best: Config) -> bool:
        """Whether results and gradients are those of the rule, but for the rounding that another order of sums gives."""
        found = []
        for config in (rule, best):
            self.trial.using[self.key] = config
            found.append(self.results())
        return all(_close(a, b) for a, b in zip(*found, strict=True))

    def _timer(self, config: Config, make: Callable[[], Step], like: str = "") -> Timer:
        """like: the timer that it is to be measured against, where that is not the first."""
        self.trial.using[self.key] = config
        step = make()
        step()  # compiles
        if like or not self.device.is_gpu:
            return timer_for(step, self.device, like if self.device.is_gpu else "auto")
        try:
            return timer_for(step, self.device, "graph")
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


@torch.no_grad()
def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Two units in the last place, of the element and of the typical one; of float32 as many as a long sum's order changes."""
    eps = max(2 * torch.finfo(a.dtype).eps, 64 * torch.finfo(torch.float32).eps)
    pairs = list(zip(a.reshape(-1).split(AT_ONCE), b.reshape(-1).split(AT_ONCE), strict=True))
    typical = (sum(float(y.float().square().sum()) for _, y in pairs) / max(1, b.numel())) ** 0.5
    return all(bool(((x.float() - y.float()).abs() <= eps * (y.float().abs() + typical)).all()) for x, y in pairs)


def _free(device: Device) -> None:
    """Graphs hold memory, and each other."""
    gc.collect()
    if device.is_gpu:
        torch.cuda.empty_cache()


def _text(config: Config) -> str:
    return ", ".join(f"{k}={v}" for k, v in config.items())
