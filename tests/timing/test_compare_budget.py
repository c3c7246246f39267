"""What a budget of `rung compare` can decide, said once the first restart has shown what one takes."""

import pytest

from rung.timing.compare import how_long, too_short


@pytest.mark.parametrize(("budget", "restart"), [(60.0, 10.0), (5.0, 1.0)])
def test_a_budget_in_which_a_verdict_can_be_reached_is_left_without_a_word(budget: float, restart: float) -> None:
    assert too_short(budget, restart) == ""


def test_one_that_is_too_short_says_what_would_do() -> None:
    assert too_short(6.0, 5.0) == (
        "the budget allows about 1 restart of 5 s; the earliest verdict needs 5, about 25 s: give --budget 30 or more"
    )
    assert "about 3 restarts of 10 s" in too_short(30.0, 10.0)


def test_without_a_budget_it_says_how_long_it_may_take_where_that_is_minutes() -> None:
    assert how_long(1.9) == ""
    assert how_long(12.0) == (
        "a restart takes 12 s, and 5 to 30 are needed, more where the sides are close: 1 to 6 minutes in all. --budget SECONDS ends it sooner"
    )
