"""What a notebook shows of a result."""

import rung
from rung.report.notebook import panel, progress


def test_a_measurement_is_shown_with_what_the_command_prints_and_its_name_stays_text() -> None:
    found = rung.bench(lambda: sum(range(1000)), name="<script>alert(1)</script>", seconds=0.2)
    shown = found._repr_html_()
    assert "<script>" not in shown
    assert "Measurement of &lt;script&gt;" in shown
    assert "median step" in shown
    assert shown.count("<pre ") == 1


def test_lines_stay_lines_and_escapes_of_a_terminal_are_not_passed_on() -> None:
    shown = panel("a & b", ["  one", "two \x1b[31mred"])
    assert "a &amp; b" in shown
    assert 'overflow-x: auto">  one\ntwo' in shown
    assert "\x1b" not in shown


def test_links_and_what_goes_on_are_escaped_too() -> None:
    assert '<a href="a&amp;b.html" target="_blank">report</a>' in panel("a", ["b"], {"report": "a&b.html"})
    assert "<a " not in panel("a", ["b"])
    shown = progress("timing <x>", ["{0} <said>\x1b[31m"], "below <y>")
    assert "{0} &lt;said&gt;" in shown
    assert "timing &lt;x&gt;<br><small>below &lt;y&gt;</small>" in shown
    assert "\x1b" not in shown
