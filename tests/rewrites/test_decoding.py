"""Attention of one query under a mask becomes a call of a Triton kernel: its plain-PyTorch reference here, and once itself."""

import importlib.util

import pytest
import torch
import torch.nn.functional as F

from rung.kernels import reference
from rung.rewrites import RewriteBackend
from rung.rewrites.graph import kernel_ops

BATCH, HEADS, GROUPS, LENGTH, WIDTH = 2, 4, 2, 9, 8


def plain(q, k, v, keep, scale):
    assert keep.shape in ((1, LENGTH), (BATCH, LENGTH))
    return reference.decode_attention(q, k, v, keep, scale=scale)


plain.namespace = "rung"


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def _as_reference(monkeypatch):
    monkeypatch.setattr(kernel_ops, "obstacle", lambda *tensors: "")
    monkeypatch.setattr(kernel_ops, "operator", {"decode_attention": plain}.__getitem__)


class Recorder(RewriteBackend):
    masks: set

    def compiled(self, gm, inputs):
        self.masks = {node.args[3].args[0] for node in gm.graph.nodes if kernel_ops.called(node)}
        return super().compiled(gm, inputs)


def repeated(x):
    return x[:, :, None].expand(BATCH, GROUPS, HEADS // GROUPS, LENGTH, WIDTH).reshape(BATCH, HEADS, LENGTH, WIDTH)


def seen(position):
    return (torch.arange(LENGTH) <= position)[None, None]


def one(q, k, v, position):
    return F.scaled_dot_product_attention(q, repeated(k), repeated(v), attn_mask=seen(position))


def grouped(q, k, v, position):
    mask = seen(position).expand(BATCH, 1, 1, LENGTH)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True)


def padded(q, k, v, position):
    mask = torch.arange(LENGTH) < torch.tensor([3, 7])[:, None, None, None] + position
    return F.scaled_dot_product_attention(q, repeated(k), repeated(v), mask).transpose(1, 2).flatten(2)


def layers(q, k, v, position):
    for _ in range(3):
        q = one(q, k, v, position) + q
    return q


def moving(q, k, v, position):
    position = position.clone()
    for _ in range(2):
        q = one(q, k, v, position) + q
        position += 1
    return q


def additive(q, k, v, position):
    mask = torch.zeros(1, 1, 1, LENGTH).masked_fill(~seen(position), float("-inf"))
    return F.scaled_dot_product_attention(q, repeated(k), repeated(v), attn_mask=mask)


def by_head(q, k, v, position):
    mask = seen(position) | torch.eye(HEADS, LENGTH, dtype=torch.bool)[None, :, None]
    return F.scaled_dot_product_attention(q, repeated(k), repeated(v), attn_mask=mask)


def unmasked(q, k, v, position):
    return F.scaled_dot_product_attention(q, repeated(k), repeated(v)) * position


def check(fn, gradient=False):
    q = torch.randn(BATCH, HEADS, 1, WIDTH, requires_grad=gradient)
    k, v = (torch.randn(BATCH, GROUPS, LENGTH, WIDTH) for _ in "kv")
    backend = Recorder(["triton-decode-attention"], "eager")
    compiled = torch.compile(fn, backend=backend, dynamic=False, fullgraph=True)
    for position in (torch.tensor([4]), torch.tensor([6])):
        torch.testing.assert_close(compiled(q, k, v, position), fn(q, k, v, position))
    return backend


@pytest.mark.usefixtures("_as_reference")
@pytest.mark.parametrize("fn", [one, grouped, padded])
def test_one_query_under_a_mask_is_the_kernels(fn):
    assert check(fn).rewritten == {"triton-decode-attention": 1}


@pytest.mark.usefixtures("_as_reference")
def test_layers_share_a_mask_that_each_works_out():
    backend = check(layers)
    assert backend.rewritten == {"triton-decode-attention": 3}
    assert len(backend.masks) == 1


@pytest.mark.usefixtures("_as_reference")
def test_masks_of_what_is_written_in_between_are_not_shared():
    assert len(check(moving).masks) == 2


@pytest.mark.usefixtures("_as_reference")
@pytest.mark.parametrize(
    ("fn", "why"), [(additive, "added to the scores"), (by_head, "from head to head"), (unmasked, None)]
)
def test_other_attention_is_left(fn, why):
    backend = check(fn)
    assert backend.rewritten == {}
    assert (why in backend.skipped[0]) if why else backend.skipped == []


def rounded(q, k, v, position):
    with torch.autocast("cpu", torch.bfloat16):
        return F.scaled_dot_product_attention(q, repeated(k), repeated(v), attn_mask=seen(position))


def one_for_all_keys(q, k, v, position):
    return F.scaled_dot_product_attention(q[:, :1], k, v, attn_mask=seen(position))


@pytest.mark.usefixtures("_as_reference")
@pytest.mark.parametrize("fn", [rounded, one_for_all_keys])
def test_attention_whose_result_would_be_another_is_left(fn):
    backend = check(fn)
    assert backend.rewritten == {}
    assert "another size or dtype" in backend.skipped[0]


@pytest.mark.usefixtures("_as_reference")
def test_in_training_it_is_left():
    backend = check(one, gradient=True)
    assert backend.rewritten == {}
    assert "no gradient" in backend.skipped[0]


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is for machines without a GPU")
def test_the_kernel_itself_does_as_its_reference(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert check(one).rewritten == {"triton-decode-attention": 1}
