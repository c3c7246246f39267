"""What should be done first? A ranked list, each with its evidence and what it can give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from rung.analysis.facts import Facts, Seen
from rung.analysis.rules import RULES, late_rank
from rung.analysis.timeline import timeline
from rung.toml import shipped
from rung.trace.table import Trace

SCHEMA: dict[str, pl.DataType] = {
    "finding": pl.String(),
    "share": pl.Float64(),
    "speedup_low": pl.Float64(),
    "speedup_high": pl.Float64(),
    "rungs": pl.List(pl.String()),
    "evidence": pl.String(),
    "do": pl.String(),
    "what": pl.String(),
    "gives_not": pl.String(),
    "compile_safe": pl.String(),
    "verify": pl.String(),
    "documentation": pl.String(),
}


def findings(trace: Trace, *, steps: int = 1) -> pl.DataFrame:
    """One row a finding, the largest gain first. Empty if the trace has no GPU events.

    Gains do not add up: two findings may be about the same time.

    finding: the name of the rule.
    share: of the GPUs' time from the first to the last event, what the finding is about.
    speedup_low, speedup_high: of the step by Amdahl's law, 1 / (1 - share * (1 - left)), where `left` is what remains of that time
        at worst and at best: a rung's own range, or an operator's floor by the roofline.
    rungs: the rungs of `rung climb` that do it and can apply to this work.
    evidence: what in the trace shows it.
    do: what to change. For a server's trace it names an option of the server, which Rung did not try.
    what: the bottleneck in words.
    gives_not: what not to expect.
    compile_safe: how it goes with torch.compile.
    verify: how to see that it worked.
    documentation: where it is described.
    """
    if timeline(trace).is_empty():
        return pl.DataFrame(schema=SCHEMA)
    facts = Facts(trace, steps)
    rows = []
    for name, rule in RULES.items():
        seen = rule(facts)
        if seen is None:
            continue
        texts = facts.fits.texts(catalogue()[name], seen.family)
        rows.append(_row(name, seen, texts, facts.fits.rungs(texts["rungs"])))
    table = pl.DataFrame(rows, schema=SCHEMA)
    middle = 1 - (1 / pl.col("speedup_low") + 1 / pl.col("speedup_high")) / 2  # of the time, what it saves
    return table.sort(middle, "finding", descending=[True, False])


def between_ranks(stragglers: pl.DataFrame, steps: int) -> pl.DataFrame:
    """The rows of `findings` that need no trace, only what lies between ranks. stragglers: the table."""
    seen = late_rank(stragglers, steps)
    rows = [_row("straggler", seen, catalogue()["straggler"], [])] if seen else []
    return pl.DataFrame(rows, schema=SCHEMA)


def _row(name: str, seen: Seen, texts: Mapping[str, Any], rungs: list[str]) -> dict[str, Any]:
    best, worst = seen.left or texts["left"]
    return (
        {key: texts[key] for key in ("what", "do", "gives_not", "compile_safe", "verify")}
        | {"rungs": rungs, "documentation": texts.get("documentation")}
        | {"finding": name, "share": seen.share, "evidence": seen.evidence}
        | {"speedup_low": _speedup(seen.share, worst), "speedup_high": _speedup(seen.share, best)}
    )


def _speedup(share: float, left: float) -> float:
    """Amdahl's law, at most a thousandfold."""
    return 1 / max(1e-3, 1 - share * (1 - left))


def catalogue() -> Mapping[str, Mapping[str, Any]]:
    """The texts of all findings: findings.toml."""
    return shipped("analysis/findings.toml")
