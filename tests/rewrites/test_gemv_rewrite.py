"""Linear layers of one row become calls of a Triton kernel: its plain-PyTorch reference here, and once itself."""

import importlib.util

import pytest
import torch
import torch.nn.functional as F

from rung.kernels import reference
from rung.rewrites import RewriteBackend, gemv
from rung.rewrites.graph import kernel_ops

K, N = 12, 20


@pytest.fixture(autouse=True)
def _small_layers(monkeypatch):
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setattr(gemv, "LEAST", N * K)


@pytest.fixture
def _as_reference(monkeypatch):
    monkeypatch.setattr(kernel_ops, "obstacle", lambda *tensors: "")
    monkeypatch.setattr(kernel_ops, "operator", {"gemv": reference.gemv}.__getitem__)


def layer(bias=True, dtype=torch.bfloat16, n=N):
    return torch.nn.Linear(K, n, bias).to(dtype).requires_grad_(False)


def drawn(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape).to(dtype)


def check(fn, *inputs, passes=("triton-gemv",), dynamic=False):
    backend = RewriteBackend(passes, "eager")
    compiled = torch.compile(fn, backend=backend, dynamic=dynamic, fullgraph=True)
    found, wanted = compiled(*inputs), fn(*inputs)
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()
    return backend


class Transposed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(drawn(N, K), requires_grad=False)

    def forward(self, x):
        return x @ self.weight.T


@pytest.mark.usefixtures("_as_reference")
@pytest.mark.parametrize("shape", [(1, K), (K,), (1, 1, 1, K)], ids=str)
@pytest.mark.parametrize("made", [layer, lambda: layer(False), lambda: layer(dtype=torch.float16), Transposed])
def test_a_layer_of_one_row_is_the_kernels(shape, made):
    module = made()
    backend = check(module, drawn(*shape, dtype=module.weight.dtype))
    assert backend.rewritten == {"triton-gemv": 1}
    assert backend.skipped == []


@pytest.mark.usefixtures("_as_reference")
def test_each_layer_of_a_model_is_counted_and_stays_a_product():
    model = torch.nn.Sequential(layer(), torch.nn.SiLU(), torch.nn.Linear(N, K).bfloat16()).requires_grad_(False)
    backend = check(model, drawn(1, K))
    assert backend.rewritten == {"triton-gemv": 2}
    assert backend.before == backend.after


@pytest.mark.usefixtures("_as_reference")
@pytest.mark.parametrize("rows", [0, 2, 64])
def test_more_rows_and_none_are_left_without_a_word(rows):
    backend = check(layer(), drawn(rows, K))
    assert backend.rewritten == {}
    assert backend.skipped == []


def with_gradient(x):
    return F.linear(x, drawn_once["weight"].requires_grad_())


drawn_once = {"weight": drawn(N, K)}


def by_columns(x):
    return torch.addmm(drawn_once["bias"], x, drawn_once["turned"])


def computed(x):
    return F.linear(x, drawn_once["weight"] * 2)


drawn_once |= {"bias": drawn(N), "turned": drawn(K, N)}


def laid_by_columns(x):
    return F.linear(x, drawn_once["laid"])


drawn_once["laid"] = drawn(K, N).T


@pytest.mark.usefixtures("_as_reference")
@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (layer(n=N - 1), "its weight has 228 elements"),
        (layer(dtype=torch.float32), "its weight is float32"),
        (by_columns, "rows of one output each"),
        (laid_by_columns, "rows of one output each"),
        (computed, "computed in the graph"),
        (layer().requires_grad_(), "no gradient"),
    ],
    ids=["small", "float32", "as GPT-2 has it", "strides", "computed", "gradient"],
)
def test_other_layers_are_left(fn, why):
    dtype = fn.weight.dtype if isinstance(fn, torch.nn.Module) else torch.bfloat16
    backend = check(fn, drawn(1, K, dtype=dtype))
    assert backend.rewritten == {}
    assert len(backend.skipped) == 1
    assert why in backend.skipped[0]


def test_on_a_cpu_it_is_left(monkeypatch):
    monkeypatch.setattr("rung.kernels.ops.INTERPRETED", False)
    backend = check(layer(), drawn(1, K))
    assert backend.rewritten == {}
    assert "runs on a GPU" in backend.skipped[0]


@pytest.mark.usefixtures("_as_reference")
def test_a_weight_that_is_no_plain_tensor_is_left():
    from torch.testing._internal.two_tensor import TwoTensor

    module = layer(False)
    module.weight = torch.nn.Parameter(TwoTensor(module.weight.data, module.weight.data.clone()), requires_grad=False)
    backend = RewriteBackend(["triton-gemv"], "eager")
    torch.compile(module, backend=backend, dynamic=False)(drawn(1, K))
    assert backend.rewritten == {}
    assert "is a TwoTensor, not a plain tensor" in backend.skipped[0]


def under_autocast(module):
    def run(x):
        with torch.autocast("cpu", torch.bfloat16):
            return module(x)

    return run


@pytest.mark.usefixtures("_as_reference")
def test_autocast_casts_the_input_and_the_bias():
    module = layer()
    module.bias.data = module.bias.data.float()
    assert check(under_autocast(module), drawn(1, K, dtype=torch.float32)).rewritten == {"triton-gemv": 1}


@pytest.mark.usefixtures("_as_reference")
@pytest.mark.parametrize(
    ("dtype", "why"), [(torch.float32, "its weight is float32"), (torch.float16, "another dtype than its weight")]
)
def test_a_weight_that_autocast_casts_is_left(dtype, why):
    backend = check(under_autocast(layer(dtype=dtype)), drawn(1, K, dtype=torch.float32))
    assert backend.rewritten == {}
    assert why in backend.skipped[0]


@pytest.mark.usefixtures("_as_reference")
def test_a_weight_whose_cast_is_kept_is_read():
    module = layer(dtype=torch.float32)
    with torch.no_grad():
        backend = check(
            under_autocast(module), drawn(1, K, dtype=torch.float32), passes=("triton-gemv", "bf16-weights")
        )
    assert backend.rewritten == {"bf16-weights": 2, "triton-gemv": 1}


@pytest.mark.usefixtures("_as_reference")
def test_layers_that_were_joined_are_one_call():
    model = torch.nn.ModuleList([layer(), layer(), layer()])

    def siblings(x):
        q, k, v = (each(x) for each in model)
        return q * k + v

    with torch.no_grad():
        backend = check(siblings, drawn(1, K), passes=("fused-qkv", "triton-gemv"))
    assert backend.rewritten == {"fused-qkv": 1, "triton-gemv": 1}


@pytest.mark.usefixtures("_as_reference")
def test_an_activation_behind_it_keeps_its_own_kernel():
    module = layer()
    backend = check(lambda x: F.relu(module(x)), drawn(1, K), passes=("triton-gemv", "activation-epilogue"))
    assert backend.rewritten == {"triton-gemv": 1}


@pytest.mark.usefixtures("_as_reference")
def test_rows_of_unknown_number_are_left():
    x = drawn(3, K)
    torch._dynamo.mark_dynamic(x, 0)
    assert check(layer(), x, dynamic=None).rewritten == {}


@pytest.mark.usefixtures("_as_reference")
def test_under_a_transform_it_is_left():
    module = layer(False)
    backend = check(lambda x: torch.func.vmap(module)(x), drawn(7, 1, K))
    assert backend.rewritten == {}
    assert all("torch.func" in reason for reason in backend.skipped)


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is for machines without a GPU")
def test_the_kernel_itself_does_as_its_reference(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    module = layer(dtype=torch.float16)
    assert check(module, drawn(1, 1, K, dtype=torch.float16)).rewritten == {"triton-gemv": 1}
