"""Models that are quantised already: rewrites leave their weights alone, and what is judged or counted takes them as they are."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rung.engine.linears import suitable
from rung.hardware import pick
from rung.ladder.reads import memory_read
from rung.plan import Plan
from rung.rewrites import PASSES, RewriteBackend
from rung.verify.perturb import state
from rung.verify.verify import verify
from rung.workload import Workload

TOKENS = torch.randint(20, (2, 5), generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    """Attention by hand over quantisable layers, and logits of which the last are read."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 32)
        self.q, self.k, self.v = (nn.Linear(32, 32) for _ in range(3))
        self.head = nn.Linear(32, 48)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        q, k, v = (layer(x).view(*x.shape[:2], 2, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        x = x + ((q @ k.mT * 0.25).softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.head(x)[:, -1]


def int8_model() -> nn.Module:
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    model = Model().eval()
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    return model


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def test_rewrites_pass_over_the_weights_of_torchao_and_say_so() -> None:
    model, backend = int8_model(), RewriteBackend(PASSES, "eager")
    kinds, keys = [type(p) for p in model.parameters()], list(model.state_dict())
    run = torch.compile(model, backend=backend, dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(run(TOKENS), model(TOKENS), rtol=1e-5, atol=1e-5)
    assert backend.rewritten == {"sdpa": 1, "narrow-logits": 1}
    assert any("not a plain tensor" in reason for reason in backend.skipped)
    assert suitable(model) == []
    assert (kinds, keys) == ([type(p) for p in model.parameters()], list(model.state_dict()))


def test_a_model_of_torchao_can_be_verified() -> None:
    inputs = lambda seed: torch.randint(20, (2, 5), generator=torch.Generator().manual_seed(seed))  # noqa: E731
    workload = Workload("quantised", int8_model, inputs, mode="infer")
    assert verify(workload, Plan(passes=("sdpa", "fused-qkv")), pick("cpu")).record().passed


def test_wrapped_weights_are_neither_perturbed_nor_replaced() -> None:
    two_tensor = pytest.importorskip("torch.testing._internal.two_tensor").TwoTensor
    layer = nn.Linear(32, 48)
    layer.weight = nn.Parameter(two_tensor(torch.randn(48, 32), torch.randn(48, 32)))
    assert list(state(layer)) == ["bias"]
    assert suitable(layer) == []
    with torch.no_grad():
        assert memory_read(layer.parameters(), lambda: layer.bias + 1).weights_read == {}


class Packed(nn.Linear):
    """As bitsandbytes does it: a subclass of nn.Linear whose weight holds codes, widened in its own forward."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width, bias=False)
        self.weight = nn.Parameter(torch.randint(255, (width, width), dtype=torch.uint8), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, (self.weight.to(x.dtype) - 128) / 128)


def test_layers_that_widen_codes_in_their_own_forward_are_left_alone() -> None:
    layers = nn.ModuleList([Packed(32), Packed(32), Packed(32)])
    x, backend = torch.randn(3, 32), RewriteBackend(PASSES, "eager")

    def forward(x: torch.Tensor) -> list[torch.Tensor]:
        return [layer(x) for layer in layers]

    with torch.no_grad():
        got = torch.compile(forward, backend=backend, dynamic=False)(x)
        torch.testing.assert_close(got, forward(x), rtol=0, atol=0)
    assert backend.rewritten == {}
    assert suitable(layers) == []
