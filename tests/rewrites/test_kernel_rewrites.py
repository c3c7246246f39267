"""Rotary embeddings and losses become calls of a Triton kernel: whatever their spelling, with equal values and gradients.

The kernel is its plain-PyTorch reference here; once, where Triton is installed, it is the kernel itself (interpreted).
"""

import importlib.util

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.backends.debugging import aot_eager

from rung.kernels import reference
from rung.rewrites import RewriteBackend
from rung.rewrites.graph import kernel_ops

BATCH, HEADS, TOKENS, DIM, CLASSES = 2, 3, 5, 8, 11


def plain_rope(x, cos, sin, interleaved, backward):
    assert x.dim() == 4
    assert cos.dim() == sin.dim() == 3
    return reference.rope(x, cos, sin, interleaved=interleaved).to(x.dtype)


def plain_loss(logits, target, ignored, smoothing):
    return (
        reference.cross_entropy(logits, target, ignore_index=ignored, label_smoothing=smoothing, reduction="none"),
        None,
    )


plain_rope.namespace = plain_loss.namespace = "rung"  # as that of the operators, by which calls are counted


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.setattr(kernel_ops, "obstacle", lambda *tensors: "")
    monkeypatch.setattr(kernel_ops, "operator", {"rope": plain_rope, "cross_entropy": plain_loss}.__getitem__)


def angle(width=DIM // 2):
    return torch.outer(torch.arange(TOKENS).float(), 100.0 ** -(torch.arange(width) / width))


def rotate_half(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def hugging_face(x):
    table = torch.cat((angle(), angle()), -1)[None]
    return x * table.cos().unsqueeze(1) + rotate_half(x) * table.sin().unsqueeze(1)


def halves(x):
    cos, sin = angle().cos(), angle().sin()
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def the_other_way_round(x):
    cos, sin = angle().cos(), angle().sin()
    a, b = x.split(DIM // 2, -1)
    return torch.cat([a * cos + b * sin, a * (-sin) + b * cos], 3)


def pairs(x):
    cos, sin = angle().cos(), angle().sin()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def rotate_every_two(x):
    cos, sin = (t.repeat_interleave(2, 1)[None, None] for t in (angle().cos(), angle().sin()))
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1)
    return (x * cos) + (turned.flatten(-2) * sin)


def tokens_before_heads(x):
    x = x.transpose(1, 2).contiguous()
    wide = x.float().reshape(*x.shape[:-1], -1, 2)
    cos, sin = (t.view(1, TOKENS, 1, -1) for t in (angle().cos(), angle().sin()))
    out = torch.stack([wide[..., 0] * cos - wide[..., 1] * sin, wide[..., 1] * cos + wide[..., 0] * sin], -1)
    return out.flatten(3).type_as(x).transpose(1, 2)


def complex_numbers(x):
    unit = torch.polar(torch.ones(TOKENS, DIM // 2), angle())
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * unit).flatten(3).type_as(x)


def without_batch(x):
    return halves(x.flatten(0, 1))


def part_of_a_head(x):
    first, rest = x[..., :4], x[..., 4:]
    turned = rotate_half(first) * angle(2).sin().repeat(1, 2) + first * angle(2).cos().repeat(1, 2)
    return torch.cat((turned, rest), -1)


SPELLINGS = [
    hugging_face, halves, the_other_way_round, pairs, rotate_every_two, tokens_before_heads, complex_numbers,
    without_batch,
]  # fmt: skip


def turned(fn, dtype=torch.float32, kind=RewriteBackend):
    """The backend, after both forms were compared: values, and gradients through what stands around them."""
    backend = kind(["triton-rope"], "eager")

    def whole(x):
        return (fn(x.sin()) * 2).cos()

    xs = [torch.randn(BATCH, HEADS, TOKENS, DIM, generator=torch.Generator().manual_seed(1)) for _ in range(2)]
    xs = [x.to(dtype).requires_grad_() for x in xs]
    want, got = whole(xs[0]), torch.compile(whole, backend=backend, dynamic=False)(xs[1])
    assert got.dtype == want.dtype
    assert got.stride() == want.stride()
    tol = 1e-5 if dtype == torch.float32 else 0.03
    torch.testing.assert_close(got, want, rtol=tol, atol=tol)
    slopes = [torch.autograd.grad(y.float().square().sum(), x)[0] for y, x in zip((want, got), xs, strict=True)]
    torch.testing.assert_close(slopes[1], slopes[0], rtol=tol, atol=tol)
    return backend


class Traced(RewriteBackend):
    def compiled(self, gm, inputs):
        return aot_eager(gm, inputs)


@pytest.mark.parametrize("fn", SPELLINGS, ids=lambda fn: fn.__name__)
def test_a_rotary_embedding_becomes_one_call(fn, plain):
    backend = turned(fn)
    assert backend.rewritten == {"triton-rope": 1}
    assert backend.before["triton"] == 0
    assert backend.after["triton"] == 1


@pytest.mark.parametrize("fn", [tokens_before_heads, complex_numbers], ids=lambda fn: fn.__name__)
def test_what_is_widened_for_the_rotation_alone_is_read_as_it_was(fn, plain, monkeypatch):
    read = []

    def kernel(x, cos, sin, interleaved, backward):
        read.append((x.dtype, cos.dtype))
        return plain_rope(x, cos, sin, interleaved, backward)

    monkeypatch.setattr(kernel_ops, "operator", lambda name: kernel)
    assert turned(fn, torch.bfloat16).rewritten == {"triton-rope": 1}
    assert read == [(torch.bfloat16, torch.float32)]


def behind_a_first_token(x):
    first, rest = x[:, :, :1], x[:, :, 1:]
    cos, sin = (table.repeat(1, 2)[1:] for table in (angle().cos(), angle().sin()))
    return torch.cat((first, (rest * cos + rotate_half(rest) * sin).to(x.dtype)), 2)


@pytest.mark.parametrize("fn", [part_of_a_head, behind_a_first_token], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_result_that_is_joined_with_others_is_left_to_inductor(fn, dtype, plain):
    backend = turned(fn, dtype)
    assert backend.rewritten == {}
    assert "joined" in backend.skipped[0]


def test_an_empty_cache_joins_nothing(plain):
    def first_call(x):
        return torch.cat((x.new_empty(0), hugging_face(x)), 2)

    assert turned(first_call).rewritten == {"triton-rope": 1}


def test_a_result_that_is_wider_than_its_input_stays_so(plain):
    assert turned(hugging_face, torch.bfloat16).rewritten == {"triton-rope": 1}


def wrong_sign(x):
    return x * angle().cos().repeat(1, 2) - rotate_half(rotate_half(x)) * angle().sin().repeat(1, 2)


def mirrored(x):
    a, b = x.chunk(2, -1)
    return torch.cat((b * angle().cos() - a * angle().sin(), a * angle().cos() + b * angle().sin()), -1)


def gated(x):
    return x * angle().cos().repeat(1, 2) + x.flip(-1) * angle().sin().repeat(1, 2)


def two_widths(x):
    a, b = x.chunk(2, -1)
    half = angle().sin()
    return torch.cat((a * half, b * half), -1) + x * angle().cos().repeat(1, 2)


@pytest.mark.parametrize("fn", [wrong_sign, mirrored, gated, two_widths], ids=lambda fn: fn.__name__)
def test_what_is_no_rotation_is_left_without_a_word(fn, plain):
    backend = turned(fn)
    assert backend.rewritten == {}
    assert backend.skipped == []


def test_tables_of_another_form_are_said(plain):
    tables = [torch.randn(1, HEADS, TOKENS, DIM) for _ in range(2)]
    backend = turned(lambda x: x * tables[0] + rotate_half(x) * tables[1])
    assert backend.rewritten == {}
    assert "one dimension of the tokens" in backend.skipped[0]


def test_tables_that_are_learned_keep_their_gradient(plain):
    cos, sin = (torch.nn.Parameter(torch.randn(TOKENS, DIM)) for _ in range(2))
    backend = turned(lambda x: x * cos + rotate_half(x) * sin)
    assert backend.rewritten == {}
    assert "require a gradient" in backend.skipped[0]


def test_a_tensor_that_is_written_inside_is_left_alone(plain):
    def fn(x):
        x = x.clone()
        first = x * angle().cos().repeat(1, 2)
        second = rotate_half(x) * angle().sin().repeat(1, 2)
        x[:, 0] = 0.0
        return first + second + 0 * x

    backend = turned(fn)
    assert backend.rewritten == {}
    assert "written" in backend.skipped[0]


def rotated(wide):
    cos, sin = (f(angle()).repeat(1, 2) for f in (torch.cos, torch.sin))
    return (wide * cos + rotate_half(wide) * sin).bfloat16()


def narrow_written_after_its_cast(x):
    wide = x.float()
    x.mul_(2)
    return rotated(wide) + x


def wide_written_after_its_cast(x):
    wide = x.float()
    wide.mul_(2)
    return rotated(wide) + x


def table_written_after_it_was_negated(x):
    sin = angle().sin().bfloat16()
    turned = -sin
    sin.mul_(2)
    a, b = x.chunk(2, -1)
    cos = angle().cos().bfloat16()
    return torch.cat([a * cos - b * turned, a * turned + b * cos], 3)


@pytest.mark.parametrize(
    "fn",
    [narrow_written_after_its_cast, wide_written_after_its_cast, table_written_after_it_was_negated],
    ids=lambda fn: fn.__name__,
)
def test_what_is_written_between_a_first_reading_and_the_rotation_is_left_alone(fn, plain):
    def whole(x):
        return fn(x * 1) + 0

    backend, x = RewriteBackend(["triton-rope"], "eager"), torch.randn(BATCH, HEADS, TOKENS, DIM).bfloat16()
    torch.testing.assert_close(torch.compile(whole, backend=backend, dynamic=False)(x), whole(x))
    assert backend.rewritten == {}
    assert "written" in backend.skipped[0]


def test_without_a_gpu_it_is_said_why():
    if kernel_ops.obstacle(torch.zeros(1)) == "":
        pytest.skip("Triton's interpreter stands in for a GPU here")
    backend = turned(pairs)
    assert backend.rewritten == {}
    assert "its kernel" in backend.skipped[0]


LOSSES = {
    "mean": ({}, lambda y: y),
    "sum": ({"reduction": "sum"}, lambda y: y),
    "a loss a row": ({"reduction": "none"}, lambda y: y),
    "another ignored label": ({"ignore_index": 3}, lambda y: y),
    "smoothed": ({"label_smoothing": 0.1}, lambda y: y),
    "widened and flattened": ({}, lambda y: y.float().view(-1, CLASSES)),
}


def lost(name, kind=RewriteBackend, amp=False, dtype=torch.float32):
    options, form = LOSSES[name]
    backend = kind(["triton-cross-entropy"], "eager")
    labels = torch.randint(CLASSES, (BATCH * TOKENS,))
    labels[2:4] = options.get("ignore_index", -100)

    def whole(x, weight):
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            return 3 * F.cross_entropy(form(x @ weight), labels, **options)

    x = torch.randn(BATCH * TOKENS, DIM)
    if name == "widened and flattened":
        x = x.view(BATCH, TOKENS, DIM)
    pairs = [(x.to(dtype).requires_grad_(), torch.ones(DIM, CLASSES).to(dtype)) for _ in range(2)]
    want, got = whole(*pairs[0]), torch.compile(whole, backend=backend, dynamic=False)(*pairs[1])
    tol = 1e-5 if not amp and dtype == torch.float32 else 0.03
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want, rtol=tol, atol=tol)
    slopes = [torch.autograd.grad(y.sum(), p[0])[0] for y, p in zip((want, got), pairs, strict=True)]
    torch.testing.assert_close(slopes[1], slopes[0], rtol=tol, atol=tol)
    return backend


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_becomes_one_call(name, plain):
    backend = lost(name)
    assert backend.rewritten == {"triton-cross-entropy": 1}
    assert backend.after["triton"] == 1


def test_a_loss_in_half_precision_and_under_autocast(plain):
    assert lost("mean", dtype=torch.bfloat16).rewritten == {"triton-cross-entropy": 1}
    torch._dynamo.reset()
    assert lost("widened and flattened", amp=True).rewritten == {"triton-cross-entropy": 1}


def test_classes_in_the_second_dimension(plain):
    labels = torch.randint(CLASSES, (BATCH, TOKENS))
    backend = RewriteBackend(["triton-cross-entropy"], "eager")
    for form in (lambda y: y.transpose(1, 2), lambda y: y.transpose(1, 2).contiguous()):
        torch._dynamo.reset()
        x = torch.randn(BATCH, TOKENS, CLASSES, requires_grad=True)
        run = torch.compile(lambda x, form=form: F.cross_entropy(form(2 * x), labels), backend=backend, dynamic=False)
        want = F.cross_entropy(form(2 * x), labels)
        torch.testing.assert_close(run(x), want)
        torch.testing.assert_close(torch.autograd.grad(run(x), x), torch.autograd.grad(want, x))
    assert backend.rewritten == {"triton-cross-entropy": 2}


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda y, t: F.cross_entropy(y, t, weight=torch.ones(CLASSES)), "class weights"),
        (lambda y, t: F.cross_entropy(y, F.one_hot(t, CLASSES).float()), "class numbers"),
        (lambda y, t: F.cross_entropy(y.detach(), t), "nothing is trained"),
    ],
    ids=["class weights", "probabilities", "detached"],
)
def test_a_loss_that_is_left_alone_says_why(loss, says, plain):
    backend = RewriteBackend(["triton-cross-entropy"], "eager")
    x, labels = torch.randn(6, CLASSES, requires_grad=True), torch.randint(CLASSES, (6,))
    torch.testing.assert_close(torch.compile(loss, backend=backend, dynamic=False)(x, labels), loss(x, labels))
    assert backend.rewritten == {}
    assert says in backend.skipped[0]


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is for machines without a GPU")
@pytest.mark.parametrize("kind", [RewriteBackend, Traced], ids=["eager", "traced"])
def test_the_kernels_themselves_do_as_their_references(kind, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for fn in (tokens_before_heads, pairs) if kind is RewriteBackend else (hugging_face,):
        torch._dynamo.reset()
        assert turned(fn, kind=kind).rewritten == {"triton-rope": 1}
    torch._dynamo.reset()
    assert lost("widened and flattened", kind).rewritten == {"triton-cross-entropy": 1}
