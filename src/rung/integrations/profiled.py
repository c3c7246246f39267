"""Some steps of a training run under torch.profiler, and what Rung's analysis says of them."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from rung.errors import UsageError, first_line
from rung.hardware import pick
from rung.hardware.device import Device, synchronize
from rung.integrations.only_warns import only_warns
from rung.profilers.profile import new_folder
from rung.profilers.torch_profiler import Options, Recorder
from rung.runs import write_whole

WIDTH = 100  # characters of a line of the text


class ProfiledSteps:
    """Records the steps `first` to `last` of a training run, counted from 1 where it starts or is resumed.

    `before` and `after` are called around each step, `close` when the training ends. The step before `first` warms the profiler up. After
    `last`, `trace.json.gz`, `analysis.txt` and `analysis.html` are in `folder`. What fails is warned of once, and the training goes on.
    """

    def __init__(
        self,
        first: int,
        last: int,
        out: str | Path | None = None,
        ranks: Collection[int] = (0,),
        options: Options | None = None,
    ) -> None:
        """out: a new folder (default: one below .rung/profiles); ranks: which processes of a distributed training record, each into a
        folder of its own; options: what else torch.profiler records. Raises UsageError for steps that cannot be meant."""
        if not 2 <= first <= last:
            raise UsageError(
                f"steps {first} to {last} cannot be recorded: the first must be at least 2, because the step before it warms the profiler up, and the last must not be before the first."
            )
        self.first, self.last, self.ranks = first, last, tuple(ranks)
        self.folder: Path | None = None
        self._out = Path(out) if out is not None else None
        self._options = replace(options or Options(), wait=0, warm=1, active=last - first + 1, repeat=1)
        self._recorder: Recorder | None = None
        self.begin()

    def begin(self) -> None:
        """The training starts. The one before it may have been broken off within the recorded steps, which nothing tells."""
        if self._recorder is not None:
            self.close()
        self._step, self._recorder, self._failed = 0, None, False
        self._device: Device | None = None

    def before(self, device: torch.device, rank: int, processes: int) -> None:
        """A step begins, of one of so many processes."""
        self._step += 1
        if self._step != self.first - 1 or rank not in self.ranks or self._failed:
            return
        with self._never_stops_the_training():
            if torch.autograd._profiler_enabled():  # starting one more would silently end it
                raise UsageError("another torch.profiler is recording at this step; record other steps.")
            self._device = pick("cpu" if device.type == "cpu" else str(device))
            self.folder = new_folder(Path(".rung"), "training", self._out, rank if processes > 1 else None)
            self.folder.mkdir(parents=True, exist_ok=True)
            recorder = Recorder(str(self.folder / "trace.json.gz"), self._device, self._options)
            recorder.start()
            self._recorder = recorder

    def after(self) -> None:
        """A step has ended."""
        recorder, device = self._recorder, self._device
        if recorder is None or device is None:
            return
        with self._never_stops_the_training():
            if self._step in (self.first - 1, self.last):  # what was launched belongs to the steps that launched it
                synchronize(device)
            recorder.step()
            if self._step == self.last:
                self._finish(recorder)

    def close(self) -> None:
        """The training has ended, perhaps within or before the steps that were to be recorded."""
        if self._failed:
            return
        with self._never_stops_the_training():
            if self._recorder is not None:
                self._finish(self._recorder)
        if 0 < self._step < self.first and not self._failed:
            with only_warns():
                warnings.warn(f"nothing was profiled: the training ended after step {self._step}, before step {self.first}.", stacklevel=2)  # fmt: skip

    def _finish(self, recorder: Recorder) -> None:
        self._recorder = None
        recorder.stop()
        if not recorder.written or self.folder is None:
            return
        analyze(Path(recorder.written[0]), self.folder)
        recorded = f"steps {self.first} to {min(self._step, self.last)}"
        print(f"rung: {recorded} are in {self.folder}: analysis.txt, analysis.html, trace.json.gz.", file=sys.stderr)

    @contextlib.contextmanager
    def _never_stops_the_training(self) -> Iterator[None]:
        try:
            with only_warns():
                yield
        except Exception as error:
            self._failed, recorder, self._recorder = True, self._recorder, None
            if recorder is not None:
                with contextlib.suppress(Exception):
                    recorder.stop()
            with only_warns():
                warnings.warn(f"the training goes on without its profile: {first_line(error) or type(error).__name__}", stacklevel=4)  # fmt: skip


def analyze(trace_file: Path, folder: Path) -> None:
    """Writes what `rung analyze` says of a trace, as `analysis.txt` and `analysis.html`."""
    # With polars, which nobody needs before.
    from rung.analysis.per_step import per_step
    from rung.analysis.pictures import pictures
    from rung.report.analyze import analyze_lines, answer
    from rung.report.trace_page import page
    from rung.trace import read

    trace, steps, note = per_step(read(trace_file))
    found = answer(trace, steps, note)
    write_whole(folder / "analysis.txt", "\n".join(analyze_lines(found, WIDTH)) + "\n")
    write_whole(folder / "analysis.html", page(found, pictures(trace, steps=steps)))


class RecordsSteps:
    """What callbacks that record some steps have in common: they call `_steps` before and after each."""

    def __init__(
        self,
        first: int = 10,
        last: int = 12,
        *,
        out: str | Path | None = None,
        ranks: Collection[int] = (0,),
        options: Options | None = None,
    ) -> None:
        self._steps = ProfiledSteps(first, last, out, ranks, options)

    @property
    def folder(self) -> Path | None:
        """Where the profile lies; None before the first step is recorded."""
        return self._steps.folder
