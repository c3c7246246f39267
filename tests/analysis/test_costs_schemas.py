"""The positions that the models take their inputs from are those of torch's own schemas."""

import pytest

from rung.analysis.costs import MODELS
from rung.analysis.costs.attention import FORMS as ATTENTION
from rung.analysis.costs.convolution import FORMS as CONVOLUTION

torch = pytest.importorskip("torch")


def arguments(name):
    """The names of the arguments of an operator, of its overload without outputs to write into."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"), None)
    if packet is None:
        pytest.skip(f"this torch has no {name}")
    return [argument.name for argument in getattr(packet, packet.overloads()[0])._schema.arguments]


@pytest.mark.parametrize("name", [name for name in ATTENTION if name.startswith("aten::")])
def test_attention(name):
    names, (_, form) = arguments(name), ATTENTION[name]
    assert names[form.q : form.q + 3] == ["query", "key", "value"]
    if form.causal >= 0:
        assert names[form.causal] in ("is_causal", "custom_mask_type")
    if form.lengths >= 0:
        assert names[form.lengths] in ("cum_seq_q", "cu_seqlens_q")
        assert names[form.lengths + 1] in ("cum_seq_k", "cu_seqlens_k")
    if form.mask >= 0:
        assert names[form.mask] in ("attn_bias", "attn_mask", "bias")


@pytest.mark.parametrize("name", CONVOLUTION)
def test_convolutions(name):
    names, form = arguments(name), CONVOLUTION[name]
    assert names[0] in ("self", "input")
    assert names[1] == "weight"
    for field in ("stride", "padding", "dilation", "groups", "bias", "transposed", "output_padding"):
        if getattr(form, field) >= 0:
            assert names[getattr(form, field)] == field


def test_there_is_such_an_operator():
    """A name with a slip in it would never be met."""
    known = {schema.name for schema in torch._C._jit_get_all_schemas()}
    aten = {name for name in MODELS if name.startswith("aten::")}
    # In-place forms are given to all elementwise operators, whether they have one or not.
    assert {name for name in aten if name not in known and name.removesuffix("_") not in known} == set()
