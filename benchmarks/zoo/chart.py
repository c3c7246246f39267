"""The zoo as one HTML page without scripts: a bar a model, KernelBench by level, and which rung came to what where."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import score
from rows import Results, Row

from rung.report.svg import escaped, line, svg, text
from rung.rungs import BY_NAME

_LINE, _TOP = 20.0, 30.0  # pixels
_LEFT, _RIGHT = 34.0, 6.0  # percent
_TICKS = (0.25, 0.5, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0, 50.0)
_CELL = 14  # pixels of a square of the matrix
_SHORT = {
    score.KEPT: "kept", score.SLOWER: "slower", score.REFUSED: "refused", score.NO_EFFECT: "none", score.UNDECIDED: "open",
    score.FAILED: "failed", score.INAPPLICABLE: "not-for", score.UNREACHED: "unreached",
}  # fmt: skip
_STYLE = """
:root { color-scheme: light dark; --ink: #1c1f23; --soft: #5b636d; --rule: #e1e3e6; --page: #fbfbfa; --good: #00705a; --bad: #b03010;
  --warn: #d08a20; --pale: #b9c4d0; --none: #eceef0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaec; --soft: #a3abb4; --rule: #31373d; --page: #14171a; --good: #3fae90;
  --bad: #e0704f; --warn: #c99330; --pale: #55606c; --none: #22272c; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 1100px; margin: 0 auto; padding: 24px; }
svg { display: block; overflow: visible; margin: 8px 0 28px; }
svg text { fill: var(--ink); font-size: 12px; } svg .tick { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--rule); } .one { stroke: var(--soft); } .ahead { fill: var(--good); } .behind { fill: var(--bad); } .range { stroke: var(--ink); }
.kept { fill: var(--good); } .slower { fill: var(--warn); } .refused { fill: var(--bad); } .failed { fill: #8a4fa8; } .none { fill: var(--pale); }
.open { fill: var(--soft); } .not-for { fill: var(--none); } .unreached { fill: none; stroke: var(--rule); }
.wide { overflow-x: auto; } .legend span { display: inline-block; margin-right: 18px; } .legend svg { display: inline-block; margin: 0 6px 0 0; vertical-align: -2px; }
""".strip()


def page(results: Results) -> str:
    rows = results.rows
    parts = []
    if any(row.toy for row in rows):
        parts.append("<p><b>At toy size</b>: these times try the runner and say nothing of the models.</p>")
    for (budget, variant), group in score.grouped(rows).items():
        mean = score.geometric_mean(score.over_best(row) for row in group)
        title = f"{variant}, {budget:.0f} s" + (f": {mean} in the geometric mean of {mean.count}" if mean else "")
        parts += [
            f"<h2>{escaped(title)}</h2>",
            "<p>Times as fast as the best of eager and the modes of torch.compile, at the same precision.</p>",
        ]
        parts.append(bars(group, score.over_best))
    for (level, numerics), group in score.levels(rows).items():
        parts += [
            f"<h2>{escaped(f'KernelBench {level}, {numerics}')}</h2>",
            "<p>Times as fast as eager.</p>",
            bars(group, score.over_eager),
        ]
    if climbed := score.climbed(rows):
        parts += ["<h2>Rungs</h2>", _legend(), squares(climbed)]
    devices = ", ".join(sorted({row.device for row in rows if row.device}))
    head = f"<h1>The zoo</h1><p>{escaped(devices)}</p>"
    return f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Rung: the zoo</title><style>{_STYLE}</style><body>{head}{"".join(parts)}</body></html>\n'


def bars(rows: Sequence[Row], ratio: Callable[[Row], float | None]) -> str:
    """A bar a row on a logarithmic scale, from 1 to its ratio, the largest first; those without a ratio come last, with the reason."""
    known = sorted(((r, row) for row in rows if (r := ratio(row))), key=lambda pair: -pair[0])
    missing = [row for row in rows if not ratio(row)]
    low = min([0.8, *(r for r, _ in known)])
    high = max([1.25, *(r for r, _ in known)])
    span = math.log(high / low) or 1.0

    def x(value: float) -> float:
        return _LEFT + (100 - _LEFT - _RIGHT) * math.log(value / low) / span

    bottom = _TOP + _LINE * len(known)
    body = [line(x(t), _TOP - 6, x(t), bottom, "one" if t == 1 else "grid") for t in _TICKS if low <= t <= high]
    body += [text(f"{t:g}×", x(t), _TOP - 12, "tick", "middle") for t in _TICKS if low <= t <= high]
    y = _TOP
    for value, row in known:
        left, right = sorted((x(1.0), x(value)))
        css = "ahead" if value >= 1 else "behind"
        said = f"{row.case}: {value:.3f} times; {score.status(row) or 'no recipe'}"
        tip = f"<title>{escaped(said)}</title>"
        body.append(
            f'<rect x="{left:.2f}%" y="{y + 3:.1f}" width="{max(right - left, 0.15):.2f}%" height="{_LINE - 7:.0f}" class="{css}">{tip}</rect>'
        )
        body.append(text(row.name, _LEFT - 1, y + 14, "", "end"))
        body.append(text(f"{value:.2f}×", right + 0.6, y + 14, "tick"))
        y += _LINE
    for row in missing:
        why = row.reason or (row.climb.why if row.climb else "not climbed yet")
        body += [text(row.name, _LEFT - 1, y + 14, "", "end"), text(why[:110], _LEFT + 0.6, y + 14, "tick")]
        y += _LINE
    return svg(y + 4, "bars", "speedup of each model", body)


def squares(rows: Sequence[Row]) -> str:
    """A square a rung and climb; rungs that came to nothing anywhere are left out, and told below."""
    found = score.matrix(rows, BY_NAME)
    shown = {rung: of for rung, of in found.items() if set(of.values()) - {score.UNREACHED, score.INAPPLICABLE}}
    labels = [row.label for row in rows]
    names, top = 170, 24 + 6 * max(map(len, labels))
    body = [
        f'<text transform="translate({names + _CELL * k + 10} {top - 6}) rotate(-60)">{escaped(label)}</text>'
        for k, label in enumerate(labels)
    ]
    for number, (rung, of) in enumerate(shown.items()):
        y = top + _CELL * number
        body.append(f'<text x="{names - 8}" y="{y + 11}" text-anchor="end">{escaped(rung)}</text>')
        for k, label in enumerate(labels):
            tip = f"<title>{escaped(f'{rung}, {label}: {of[label]}')}</title>"
            body.append(
                f'<rect x="{names + _CELL * k + 1}" y="{y + 1}" width="{_CELL - 2}" height="{_CELL - 2}" class="{_SHORT[of[label]]}">{tip}</rect>'
            )
    width, height = names + _CELL * len(labels) + 120, top + _CELL * len(shown) + 8
    inside = "".join(body)
    left = [rung for rung in found if rung not in shown]
    said = f"<p>Tried in none of these climbs: {escaped(', '.join(left))}.</p>" if left else ""
    return f'<div class="wide"><svg width="{width}" height="{height}" role="img" aria-label="outcome of each rung in each climb">{inside}</svg></div>{said}'


def _legend() -> str:
    square = '<svg width="12" height="12"><rect width="12" height="12" class="{}"/></svg>'
    return f'<p class="legend">{"".join(f"<span>{square.format(css)}{escaped(name)}</span>" for name, css in _SHORT.items())}</p>'
