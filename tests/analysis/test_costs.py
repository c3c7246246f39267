"""What a trace says is a stranger's: a cost is plausible, or there is none."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import T, priced

from rung.analysis.costs import MODELS, Unknown, cost, family, model_of, read_call
from rung.analysis.costs.attention import pairs

_ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)
_SHAPE = st.lists(st.integers(-1, 2**40) | st.integers(0, 5), max_size=5)
_SHAPES = st.lists(_SHAPE | st.lists(_SHAPE, max_size=3), min_size=1, max_size=12)
_TYPE = st.sampled_from(["float", "c10::BFloat16", "long int", "Scalar", "TensorList", "ScalarList", "", "bool"])
_VALUE = st.sampled_from(["", "0", "1", "-1", "2", "True", "False", "[1, 1]", "[-3]", "[True, False, True]", "[]"])
NAMES = sorted({*MODELS, "triton_tem_fused_mm_0", "triton_poi_fused_add_0", "aten::nothing"})


@given(st.sampled_from(NAMES), _SHAPES, st.data())
def test_whatever_the_inputs_are_there_is_a_plausible_cost_or_none(name, shapes, data):
    types = data.draw(st.lists(_TYPE, min_size=len(shapes), max_size=len(shapes)))
    values = data.draw(st.lists(_VALUE, min_size=len(shapes), max_size=len(shapes)))
    strides = data.draw(st.none() | _SHAPES)
    texts = [json.dumps(value) if value is not None else None for value in (shapes, types, strides, values)]
    try:
        found = cost(read_call(name, *texts, "fp32"))
    except Unknown:
        return
    assert 0 <= found.flops <= 2**60
    assert 0 <= found.bytes <= 2**60


@given(st.sampled_from(NAMES), st.tuples(_ANY, _ANY, _ANY, _ANY))
def test_json_of_any_form_is_refused_or_priced(name, values):
    with contextlib.suppress(Unknown):
        cost(read_call(name, *(json.dumps(value) for value in values)))


@pytest.mark.parametrize("text", ["", "[", "{}", "[[[", "nonsense", "[" * 10_000])
def test_text_that_is_no_list_has_no_cost(text):
    with pytest.raises(Unknown):
        read_call("aten::mm", text, '["float"]', None, None)


@given(st.integers(0, 12), st.integers(0, 12), st.booleans())
def test_the_pairs_that_a_causal_mask_leaves(queries, keys, last_key):
    shift = keys - queries if last_key else 0
    expected = sum(k <= q + shift for q in range(queries) for k in range(keys))
    assert pairs(queries, keys, True, last_key) == expected
    assert pairs(queries, keys, False, last_key) == queries * keys


def test_a_causal_mask_halves_the_work_and_a_flag_says_so():
    q = T((2, 4, 64, 16))
    full, causal = (priced("aten::_scaled_dot_product_flash_attention", q, q, q, 0.0, flag) for flag in (False, True))
    assert causal.flops * 2 * 64 == full.flops * 65
    assert causal.bytes == full.bytes
    one = T((1, 64, 4, 16))
    kinds = [
        priced("aten::_efficient_attention_forward", one, one, one, None, None, None, 64, 64, 0.0, k) for k in "012"
    ]
    assert kinds[0].flops > kinds[1].flops == kinds[2].flops


def test_shapes_that_do_not_go_together_have_no_cost():
    for name, *args in (
        ("aten::mm", T((3, 5)), T((4, 7))),
        ("aten::mm", T((3, 5, 1)), T((5, 7))),
        ("aten::add", T((3, 5)), T((4,))),
        ("aten::convolution", T((1, 3, 8, 8)), T((4, 3, 9, 9)), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
        ("aten::_flash_attention_forward", T((3, 5)), T((3, 5)), T((3, 5))),
    ):
        with pytest.raises(Unknown):
            priced(name, *args)


def test_lists_of_tensors_need_to_be_told_their_type():
    with pytest.raises(Unknown):
        priced("aten::cat", [T((2, 3)), T((4, 3))], 0)
    assert priced("aten::cat", [T((2, 3)), T((4, 3))], 0, item="fp32").bytes == 2 * 18 * 4


def test_an_operator_in_place_is_modelled_like_its_sibling():
    assert model_of("aten::_softmax_") is model_of("aten::_softmax")
    assert family("aten::add_") == family("aten::add") == "pointwise"
    assert model_of("aten::view") is None
    assert family("aten::view") is None
    assert all(family(name) for name in NAMES if name != "aten::nothing")
