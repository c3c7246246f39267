"""Lines and tables on a terminal: no line is wider than it, and nothing that was said is lost."""

import re
import time

import pytest

from rung.report.layout import Cell, Column, hanging, styled, table_of, width_of, wrap

COLUMNS = [Column("name", wraps=True), Column("first\nsecond", right=True), Column("why", wraps=True)]
ROWS = [
    [Cell("one-with-a-long-name"), Cell("1.2×\n1.0–1.4"), Cell("It is faster by more than could be chance.", "green")],
    [Cell("two"), Cell("–"), Cell("")],
]


def test_lines_break_between_words_and_long_words_anywhere() -> None:
    assert wrap("one two  three", 9) == ["one two", "three"]
    assert wrap("one two  three", 14) == ["one two  three"]
    assert wrap("abcdefgh ij", 3) == ["abc", "def", "gh", "ij"]
    assert wrap("a\n\n  b ", 10) == ["a", "", "  b"]
    assert wrap("", 10) == [""]
    assert wrap("it takes 784.419 ms a step", 19) == ["it takes 784.419 ms", "a step"]
    assert wrap("it takes 784.419 ms a step", 18) == ["it takes", "784.419 ms a step"]


def test_a_line_goes_on_further_in_and_a_path_stays_whole() -> None:
    assert hanging("  note: one two three", 14) == ["  note: one", "    two three"]
    assert hanging("run directory: .rung/20261126-231617-tiny", 20) == [
        "run directory:",
        "  .rung/20261126-231617-tiny",
    ]
    assert hanging("  " + "x" * 30, 20) == ["  " + "x" * 30]
    assert hanging("ready after 12.5 s", 16) == ["ready after", "  12.5 s"]
    assert hanging("", 20) == [""]


def test_wide_characters_take_two_columns_and_marks_none() -> None:
    assert (width_of("abc"), width_of("表計"), width_of("e\u0301"), width_of("✓×–")) == (3, 4, 1, 3)
    assert wrap("表計算表計算", 5) == ["表計", "算表", "計算"]
    assert wrap("表", 1) == ["表"]  # it fits nowhere


@pytest.mark.parametrize("width", [44, 60, 100])
def test_a_table_is_as_wide_as_it_may_be_and_shows_all(width: int) -> None:
    lines = table_of(COLUMNS, ROWS, width, color=False)
    assert max(map(width_of, lines)) == width
    assert lines[0].split() == ["first"]
    assert lines[1].split() == ["name", "second", "why"]
    assert lines[2] == "─" * width
    text = " ".join(" ".join(lines).split())
    for word in ("faster", "chance.", "1.2×", "1.0–1.4", "two"):
        assert word in text
    assert (len(lines) == 6) == (width >= 60)  # the last column takes what the others leave
    assert lines[1].index("second") + len("second") == lines[3].index("1.2×") + len("1.2×")  # on the right


def test_a_narrow_table_takes_from_the_columns_that_wrap() -> None:
    lines = table_of(COLUMNS, ROWS, 32, color=False)
    assert max(map(width_of, lines)) == 32
    assert "".join(line[:11].strip() for line in lines[3:-1]) == "one-with-a-long-name"


def test_a_cell_that_does_not_wrap_is_cut() -> None:
    lines = table_of(COLUMNS, [[Cell("x"), Cell("y" * 500), Cell("z")]], 60, color=False)
    assert max(map(len, lines)) <= 60


def test_colors_come_without_changing_the_layout() -> None:
    plain, colored = (table_of(COLUMNS, ROWS, 60, color=color) for color in (False, True))
    assert [re.sub("\x1b\\[[0-9;]*m", "", line).rstrip() for line in colored] == plain
    assert "\x1b[32mIt is" in "".join(colored)
    assert styled("x", "bold green", True) == "\x1b[1;32mx\x1b[0m"
    assert styled("x", "bold green", False) == styled("x", "", True) == "x"


@pytest.mark.parametrize("text", ["x" * 40_000, "é" * 40_000, " " * 20_000, "a " * 10_000])
def test_the_time_of_a_text_grows_as_its_length(text: str) -> None:
    def seconds(text: str) -> float:
        spent = []
        for _ in range(3):
            began = time.thread_time()
            wrap(text, 80)
            hanging(text, 80)
            spent.append(time.thread_time() - began)
        return min(spent)

    assert seconds(text * 10) < 40 * seconds(text) + 0.01  # as its square: 100 times
