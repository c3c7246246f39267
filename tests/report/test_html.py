import contextlib
import math
import re
import xml.etree.ElementTree as ET
from typing import Any

import climb_sample
import pytest
from climb_sample import VERDICTS, climb, nothing_kept, planned, unfinished
from made_pages import without_own_scripts
from msgspec import ValidationError
from msgspec.structs import fields, replace

from rung.records.climb import Attempt, ClimbRun, Plain
from rung.records.measured import Figure, Ratio
from rung.records.record import plain, record_of
from rung.records.workload import Recompilation
from rung.report import charts
from rung.report.html import render


def everywhere(run: ClimbRun, change: Any) -> ClimbRun:
    """The record with every leaf replaced by change(leaf), but for words of which there are few."""

    def changed(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {key: changed(inner, key) for key, inner in value.items()}
        if isinstance(value, list):
            return [changed(inner) for inner in value]
        return value if key in ("kind", "answer") else change(value)

    return record_of(ClimbRun, changed(plain(run)))


def pictures(page: str) -> list[ET.Element]:
    """Every outer svg of the page, parsed as XML."""
    found, depth, start = [], 0, 0
    for tag in re.finditer(r"<(/?)svg\b", page):
        start = tag.start() if depth == 0 else start
        depth += -1 if tag[1] else 1
        if depth == 0:
            found.append(ET.fromstring(page[start : page.index(">", tag.start()) + 1]))
    assert depth == 0
    return found


def test_a_page_shows_the_gain_the_verdicts_and_how_to_use_it() -> None:
    page = render(climb())
    assert "9.40×" in page
    assert all(verdict in page for verdict in VERDICTS)
    assert "rung bench tiny-transformer --recipe runs/2026-01-02-tiny-transformer/recipe.toml" in page
    assert "gradient of blocks.0.attention.key.weight is missing" in page
    assert "call to print() in blocks.0.forward" in page


def test_a_page_tells_one_time_before_and_one_after() -> None:
    """Those of the final comparison, which timed both sides beside each other."""
    data = climb()
    data.result.times["baseline"] = Figure(value=31.4e6, low=31.0e6, high=32.0e6)
    page = render(data)
    assert re.search(r"Step before</dt>\s*<dd>31\.4", page)
    assert "Before: 31.4 ms per step" in page
    assert "After: 2.83 ms per step" in page


def test_a_page_needs_no_network_and_has_no_script_but_rung_s() -> None:
    page = without_own_scripts(render(climb()))
    assert not re.search(r"https?://|<script|@import|url\(|\bsrc=", page)


def test_text_of_others_is_shown_and_not_obeyed() -> None:
    evil = "\"'><script>alert(1)</script>{{ 7 * 7 }}\x1b"
    page = render(everywhere(climb(), lambda leaf: evil if isinstance(leaf, str) else leaf))
    assert "<script" not in without_own_scripts(page)
    assert "&lt;script&gt;" in page
    assert "\x1b" not in page
    kernel = climb()
    kernel.attempts[0].breakdown.top[0] = ("<script>kernel</script>", "gemm", 1e6, 1.0)
    kernel.attempts[0].rung = "<script>"
    page = render(kernel)
    assert "&lt;script&gt;kernel&lt;/script&gt;" in page
    pictures(page)


def test_pictures_are_well_formed() -> None:
    found = pictures(render(climb()))
    assert [svg.get("class") for svg in found[:3]] == ["ladder", "bars", "forest"]
    assert len(found) == 3 + sum(bool(a.restarts) for a in climb().attempts)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_no_number_breaks_a_picture(value: float) -> None:
    page = render(everywhere(climb(), lambda leaf: value if isinstance(leaf, float) else leaf))
    pictures(page)
    assert not re.search(r'="[^"]*\b(nan|inf)\b', page)


def test_one_bad_number_leaves_the_rest_of_a_picture() -> None:
    data = climb()
    data.attempts[1].times["candidate"].value = math.nan
    data.attempts[2].times["candidate"].low = -math.inf
    data.attempts[0].restarts[0]["best"][3] = math.inf
    page = render(data)
    assert pictures(page)[0].get("class") == "ladder"
    assert not re.search(r'="[^"]*\b(nan|inf)\b', page)


def test_a_side_without_samples_leaves_the_rest() -> None:
    data = climb()
    data.attempts[0].restarts[0] = {"best": []}
    assert len(pictures(render(data))) == len(pictures(render(climb())))


@pytest.mark.parametrize("part", ["baseline", "plan", "result"])
def test_a_missing_part_is_left_out(part: str) -> None:
    pictures(render(replace(climb(), **{part: None})))


def test_fields_that_an_attempt_lacks_are_left_out() -> None:
    whole = plain(climb().attempts[0])
    lacking = [record_of(Attempt, {"number": 1, "rung": "x", "verdict": "kept", "against": "baseline"})]
    for field in (f.name for f in fields(Attempt) if not f.required):
        lacking.append(record_of(Attempt, {key: value for key, value in whole.items() if key != field}))
        with contextlib.suppress(ValidationError):  # it may be missing, and not null
            lacking.append(record_of(Attempt, whole | {field: None}))
    assert len(lacking) > 50
    page = render(replace(climb(), attempts=lacking))
    pictures(page)
    assert "UNSET" not in page


def test_an_unfinished_climb_says_how_to_resume() -> None:
    page = render(unfinished())
    assert "Not finished" in page
    assert "rung climb --resume" in page
    assert "None" not in page


def test_a_dry_run_shows_what_would_be_tried_and_what_would_not() -> None:
    page = render(planned())
    pictures(page)
    assert page.index("<b>sdpa</b>") < page.index("channels-last, cudnn-attention")
    assert "1.20–2.00×" in page
    assert "Not finished" not in page
    assert "Nothing was compared with it" in page
    assert "Nothing was compared with it" not in render(climb())


def test_a_climb_that_kept_nothing_says_so() -> None:
    page = render(nothing_kept())
    assert "Nothing was kept" in page
    assert "rung.apply" not in page


def test_the_ladder_is_logarithmic_only_over_a_wide_range() -> None:
    _, ticks = charts._scale([1.0, 9.4])
    assert ticks == pytest.approx([1, 2, 5, 10])
    place, ticks = charts._scale([1.0, 3.0])
    assert ticks == pytest.approx([1, 2, 3])
    assert place(1) - place(2) == pytest.approx(place(2) - place(3))


def heights(data: ClimbRun, css: str) -> list[float]:
    return [
        -float(dot.get("cy") or 0) for dot in ET.fromstring(charts.ladder(data)).findall(f".//circle[@class='{css}']")
    ]


def test_what_is_kept_goes_up_however_the_machine_changes() -> None:
    """The second attempt ran while the machine was three times as slow."""
    data = replace(climb(), result=None)
    data.attempts = [
        climb_sample.attempt(1, "compile", "kept", "", 20e6, 10e6),
        climb_sample.attempt(2, "sdpa", "kept", "", 30e6, 25e6),
        climb_sample.attempt(3, "tf32", "reverted", "", 25e6, 26e6),
    ]
    kept = heights(data, "kept")
    assert kept == sorted(kept)
    assert len({*kept}) == 3
    (tried,) = heights(data, "tried")
    assert kept[1] < tried < kept[2]


def test_the_end_of_the_ladder_is_what_the_headline_says() -> None:
    data = climb()
    data.result.status, data.result.speedup = "confirmed", Figure(value=3.21, low=3.1, high=3.3)
    data.result.plain = Plain(rungs=["compile"], speedup=2.5)
    picture = charts.ladder(data)
    assert ">3.21×<" in picture
    assert '<tspan class="minor">best plain </tspan>torch.compile: 2.50×' in picture
    data.result.status = "verified"  # of one restart each: the staircase says so already
    assert ">3.21×<" not in charts.ladder(data)


def test_an_answer_that_was_not_decided_in_time_is_on_the_staircase() -> None:
    """The headline tells of it. Another attempt that was not decided stays beside."""
    data = climb()
    undecided = {"before": 20e6, "after": 10e6}
    data.attempts = [
        climb_sample.attempt(1, "plain", "inconclusive", "", **undecided, stack=["compile"]),
        climb_sample.attempt(2, "sdpa", "inconclusive", "", **undecided, stack=["compile", "sdpa"]),
    ]
    data.result.status, data.result.kept = "provisional", ["compile"]
    picture = charts.ladder(data)
    assert ">plain, provisional<" in picture
    assert ">sdpa<" in picture
    assert len(heights(data, "kept")) == 1
    assert len(heights(data, "provisional")) == 1  # the table calls it inconclusive: not the mark of what was kept
    assert 'class="key provisional"' in render(data)
    assert 'class="key provisional"' not in render(climb())


def test_an_answer_that_is_another_mode_than_its_attempt_ended_with_has_a_place_of_its_own() -> None:
    """A slower mode was verified, and the faster one was not in time."""
    data = climb()
    data.attempts = [climb_sample.attempt(1, "plain", "inconclusive", "", 40e6, 10e6, stack=["bf16", "compile"])]
    data.result.status, data.result.kept, data.result.speedup = "verified", ["compile"], Figure(value=3.21)
    picture = charts.ladder(data)
    assert ">verified<" in picture
    assert ">3.21×<" in picture
    assert "the recipe, verified: 3.21× over the untouched model" in picture
    assert len(heights(data, "kept")) == 2


def test_two_tries_of_one_rung_are_told_apart() -> None:
    data = climb()
    data.attempts = [climb_sample.attempt(k, "sdpa", "inconclusive", "", 20e6, 19.9e6) for k in (1, 2)]
    assert ">sdpa<" in charts.ladder(data)
    assert ">sdpa (2)<" in charts.ladder(data)


@pytest.mark.parametrize("gain", [1.3, 9.5])
def test_a_whisker_that_is_cut_off_at_the_edge_ends_in_an_arrow_head(gain: float) -> None:
    """On either scale; a whisker that ends inside of the picture has none."""

    def heads(low: float, high: float) -> int:
        data = replace(climb(), result=None)
        data.attempts = [climb_sample.attempt(1, "tf32", "kept", "", gain, 1.0)]
        data.attempts[0].comparison.speedup = Ratio(value=gain, low=low, high=high)
        return len(ET.fromstring(charts.ladder(data)).findall(".//path"))

    assert heads(0.99 * gain, 1.01 * gain) == 0
    assert heads(0.99 * gain, 3 * gain) == 1
    assert heads(0.01, 3 * gain) == (2 if gain > 4 else 1)


def test_a_strip_has_at_most_its_limit_of_points_a_side() -> None:
    svg = ET.fromstring(charts.strip([{"best": [1e6 + i for i in range(500)], "candidate": [1e6]}] * 4)[0])
    sides = {name: len(svg.findall(f"g[@class='{name}']/circle")) for name in ("best", "candidate")}
    assert sides == {"best": charts.MOST_POINTS, "candidate": 4}


def test_the_evidence_has_a_row_a_comparison_and_a_dot_a_restart() -> None:
    data = climb()
    data.result.status, data.result.restarts = "confirmed", [{"best": [9.4e6], "candidate": [1e6]}] * 4
    [picture] = [svg for svg in pictures(render(data)) if svg.get("class") == "forest"]
    rows = {row[0].text: row for row in picture.findall("g")}
    compared = [a for a in data.attempts if a.comparison]
    assert len(rows) == len(compared) + 1
    assert {label: len(row.findall("circle")) for label, row in rows.items() if label} == {
        **{f"{a.rung}, {a.verdict}": 3 for a in compared},
        "confirmed, over the untouched model": 4,
    }
    assert rows["fused-projections, reverted"].get("class") == "tried"
    assert [text.text for text in rows["confirmed, over the untouched model"].findall("text")][1] == "9.40× (9.20–9.60)"


def test_what_is_compiled_anew_is_on_the_page() -> None:
    data = climb()
    data.manifest.facts.recompilations = [Recompilation(where="model.py:3 in forward", why="self.<calls> == 0")]
    page = render(data)
    assert "model.py:3 in forward: it was compiled for self.&lt;calls&gt; == 0" in page


def test_what_disturbed_an_attempt_is_on_the_page() -> None:
    data = climb()
    said = "the baseline took 20 ms a step when it was measured by itself, and 90 ms beside a candidate"
    data.attempts[0].warnings = [said]
    data.attempts[0].comparison.restarts = 1
    page = render(data)
    assert said in page
    assert "1 restart," in page


def test_how_it_was_measured_says_what_the_record_shows() -> None:
    """Not that both sides were restarted and gradients compared, where the headline says that they were not."""
    full = render(climb())
    assert "Both were restarted" in full
    assert "Outputs, loss, gradients and optimizer steps were compared" in full
    data = climb()
    for each in data.attempts:
        each.verification = None
        if each.comparison:
            each.comparison.restarts = 1
    data.result.restarts = []
    page = render(data)
    assert "restarted" not in page
    assert "Each side ran in one process" in page
    assert "No attempt was verified" in page
    timed = [each for each in data.attempts if each.comparison]
    timed[0].verification = climb().attempts[0].verification
    assert f"In 1 of the {len(timed)} attempts that were timed, outputs" in render(data)


def test_a_page_says_how_random_numbers_were_compared() -> None:
    said = "The forward draws random numbers: results were compared on equal ones"
    data = climb()
    assert said not in render(data)
    data.manifest.facts.draws = True
    assert said in render(data)


def test_an_answer_that_was_not_profiled_has_no_column_and_a_sentence() -> None:
    assert "<th>After</th>" in render(climb())
    data = climb()
    data.result.breakdown = None
    page = render(data)
    assert "<th>After</th>" not in page
    assert "The step of the answer was not profiled" in page


@pytest.mark.parametrize(("high", "heads"), [(2.5, 0), (40.0, 1)])
def test_a_prediction_is_inside_the_picture_or_ends_in_an_arrow_head(high: float, heads: int) -> None:
    data = replace(climb(), result=None)
    data.attempts = [climb_sample.attempt(1, "tf32", "kept", "", 2.0, 1.0)]
    assert data.attempts[0].prediction
    data.attempts[0].prediction.high = high
    picture = ET.fromstring(charts.ladder(data))
    [band] = picture.findall(".//line[@class='predicted']")
    assert len(picture.findall(".//path[@class='beyond']")) == heads
    if not heads:
        assert float(str(band.get("y2"))) > 26  # the top of the plot


def test_each_step_of_the_staircase_has_its_own_factor_and_a_phone_keeps_the_last() -> None:
    data = replace(climb(), result=None)
    data.attempts = [climb_sample.attempt(k, name, "kept", "", 4.0, 2.0) for k, name in ((1, "tf32"), (2, "sdpa"))]
    texts = [(t.text, t.get("class")) for t in ET.fromstring(charts.ladder(data)).findall("text")]
    assert texts.count(("2.00×", "tick minor")) == 2
    assert ("2.00×", "value minor") in texts
    assert ("4.00×", "value") in texts


def test_what_was_expected_of_a_rung_stands_beside_its_range_and_is_explained() -> None:
    data = climb()
    first = data.attempts[0]
    assert first.prediction
    first.prediction.expected, first.prediction_error = 1.304, 7.2
    page = " ".join(render(data).split())
    assert "1.20–2.00× <small>expected 1.30×</small>" in page
    assert "with the speedup that is expected within it" in page
    outcome = "1.20–2.00×, expected 1.30×. What was measured is inside the range, 7% of a step from what was expected. "
    assert outcome in page


def test_the_page_of_a_climb_that_kept_a_plain_mode_says_so() -> None:
    data = climb()
    data.result.over_plain = Ratio(value=1.0, low=None, high=None)
    assert "(by a plain mode of torch.compile" in render(data)
    data.result.over_plain = Ratio(value=1.1, low=1.05, high=1.15)
    page = render(data)
    assert "1.10× (1.05–1.15) over the best plain torch.compile.</p>" in page
    assert "by a plain mode" not in page


def test_the_worst_error_is_held_against_the_untouched_models_own() -> None:
    assert "0.001, 1.25× the untouched model's own error of 0.0008; allowed: 0.0024" in render(climb())
