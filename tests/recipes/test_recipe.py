"""Recipes: what is written is read back, and what is damaged is named."""

import functools
import math
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rung.errors import InputError
from rung.recipes.recipe import MADE_ON, STATUSES, Recipe, Status
from rung.rungs import BY_NAME, with_rung

TEXTS = st.text() | st.sampled_from(["", "a b", "a.b", '"', "'", "\\", "😀", "\x00\x1f\x7f\x85\u2028", "\r\n"])
NUMBERS = st.floats(allow_nan=False) | st.integers()


@settings(deadline=None)  # a busy machine is no failure
@given(
    rungs=st.lists(st.sampled_from(sorted(BY_NAME)), unique=True),
    workload=TEXTS,
    options=st.dictionaries(TEXTS, TEXTS),
    made_on=st.dictionaries(st.sampled_from(MADE_ON), TEXTS),
    measured=st.dictionaries(TEXTS, NUMBERS),
    status=st.sampled_from(["", *STATUSES]),
)
def test_every_recipe_that_is_written_is_read_back(
    rungs: list[str],
    workload: str,
    options: dict[str, str],
    made_on: dict[str, str],
    measured: dict[str, float],
    status: Status | Literal[""],
) -> None:
    kept = functools.reduce(lambda names, name: with_rung(names, BY_NAME[name]), rungs, [])  # as a climb does
    recipe = Recipe(tuple(kept), workload, options, "train", "fp8", made_on, measured, status=status)
    assert Recipe.parse(recipe.text()) == recipe


def test_a_speedup_that_is_no_number_is_written_as_such() -> None:
    assert math.isnan(Recipe.parse(Recipe((), measured={"speedup": math.nan}).text()).measured["speedup"])


def test_a_recipe_that_no_climb_has_checked_has_no_status() -> None:
    """As those that are written by hand, and those of earlier versions."""
    assert Recipe.parse('schema = 1\nrungs = ["compile"]').status == ""
    assert "status" not in Recipe(("compile",)).text()
    assert Recipe(("compile",), status="verified").text().splitlines()[1] == 'status = "verified"'


def test_numbers_written_by_hand_are_options_as_typed() -> None:
    recipe = Recipe.parse('schema = 1\nrungs = []\n[options]\nbatch-size = 8\nuse-amp = true\nsize = "tiny"')
    assert recipe.options == {"batch-size": "8", "use-amp": "True", "size": "tiny"}


def test_a_byte_order_mark_of_an_editor_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(b'\xef\xbb\xbfschema = 1\nrungs = ["compile"]')
    assert Recipe.read(path).rungs == ("compile",)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"schema = 1\nrungs = []\nworkload = 5", "workload must be a text"),
        (b"schema = 1\nrungs = []\noptions = 5", "options must be a table"),
        (b"schema = 1\nrungs = []\n[options]\nsize = [1]", "options must be a table of texts or numbers"),
        (b'schema = 1\nrungs = []\n[measured]\nspeedup = "big"', "measured must be a table of numbers"),
        (b'schema = 1\nrungs = ["turbo"]', "there is no rung 'turbo'"),
        (b'schema = 1\nrungs = ["compile", "bf16", "compile"]', "compile is named 2 times; once is enough"),
        (b"schema = 1\nrungs = [1]", "rungs must be names"),
        (b"schema = 2\nrungs = []", "not a recipe of this version"),
        (
            b"schema = 1\nrungs = []\n[opitons]\nbatch = 4",
            "has 'opitons', which is not part of a recipe; did you mean 'options'?",
        ),
        (
            b"schema = 1\nrungs = []\nnotes = 4",
            "has 'notes', which is not part of a recipe; it takes schema, rungs, status, workload",
        ),
        (b'schema = 1\nrungs = []\nmode = "infre"', "has mode = 'infre'; it is one of train, infer"),
        (
            b'schema = 1\nrungs = []\nstatus = "good"',
            "has status = 'good'; it is one of provisional, verified, confirmed",
        ),
        (b"schema = 1\nrungs = []\nstatus = 1", "status must be a text"),
        (b'schema = 1\nrungs = []\nnumerics = "wild"', "has numerics = 'wild'; it is one of exact, tf32, bf16, fp8"),
        (b'schema = 1\nrungs = ["compile", "bf16"]\nnumerics = "tf32"', "has numerics = 'tf32', and bf16 needs 'bf16'"),
        (
            b'schema = 1\nrungs = ["reduce-overhead", "bf16", "capture"]',
            "has reduce-overhead and capture, which cannot be",
        ),
        (b'schema = 1\nrungs = ["int8-weights", "fp8-linears"]\nnumerics = "fp8"', "cannot be in effect together"),
        (b"rungs = [", "not valid TOML"),
        (b"rungs = " + b"[" * 5000, "not valid TOML"),
        ('workload = "größe"'.encode("latin-1"), "not UTF-8"),
    ],
)
def test_a_damaged_recipe_is_named_with_what_is_wrong(text: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(text)
    with pytest.raises(InputError) as caught:
        Recipe.read(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
