"""Where a stack loses on shapes that were not used for the choice, the original runs."""

import pytest
import torch
from torch import nn

import rung
from rung.errors import InputError
from rung.ladder.climb.confirm import guard
from rung.recipes.compatibility import changes, differences, missing_variables
from rung.recipes.fingerprint import describe_model
from rung.recipes.recipe import Recipe
from rung.records.climb import Shape


def shape(elements: int, answer: str) -> Shape:
    return Shape(shape="", elements=elements, answer=answer, speedup=None)


@pytest.mark.parametrize(
    ("seen", "guarded"),
    [
        ([], {}),
        ([shape(10, "faster"), shape(9000, "undecided")], {}),
        ([shape(10, "slower"), shape(20, "slower"), shape(40, "faster")], {"elements_at_most": 20}),
        ([shape(9000, "fails"), shape(5000, "slower")], {"elements_at_least": 5000}),
        ([shape(10, "slower"), shape(5000, "slower")], {"elements_at_most": 10, "elements_at_least": 5000}),
        ([shape(1000, "slower")], {}),  # as many elements as the shape that was climbed
    ],
)
def test_the_nearest_shape_that_loses_bounds_the_range(seen: list[Shape], guarded: dict[str, int]) -> None:
    assert guard(seen, 1000) == guarded


def test_the_guard_is_in_the_recipe_and_inputs_in_its_range_go_to_the_model() -> None:
    recipe = Recipe.parse(Recipe(("bf16",), original={"elements_at_most": 16}).text())
    assert recipe.original == {"elements_at_most": 16}
    model = nn.Linear(8, 8)
    applied = rung.apply(model, recipe)
    small, large = torch.randn(2, 8), torch.randn(3, 8)
    torch.testing.assert_close(applied(small), model(small), rtol=0, atol=0)
    assert not torch.equal(applied(large), model(large))  # in bfloat16
    with pytest.raises(InputError, match="original must be a table of whole numbers"):
        Recipe.parse('schema = 1\nrungs = []\n[original]\nelements_at_most = "few"')
    with pytest.raises(
        InputError, match="original has 'elements_at_mots'; it takes elements_at_most and elements_at_l"
    ):
        Recipe.parse("schema = 1\nrungs = []\n[original]\nelements_at_mots = 3")


def test_a_recipe_says_what_else_it_was_made_for() -> None:
    model = nn.Linear(8, 8)
    made = {"device": "a chip", "torch": "1.0", "model": "Linear with 72 parameters in 2 tensors"}
    recipe = Recipe(("tf32",), made_on=made)
    assert describe_model(model) == made["model"]
    said = differences(recipe.made_for, {"device": "a chip", "torch": "2.0", "model": describe_model(nn.Linear(4, 4))})
    assert [("'1.0'" in s, "'2.0'" in s) for s in said] == [(True, True), (False, False)]
    assert "20 parameters" in said[1]
    assert differences(recipe.made_for, made) == []
    with pytest.warns(UserWarning, match="made on torch '1.0'"):
        rung.apply(model, Recipe(("tf32",), made_on={"torch": "1.0", "model": made["model"]}))


def test_variables_that_the_process_lacks_are_pending() -> None:
    recipe = Recipe(("hw-queues",), variables={"GPU_MAX_HW_QUEUES": "2"})
    assert missing_variables(recipe, {}) == {"GPU_MAX_HW_QUEUES": "2"}
    assert missing_variables(recipe, {"GPU_MAX_HW_QUEUES": "2"}) == {}
    assert rung.apply(nn.Linear(2, 2), recipe).pending == ("hw-queues",)
    assert "{" not in "".join(missing_variables(Recipe(("tunableop",)), {}).values())
    assert [c.rung for c in changes(recipe)] == ["hw-queues"]
