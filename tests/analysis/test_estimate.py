"""The estimate counts what torch counts of a transformer of that shape, and its memory is that of its tensors."""

import pytest

from rung.analysis.estimate import DTYPES, MODES, Shape, estimate
from rung.errors import UsageError
from rung.hardware.peaks import named

SMALL = Shape(64, 3, 8, 2, 8, 160, 100, 16, 2, causal=False)
LLAMA_3_8B = Shape(4096, 32, 32, 8, 128, 14336, 128256, 2048)


def flops_of(found, *names):
    return sum(part["flops"] for part in found["parts"] if not names or part["name"] in names)


@pytest.fixture(scope="module")
def torch_model():
    torch = pytest.importorskip("torch")

    class Layer(torch.nn.Module):
        def __init__(self, s):
            super().__init__()
            self.s = s
            linear = lambda a, b: torch.nn.Linear(a, b, bias=False)  # noqa: E731
            width, keys = s.heads * s.head_dim, s.kv_heads * s.head_dim
            self.q, self.k, self.v = linear(s.hidden, width), linear(s.hidden, keys), linear(s.hidden, keys)
            self.out, self.down = linear(width, s.hidden), linear(s.ffn, s.hidden)
            self.up = torch.nn.ModuleList(linear(s.hidden, s.ffn) for _ in range(2 if s.gated else 1))
            self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(s.hidden) for _ in range(2))

        def forward(self, x):
            s, (batch, length, _) = self.s, x.shape
            y = self.norms[0](x)
            q, k, v = (f(y).view(batch, length, -1, s.head_dim).transpose(1, 2) for f in (self.q, self.k, self.v))
            k, v = (t.repeat_interleave(s.heads // s.kv_heads, 1) for t in (k, v))
            scores = torch.softmax(q @ k.transpose(-1, -2), -1)
            x = x + self.out((scores @ v).transpose(1, 2).reshape(batch, length, -1))
            y = self.norms[1](x)
            y = torch.nn.functional.silu(self.up[0](y)) * (self.up[1](y) if s.gated else 1)
            return x + self.down(y)

    class Model(torch.nn.Module):
        def __init__(self, s):
            super().__init__()
            self.embedding = torch.nn.Embedding(s.vocab, s.hidden)
            self.layers = torch.nn.Sequential(*(Layer(s) for _ in range(s.layers)))
            self.norm = torch.nn.RMSNorm(s.hidden)
            self.head = torch.nn.Linear(s.hidden, s.vocab, bias=False)
            if s.tied:
                self.head.weight = self.embedding.weight

        def forward(self, tokens):
            return self.head(self.norm(self.layers(self.embedding(tokens))))

    def build(shape):
        with torch.device("meta"):
            return Model(shape), torch.zeros(shape.batch, shape.seq, dtype=torch.long)

    return build


SHAPES = [
    SMALL,
    Shape(64, 2, 4, 4, 16, 256, 50, 8, 1, gated=False, causal=False, tied=True),
    Shape(96, 1, 6, 3, 32, 100, 70, 5, 4, causal=False),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.hidden}-{s.heads}-{s.kv_heads}-{s.ffn}")
def test_parameters_and_operations_are_those_of_a_model_of_that_shape(torch_model, shape):
    from torch.utils.flop_counter import FlopCounterMode

    model, tokens = torch_model(shape)
    assert shape.parameters == sum(weight.numel() for weight in model.parameters())
    with FlopCounterMode(display=False) as counter:
        out = model(tokens)
    infer = estimate(shape, mode="infer")
    assert infer["flops"] == counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    train = estimate(shape, mode="train")
    # Fused attention computes the scores twice: five products in backward, where the model here has four.
    again = flops_of(infer, "scores") // 2
    assert train["flops"] - again == counter.get_total_flops()
    assert out.shape == (shape.batch, shape.seq, shape.vocab)


def test_a_well_known_model():
    found = estimate(LLAMA_3_8B, mode="infer", peaks=named("MI300X"))
    assert found["parameters"] == 8_030_261_248  # as its model card says: 8.03 B
    assert found["memory"]["weights"] == 2 * 8_030_261_248
    matrices = found["parameters"] - 128256 * 4096 - (2 * 32 + 1) * 4096
    assert flops_of(found) - flops_of(found, "scores") == 2 * 2048 * matrices  # 2 FLOP a weight and token
    assert flops_of(found, "scores") == 32 * 4 * 32 * 128 * 2048 * 2049 // 2
    assert found["bound"] == "compute"
    assert found["fits"]


def test_decode_reads_every_weight_and_the_cache_once_and_is_bound_by_memory():
    found = estimate(LLAMA_3_8B, mode="decode", peaks=named("MI300X"))
    embedding = 128256 * 4096 * 2
    read = found["memory"]["weights"] - embedding + found["memory"]["cache"]
    assert read < found["bytes"] < 1.01 * read
    assert found["bound"] == "memory"
    assert found["floor_ns"] == pytest.approx(found["bytes"] / 5324.8, rel=0.001)
    assert flops_of(found, "scores") == 32 * 4 * 32 * 128 * 2048  # the new token sees all that are cached
    assert found["memory"]["cache"] == 2 * 32 * 2048 * 8 * 128 * 2


def test_training_needs_sixteen_bytes_a_parameter():
    """The ZeRO paper's sum, for 16 bits and for 32."""
    for dtype in ("bf16", "fp32"):
        memory = estimate(SMALL, mode="train", dtype=dtype)["memory"]
        assert sum(memory[name] for name in ("weights", "gradients", "optimizer")) == 16 * SMALL.parameters


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_totals_are_the_sums_of_the_parts_and_more_speed_is_less_time(mode, dtype):
    if (mode, dtype) == ("train", "fp8"):
        with pytest.raises(UsageError, match="inference only"):
            estimate(LLAMA_3_8B, mode=mode, dtype=dtype)
        return
    slow, fast = (estimate(LLAMA_3_8B, mode=mode, dtype=dtype, peaks=named(gpu)) for gpu in ("MI210", "MI300X"))
    for found in (slow, fast):
        for column in ("flops", "bytes", "floor_ns"):
            assert found[column] == sum(part[column] for part in found["parts"])
        assert (found["measured_floor_ns"] or found["floor_ns"]) >= found["floor_ns"]
    assert fast["floor_ns"] < slow["floor_ns"]
    assert slow["flops"] == fast["flops"]


def test_tf32_is_faster_and_as_large_as_fp32_and_fp8_is_smaller():
    peaks = named("MI300X")
    fp32, tf32, fp8 = (estimate(LLAMA_3_8B, mode="infer", dtype=name, peaks=peaks) for name in ("fp32", "tf32", "fp8"))
    assert tf32["floor_ns"] < fp32["floor_ns"]
    assert tf32["memory"] == fp32["memory"]
    assert fp8["memory"]["weights"] * 4 == fp32["memory"]["weights"]


def test_without_a_gpu_there_is_no_time():
    found = estimate(SMALL, mode="infer")
    assert found["floor_ns"] is found["tokens_per_s"] is found["bound"] is found["fits"] is None


def test_what_is_left_out_is_derived():
    rest = {"hidden": 4096, "layers": 2, "heads": 32, "vocab": 10, "seq": 8}
    shape = Shape.of(kv_heads=None, head_dim=None, ffn=None, gated=True, **rest)
    assert (shape.kv_heads, shape.head_dim, shape.ffn) == (32, 128, 11008)  # Llama-7B's
    assert Shape.of(kv_heads=8, head_dim=64, ffn=None, gated=False, **rest).ffn == 4 * 4096


@pytest.mark.parametrize("change", [{"layers": 0}, {"batch": -1}, {"seq": 2**31}, {"kv_heads": 3}])
def test_a_shape_that_is_none_is_refused(change):
    with pytest.raises(UsageError, match="--"):
        Shape(**{**SMALL.__dict__, **change})
