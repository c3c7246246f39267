"""What an agent is answered fits, is JSON, and says how to get what was left out."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.agents.bounded import bounded, cut_to_fit, how_to_see_more, part_of, slice_of, text_of
from rung.errors import UsageError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=30) | st.dictionaries(st.text(max_size=5), inner, max_size=6),
    max_leaves=40,
)


@given(VALUES, st.integers(100, 400))
def test_an_answer_is_never_longer_than_it_may_be_and_whole_where_it_fits(value: Any, most: int) -> None:
    smaller, cuts = bounded(value, most)
    assert len(text_of(smaller)) <= most
    assert json.loads(text_of(smaller)) == smaller
    assert (smaller == value and not cuts) if len(text_of(value)) <= most else cuts


@given(VALUES, st.integers(400, 800))
def test_an_answer_and_its_note_together_are_never_longer(value: Any, most: int) -> None:
    smaller, note = cut_to_fit(value, "1", most)
    assert len(text_of(smaller)) + len(note) <= most


def test_an_answer_that_just_fits_leaves_room_for_its_note() -> None:
    documents = [table(rows) for rows in range(40, 140)]
    assert any(len(text_of(document)) > 3000 for document in documents)
    for document in documents:
        smaller, note = cut_to_fit(document, "1", 3000)
        assert len(text_of(smaller)) + len(note) <= 3000
        assert bool(note) == (smaller != document)


def test_missing_rows_are_named_before_the_missing_end_of_a_text() -> None:
    document = {"rows": [{"sql": "s" * 9000, "time": k} for k in range(300)]}
    _, note = cut_to_fit(document, "1", 5000)
    assert note.startswith("Cut to fit: /rows: ")
    assert 'part="/rows", start=' in note


@given(VALUES)
def test_every_cut_names_the_place_that_was_cut(value: Any) -> None:
    for cut in bounded(value, 150)[1]:
        if cut.pointer:
            assert len(part_of(value, cut.pointer)) == cut.of > cut.kept


def table(rows: int) -> dict[str, Any]:
    return {"kind": "analyze", "tables": {"ops": [{"name": f"op{k}", "time": k} for k in range(rows)]}}


def test_the_rest_of_a_table_can_be_had_by_the_call_that_is_named() -> None:
    document = table(1000)
    smaller, cuts = bounded(document, 3000)
    kept = len(smaller["tables"]["ops"])
    said = how_to_see_more("3", cuts)
    assert f"/tables/ops: {kept} of 1000 entries are shown" in said
    asked = re.search(r'job_result\(job="3", part="(.*)", start=(\d+)\)', said)
    assert asked
    found = list(smaller["tables"]["ops"])
    while len(found) < 1000:
        piece = slice_of(document, asked[1], len(found), 3000)
        assert len(text_of(piece)) <= 3000
        assert piece["of"] == 1000
        found += piece["value"]
    assert found == document["tables"]["ops"]


def test_samples_are_cut_shorter_than_tables() -> None:
    smaller, _ = bounded({"samples": list(range(5000)), **table(60)}, 12_000)
    assert len(smaller["samples"]) < len(smaller["tables"]["ops"]) == 60


def test_parts_of_objects_and_texts_and_of_what_is_too_long_itself() -> None:
    document = {
        "a/b": {f"k{k}": k for k in range(200)},
        "log": "x" * 5000,
        "rows": [["y" * 4000], ["z" * 4000]],
        "n": 7,
    }
    assert list(slice_of(document, "/a~1b", 190, 2000)["value"]) == [f"k{k}" for k in range(190, 200)]
    assert slice_of(document, "/log", 4990, 2000)["value"] == "x" * 10
    assert slice_of(document, "/n", 0)["value"] == 7
    piece = slice_of(document, "/rows", 1, 2000)
    assert piece["cut"][0].startswith("/rows/1/0: ")
    assert slice_of(document, "/rows", 2, 2000)["value"] == []


@pytest.mark.parametrize(
    ("part", "said"), [("/tables/op", "it has ops"), ("/tables/ops/7", "it has 3 entries"), ("/kind/x", "plain value")]
)
def test_a_part_that_is_not_there_is_refused_with_what_is(part: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        slice_of(table(3), part, 0)
