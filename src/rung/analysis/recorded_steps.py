"""The steps of an inference server on the host: those that it annotated, else those that recorded shapes show."""

from __future__ import annotations

import polars as pl

from rung.analysis.calls import host_calls
from rung.analysis.costs import Unknown, read_call
from rung.analysis.costs.attention import FORMS, Queried, forward, queried
from rung.analysis.nesting import nearest
from rung.analysis.once import once
from rung.analysis.server_steps import BEGINNING, DECODE, PREFILL, SPECULATIVE, Lengths, ServerStep, read_step
from rung.trace.table import Trace

ANNOTATION, SHAPES = "annotation", "shapes"
# So many new tokens a sequence are a draft that is verified, more are a part of a prompt. Servers draft 1 to 8 tokens
# (vLLM's num_speculative_tokens, SGLang's speculative_num_steps), and cut prompts into hundreds.
MOST_DRAFTED = 16

SCHEMA = {
    "rank": pl.Int32(),
    "ts": pl.Int64(),
    "name": pl.String(),
    "source": pl.String(),
    "step": pl.Object(),
}


@once
def recorded_steps(trace: Trace) -> pl.DataFrame:
    """One row a step, by rank and start: `ts` (ns), `name` (the annotation), `source` ("annotation", or "shapes" where it is
    inferred), `step` (a ServerStep). Empty where nothing shows that there are any.
    """
    rows = _annotated(trace) or _inferred(trace)
    return pl.DataFrame(rows, schema=SCHEMA, orient="row").sort("rank", "ts", maintain_order=True)


_Row = tuple[int | None, int, str | None, str, ServerStep]


def _annotated(trace: Trace) -> list[_Row]:
    """By the annotations. Of names inside each other the outermost is the step, completed by what the others say."""
    calls = host_calls(trace)
    named = calls.with_row_index("at").filter(pl.col("kind") == "annotation", pl.col("name").str.contains(BEGINNING))
    read = {name: read_step(name) for name in named["name"].unique()}
    named = named.filter(pl.col("name").is_in([name for name, step in read.items() if step]))
    chosen = pl.Series([False]).new_from_index(0, calls.height).scatter(named["at"], True).to_numpy()
    around = nearest(calls["caller"].to_numpy(), chosen)
    steps: dict[int, tuple[int | None, int, str, ServerStep]] = {}
    root: dict[int, int] = {}
    for at, caller, rank, ts, name in named.sort("ts", "dur", descending=[False, True], maintain_order=True).select(
        "at", "caller", "rank", "ts", "name"
    ).iter_rows():  # fmt: skip
        step, outer = read[name], int(around[caller]) if caller >= 0 else -1
        assert step is not None
        if outer < 0:
            root[at] = at
            steps[at] = (rank, ts, name, step)
        else:
            root[at] = root[outer]
            *where, known = steps[root[at]]
            steps[root[at]] = (*where, known.completed(step))  # type: ignore[assignment]
    return [(rank, ts, name, ANNOTATION, step) for rank, ts, name, step in steps.values()]


def _inferred(trace: Trace) -> list[_Row]:
    """By the shapes of attention over cached keys, of a program that generates but annotates nothing.

    A step begins with an embedding (of tokens, positions) after the attention of the last one, and its first attention tells
    what it is. There must be some with a few queries and more keys, which were cached then; and no backward pass.
    """
    calls = host_calls(trace)
    if calls["name"].str.contains("(?i)backward").any():
        return []
    attends = [name for name, (kind, _) in FORMS.items() if kind is forward]
    rows = calls.filter(pl.col("name").is_in([*attends, "aten::embedding"])).sort("rank", "ts", maintain_order=True)
    found: list[tuple[int | None, int, Queried]] = []
    begun: tuple[int | None, int] | None = None
    columns = ("rank", "ts", "name", "dims", "dtypes", "strides", "concrete")
    for rank, ts, name, dims, dtypes, strides, concrete in rows.select(columns).iter_rows():
        if name == "aten::embedding":
            begun = begun if begun and begun[0] == rank else (rank, ts)
        elif begun:
            asked = _queried(name, dims, dtypes, strides, concrete)
            if asked:
                found.append((*begun, asked))
            begun = None
    if not any(asked.queries < asked.keys and asked.queries <= MOST_DRAFTED for _, _, asked in found):
        return []
    return [(rank, ts, None, SHAPES, _step(asked)) for rank, ts, asked in found]


def _queried(
    name: str, dims: str | None, dtypes: str | None, strides: str | None, concrete: str | None
) -> Queried | None:
    try:
        return queried(read_call(name, dims, dtypes, strides, concrete))
    except Unknown:
        return None


def _step(asked: Queried) -> ServerStep:
    """The step of sequences that are as long as the shapes say, the padding of shorter ones included."""
    sequences, queries, keys = asked.sequences, asked.queries, asked.keys
    lengths = Lengths(*(sequences * number for number in (queries, keys, queries * queries, queries * keys)))
    tokens = sequences * queries
    if queries == keys or queries > MOST_DRAFTED:
        return ServerStep(PREFILL, sequences, sequences, 0, tokens, 0, lengths, certain=False)
    phase = DECODE if queries == 1 else SPECULATIVE
    return ServerStep(phase, sequences, 0, sequences, 0, tokens, lengths, certain=False)
