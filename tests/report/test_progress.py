"""A climb's events in words."""

from climb_sample import unfinished

from rung.records.progress import Now, Surveyed
from rung.report import progress


def test_parameters_without_a_gradient_are_told_with_what_the_audit_found() -> None:
    facts = unfinished().manifest.facts
    assert not [line for line in progress.progress_lines(Surveyed(facts)) if "gradient" in line]
    facts.without_gradient = ["head.bias"]
    assert "  note: 1 trainable parameter gets no gradient: head.bias" in progress.progress_lines(Surveyed(facts))
    facts.without_gradient = [f"w{k}" for k in range(7)]
    [said] = [line for line in progress.progress_lines(Surveyed(facts)) if "gradient" in line]
    assert said == "  note: 7 trainable parameters get no gradient: w0, w1, w2, w3, w4 and 2 more"


def test_the_age_of_the_answer_is_whole_seconds() -> None:
    said = [progress.now_line(Now("1.20× verified", age, (), ())) for age in (0.017, 2.7, 179.4)]
    assert said == [f"best so far 1.20× verified ({age})" for age in ("just now", "3 s ago", "2 min 59 s ago")]
    assert progress.now_line(Now("", 0.0, ("survey",), ())) == "no recipe yet · in the background: survey"
