"""What `rung.bench`, `rung.compare` and `rung.climb` return: a typed record, which prints as the command does."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from rung.errors import UsageError
from rung.measure.stats import Interval
from rung.records import climb
from rung.records import compare as records
from rung.records.bench import Bench
from rung.records.measured import Compared, Figure, Ratio
from rung.records.record import plain, record_of

if TYPE_CHECKING:
    import torch

    from rung.recipes.applied import Applied
    from rung.workload.base import Workload


R = TypeVar("R", bound=msgspec.Struct)


class _Result(Generic[R]):
    """What was measured: `document` is the record (`rung.records`). As the command's `--json` prints it: read a key by `result["key"]`,
    take all by `to_dict()`."""

    def __init__(self, document: R) -> None:
        self.document = document
        self._record = plain(document)

    def __getitem__(self, key: str) -> Any:
        return self._record[key]

    def to_dict(self) -> dict[str, Any]:
        """The whole record in plain values, ready for JSON."""
        return self._record

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        from rung.report.notebook import panel

        return panel(repr(self).strip("<>"), str(self).splitlines())

    @property
    def notes(self) -> list[str]:
        """What disturbed it, and what it cannot say."""
        return list(self._record.get("notes", self._record.get("warnings", [])))

    @property
    def environment(self) -> dict[str, Any]:
        """Device, versions and settings that it ran with."""
        return dict(self._record.get("environment", {}))


class Measurement(_Result[Bench]):
    """One workload or callable, measured; printing it shows what `rung bench` shows. Times are nanoseconds."""

    @property
    def median(self) -> float:
        return self.document.time.value

    @property
    def interval(self) -> Interval:
        """The median with its 95 % interval."""
        time = self.document.time
        return Interval(time.value, time.low, time.high)

    @property
    def samples(self) -> list[float]:
        """Every sample that was kept, in the order in which they were taken."""
        return list(self.document.samples)

    def rows(self) -> list[dict[str, Any]]:
        """One row a sample (`workload`, `step`, `ns`), for `polars.DataFrame` or `pandas.DataFrame`."""
        return [{"workload": self.document.workload, "step": k, "ns": ns} for k, ns in enumerate(self.samples)]

    def __str__(self) -> str:
        from rung.report.bench import bench_lines

        return "\n".join(bench_lines(self.document))

    def __repr__(self) -> str:
        from rung.report.units import duration_interval

        return f"<Measurement of {self.document.workload}: {duration_interval(self.document.time)}>"


class Comparison(_Result[records.Comparison | records.Ranking]):
    """Two or more, compared; printing it shows what `rung compare` shows. Sides are A, B and so on, as given."""

    @property
    def verdict(self) -> str:
        """What is said of B, which is faster, slower, same, inconclusive or not equal. More than two sides are ranked,
        inconclusive or not equal."""
        return self.document.verdict

    @property
    def results_compared(self) -> bool:
        """Whether it was checked that all sides compute the same (`verify=True`). A verdict without that is of the times alone:
        what computes something else may well be faster."""
        return self.document.results_compared

    @property
    def speedup(self) -> Interval | None:
        """Time of A over time of B, with its interval. It is above 1 where B is faster, and None for more than two sides."""
        found = self._compared
        return _interval(found.speedup) if found else None

    @property
    def _compared(self) -> Compared | None:
        """B against A, where there are two and they were timed."""
        return (self.document.comparison or None) if isinstance(self.document, records.Comparison) else None

    @property
    def ranks(self) -> dict[str, int]:
        """The place of each of more than two sides. Those that could not be told apart share theirs."""
        document = self.document
        return dict(document.ranking.ranks) if isinstance(document, records.Ranking) and document.ranking else {}

    @property
    def samples(self) -> dict[str, list[list[float]]]:
        """Nanoseconds a step, by side and restart."""
        restarts = self.document.restarts or []
        return {side.upper(): [r[side] for r in restarts] for side in (restarts[0] if restarts else ())}

    def rows(self) -> list[dict[str, Any]]:
        """One row a sample (`side`, `restart`, `step`, `ns`), for `polars.DataFrame` or `pandas.DataFrame`."""
        return [
            {"side": side, "restart": r, "step": k, "ns": ns}
            for side, restarts in self.samples.items()
            for r, samples in enumerate(restarts)
            for k, ns in enumerate(samples)
        ]

    def __str__(self) -> str:
        from rung.report.compare import compare_lines

        return "\n".join(compare_lines(self.document))

    def __repr__(self) -> str:
        from rung.report.units import interval

        found = self._compared
        unknown = "" if self.results_compared else "; results not compared"
        return f"<Comparison: {self.verdict}{', ' + interval(found.speedup) if found else ''}{unknown}>"


class Climbed(_Result[climb.ClimbRun]):
    """A climb: what was tried, what was kept, and how much faster that is. Printing it shows what `rung climb` shows."""

    def __init__(self, data: dict[str, Any], live: torch.nn.Module | Workload | None = None, **how: Any) -> None:
        """data: as `Run.data` gives it; live: the object that was climbed; how: what `rung.apply` takes of it beside."""
        super().__init__(record_of(climb.ClimbRun, data))
        self._live, self._how = live, how

    @property
    def directory(self) -> Path:
        """The run directory."""
        return Path(self.document.directory)

    @property
    def report(self) -> Path:
        """The page of the climb."""
        return self.directory / "report.html"

    @property
    def recipe(self) -> Path | None:
        """The file of the best recipe, as `rung.apply` takes it; None where nothing was kept."""
        result = self.document.result
        return self.directory / result.recipe if result and result.kept and result.recipe else None

    @property
    def kept(self) -> list[str]:
        """The rungs of the recipe."""
        return list(self.document.result.kept) if self.document.result else []

    @property
    def status(self) -> str:
        """The status of the recipe, which is provisional, verified or confirmed; empty without one."""
        return (self.document.result and self.document.result.status) or ""

    @property
    def speedup(self) -> Interval | None:
        """Time of the untouched model over that under the recipe; None without one. The interval is from 0 to infinity until fresh
        restarts have told more. `notes` says where it is doubtful."""
        return _interval(self.document.result.speedup) if self.document.result else None

    @property
    def over_plain(self) -> Interval | None:
        """The same over the fastest plain mode of torch.compile; None where none was compared."""
        return _interval(self.document.result.over_plain) if self.document.result else None

    @property
    def notes(self) -> list[str]:
        """Why it ended early, why its recipe is not confirmed, and why its speedup is doubtful."""
        result = self.document.result
        return [note for note in (self.document.manifest.why, *((result.doubt, result.busy) if result else ())) if note]

    @property
    def environment(self) -> dict[str, Any]:
        return dict(self._record["manifest"]["environment"])

    def apply(self, model: torch.nn.Module | Workload | None = None, **how: Any) -> Applied:
        """The recipe on the model that was climbed, or on another of the same kind.

        Args:
            model: another model; left out, the object that was given to `rung.climb`, or what its target makes.
            how: as for `rung.apply`. For the model that was climbed, `loss`, `optimizer`, `max_grad_norm` and `forward` are those of the climb.

        Raises:
            UsageError: where the climb kept nothing.
        """
        from rung.recipes.apply import apply
        from rung.workload import Workload
        from rung.workload.load import load

        if self.recipe is None:
            raise UsageError("the climb kept nothing, so there is no recipe to apply: use the model as it is.")
        if model is not None:
            return apply(model, self.recipe, **how)
        manifest = self.document.manifest
        live = load(manifest.target, manifest.options or {}) if self._live is None else self._live
        climbed_on = {"device": manifest.request.get("device")} if isinstance(live, Workload) else {}
        return apply(live, self.recipe, **{**climbed_on, **self._how, **how})

    def rows(self) -> list[dict[str, Any]]:
        """One row an attempt (`rung`, `verdict`, `speedup`, `low`, `high`, `why`), for `polars.DataFrame` or `pandas.DataFrame`."""
        found = []
        for attempt in self._record["attempts"]:
            gain = (attempt.get("comparison") or {}).get("speedup") or {}
            figures = {"speedup": gain.get("value"), "low": gain.get("low"), "high": gain.get("high")}
            found.append({"rung": attempt["rung"], "verdict": attempt["verdict"], **figures, "why": attempt["why"]})
        return found

    def _repr_html_(self) -> str:
        from rung.report.notebook import panel

        pages = {"report": self.report, "recipe": self.recipe}
        links = {name: quote(str(path)) for name, path in pages.items() if path is not None and path.is_file()}
        return panel(repr(self).strip("<>"), str(self).splitlines(), links)

    def __str__(self) -> str:
        from rung.report.terminal import summary

        return summary(self.document).rstrip()

    def __repr__(self) -> str:
        from rung.report.units import interval
        from rung.report.words import doubtful

        result, name = self.document.result, self.document.manifest.workload.name
        if not result or not result.speedup or not self.kept:
            return f"<Climb of {name}: nothing kept>"
        said = (interval(result.speedup), self.status, doubtful(result))
        return f"<Climb of {name}: {', '.join(filter(None, said))}>"


def _interval(figure: Figure | Ratio | None) -> Interval | None:
    """Any ratio is possible beyond an end that is not known: one restart does not tell how far two differ."""
    if figure is None:
        return None
    low = figure.low if isinstance(figure.low, float) else 0.0
    return Interval(figure.value, low, figure.high if isinstance(figure.high, float) else math.inf)
