"""Which Python frame each host call was made from, that of the forward pass for a backward operator."""

from __future__ import annotations

import numpy as np
import polars as pl

from rung.analysis.calls import launching_calls
from rung.analysis.intervals import Ints
from rung.analysis.nesting import callers, nearest, outermost
from rung.analysis.once import once
from rung.analysis.origins import origins
from rung.analysis.stabbing import THREAD, THREAD_NUMBER, holding
from rung.trace.table import Trace

# What PyTorch's package holds: outside of the packages' folder, as in a checkout, this tells it from a user's folder called torch.
_OF_TORCH = (
    r"_\w+|accelerator|amp|ao|autograd|backends|compiler|contrib|cpu|cuda|distributed|distributions|export|fft|func|functional|futures|fx|hub|jit|"
    r"library|linalg|masked|mps|mtia|multiprocessing|nativert|nested|nn|onnx|optim|overrides|package|profiler|quantization|random|serialization|"
    r"signal|sparse|special|storage|testing|utils|xpu"
)
# Frames that say nothing about the user's program: PyTorch's own, built-in functions, wrappers of contexts, threads and aiter's operators.
_INTERNAL = (
    rf"^<|^nn\.Module: |(site|dist)-packages/torch/|(^|/)torch/({_OF_TORCH})(/|\.py\()|"
    r"(^|/)(threading|contextlib|functools|inspect|typing|enum|abc|torch_guard)\.py\("
)
_SLICE = 1 << 18  # events
_BEFORE_PACKAGE = r"^.*(site|dist)-packages/"


def frames(trace: Trace, chosen: pl.Expr, moments: pl.Series | None = None) -> pl.DataFrame:
    """The chosen Python frames, a caller before what it calls: `ts`, `end`, `name`, `rank`, `pid`, `tid`.

    moments: ns; only the frames that were open at any of them, on whatever thread.
    """
    return _frames(trace.events, python_names(trace), chosen, moments)


def launching_frames(trace: Trace, chosen: pl.Expr) -> pl.DataFrame:
    """The same around `launching_calls`: those of the capture traces, too."""
    own = frames(trace, chosen)
    if trace.captured is None:
        return own
    return pl.concat([own, _frames(trace.captured.events, _python_names(trace.captured.events), chosen)])


def _frames(
    events: pl.DataFrame, names: pl.DataFrame, chosen: pl.Expr, moments: pl.Series | None = None
) -> pl.DataFrame:
    names = names.filter(chosen)
    at = None if moments is None else moments.sort()
    columns = events.select("ts", "dur", "name", "rank", "pid", "tid", "kind")
    parts = [columns.clear()]
    # A trace has millions of frames: of those that are open at a few moments no table of all is made.
    for part in columns.iter_slices(_SLICE):
        if at is not None:
            part = part.filter(holding(part["ts"], part["ts"] + part["dur"], at))
        python = part.lazy().filter(pl.col("kind") == "python")
        parts.append(python.filter(pl.col("name").is_in(names["name"].implode())).collect())
    found = pl.concat(parts).select("ts", "name", "rank", "pid", "tid", end=pl.col("ts") + pl.col("dur"))
    if (found["ts"].diff() > 0).all():
        return found
    return found.sort("ts", "end", descending=[False, True], maintain_order=True)


@once
def python_names(trace: Trace) -> pl.DataFrame:
    """The different names of Python frames: few, as a program's functions are."""
    return _python_names(trace.events)


def _python_names(events: pl.DataFrame) -> pl.DataFrame:
    return events.lazy().filter(pl.col("kind") == "python").select("name").unique().collect()


def module_frames(trace: Trace) -> pl.DataFrame:
    """The calls of nn.Modules around `launching_calls`, recorded with stacks."""
    return launching_frames(trace, pl.col("name").str.starts_with("nn.Module: "))


def user_frames(trace: Trace, moments: pl.Series) -> pl.DataFrame:
    """The frames of the user's program and its libraries, PyTorch's own left out, that were open at any of these moments."""
    return frames(trace, ~pl.col("name").str.contains(_INTERNAL), moments)


def launching_user_frames(trace: Trace) -> pl.DataFrame:
    """All of them around `launching_calls`: those of the capture traces, too."""
    return launching_frames(trace, ~pl.col("name").str.contains(_INTERNAL))


def place(name: str = "call_site") -> pl.Expr:
    """A frame's name with the path from the packages' folder on: `transformers/activations.py(77): forward`."""
    return pl.col(name).str.replace(_BEFORE_PACKAGE, "")


def enclosing(trace: Trace, of: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """(for each GPU event of `origins` the frame around its operator, where it is certain which call of it that was, else
    around its launch; for each frame the one around it), as in `around`.
    """
    of_call, above = around(trace, of)
    place = pl.coalesce(pl.when(pl.col("placed") | ~pl.col("graph")).then("op"), "launch")
    return of_call.gather(origins(trace).select(place).to_series()), above


def around(trace: Trace, of: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """(for each of `launching_calls` the innermost of these frames around it, for each frame the one around it): rows of
    `of`, or null.

    A backward operator runs on a thread without Python: it has the frame of the last forward operator with its
    sequence number.
    """
    calls = launching_calls(trace)
    places = pl.concat([of.select(THREAD), calls.select(THREAD)])
    thread = places.select(THREAD_NUMBER).to_series().to_numpy()
    del places  # as large as all that follows
    start, end = (np.concatenate([of[column].to_numpy(), calls[column].to_numpy()]) for column in ("ts", "end"))
    parent = callers(start, end, thread)
    is_frame = np.arange(start.size) < of.height
    found = nearest(parent, is_frame)
    above = np.where(parent >= 0, found[parent], -1)[: of.height]
    return _null(_forward(calls, found[of.height :])), _null(above)


def _forward(calls: pl.DataFrame, frame: Ints) -> Ints:
    """The frames of calls; of a backward one without a frame, the one that its sequence number leads to."""
    numbered = calls.select("rank", "sequence", "ts", "name", frame=pl.Series(frame, dtype=pl.Int64)).with_row_index(
        "at"
    )
    known = pl.col("sequence").is_not_null()
    forward = (
        numbered.filter(known, pl.col("frame") >= 0)
        .sort("ts")
        .unique(["rank", "sequence"], keep="last")
        .drop("at", "name", "ts")
    )
    caused = (calls["sequence"].is_not_null() & calls["name"].str.contains("(?i)backward")).to_numpy()
    source = outermost(calls["caller"].to_numpy(), caused)
    joined = numbered.select("rank", "sequence").join(
        forward, on=["rank", "sequence"], how="left", nulls_equal=True, maintain_order="left"
    )
    by_number = joined["frame"].fill_null(-1).to_numpy()
    return np.where((frame < 0) & (source >= 0), by_number[source], frame)


def _null(index: Ints) -> pl.Series:
    return pl.select(pl.when(pl.Series(index) >= 0).then(pl.Series(index))).to_series()
