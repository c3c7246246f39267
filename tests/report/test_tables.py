"""Any table fits the width, and its values have the unit that the column's name says."""

import polars as pl
import pytest

from rung.report.tables import shortened, table_lines

FRAME = pl.DataFrame(
    {
        "kernel": ["Cijk_" + "x" * 90 + "_WG64", "short"],
        "device": [0, 12345],
        "total_ns": [2_750_000, None],
        "peak_bytes": [1 << 30, 10],
        "share": [0.5, float("nan")],
        "a_very_long_heading_of_a_count": [1234567, 1],
        "linked": [True, False],
    }
)


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_no_line_is_wider_than_asked(width):
    assert max(map(len, table_lines(FRAME, width=width))) <= width


def test_units_follow_the_names_and_what_is_missing_is_blank():
    text = "\n".join(table_lines(FRAME, width=200))
    for value in ("2.75 ms", "1.0 GiB", "50.0%", "1,234,567", "12345", "yes", "–"):
        assert value in text
    assert "total" in text
    assert "_ns" not in text


def test_a_rate_has_its_unit_in_the_heading():
    rates = pl.DataFrame({"bus_gb_per_s": [3.5], "tb_per_s": [1.5], "tflop_per_s": [250.0]})
    assert "\n".join(table_lines(rates)).split() == ["bus", "GB/s", "TB/s", "TFLOP/s", "3.50", "1.50", "250"]


def test_a_column_without_room_is_named():
    assert any("no room for" in line for line in table_lines(FRAME, width=50))


def test_what_is_not_shown_is_counted():
    lines = table_lines(FRAME, width=200, top=1)
    assert lines[-1] == "... 1 more rows"
    assert "short" not in "\n".join(lines)


def test_a_table_without_rows_says_so():
    assert table_lines(FRAME.clear(), width=80)[-1] == "(no rows)"


def test_names_of_strangers_cannot_steer_the_terminal():
    assert "\x1b" not in "\n".join(table_lines(pl.DataFrame({"name": ["\x1b[31mred\nnext"]})))


@pytest.mark.parametrize("width", [1, 3, 4, 10, 30])
def test_a_shortened_text_keeps_its_ends(width):
    text = shortened("beginning and end", width)
    assert len(text) <= width
