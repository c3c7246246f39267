"""A climb's events in words."""

import pytest
from climb_sample import unfinished

from rung.ladder.climb.bundles import in_words
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
    assert progress.now_line(Now("", 0.0, ("survey",), ())) == "no recipe yet · meanwhile: looking at the graph"


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("baseline", "preparing the untouched model"),
        ("plain-default", "preparing torch.compile"),
        ("plain-max-autotune-again", 'preparing torch.compile(mode="max-autotune")'),
        ("plain-default-tf32", "preparing torch.compile, in TF32"),
        ("plain-default-verify-exact", "verifying torch.compile"),
        ("plain-verify-exact-again", "verifying torch.compile"),
        ("plain-default-beside-best", "preparing the best so far"),
        ("together", "preparing several rungs together"),
        ("together-fewer-verify-bf16-over-ranks", "verifying several rungs together"),
        ("shapes-verify-exact", "verifying other shapes"),
        ("sdpa-precompile-exact", "compiling sdpa for its verification"),
        ("sdpa-first", "preparing sdpa"),
        ("final", "preparing the recipe"),
        ("final-best", "preparing the untouched model"),
        ("final-plain", "preparing torch.compile"),
    ],
)
def test_a_task_has_the_words_of_the_other_lines(task: str, words: str) -> None:
    assert progress.doing(task) == words


def test_a_bundle_is_called_the_same_on_both_rows() -> None:
    assert (in_words("together"), in_words("sdpa")) == (progress.CANDIDATES["together"], "sdpa")


def test_what_is_under_way_is_not_told_to_come_next() -> None:
    said = progress.now_line(Now("", 0.0, ("final-best", "final"), ("together", "together-verify-exact", "final")))
    assert said == (
        "no recipe yet · meanwhile: preparing the untouched model, preparing the recipe · next: preparing several rungs together, verifying several rungs together"
    )
