"""The estimate counts what torch counts of a transformer of that shape, and its memory is that of its tensors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.analysis.estimate.architecture import decoder
from rung.analysis.estimate.attentions import Attention, LatentAttention, seen
from rung.analysis.estimate.block import Step
from rung.analysis.estimate.memory import PAGE, SHARDINGS, SHARE
from rung.analysis.estimate.mlps import Experts
from rung.analysis.estimate.step import DTYPES, MODES, estimate
from rung.errors import UsageError
from rung.hardware.peaks import named

SMALL = {"hidden": 64, "layers": 3, "heads": 8, "kv_heads": 2, "ffn": 160, "vocab": 100, "causal": False}
LLAMA_3_8B = decoder(hidden=4096, layers=32, heads=32, kv_heads=8, ffn=14336, vocab=128256)


def flops_of(found, *names):
    return sum(part.flops for part in found.parts if not names or part.name in names)


@pytest.fixture(scope="module")
def torch_model():
    torch = pytest.importorskip("torch")

    class Layer(torch.nn.Module):
        def __init__(self, hidden, heads, kv_heads, head_dim, ffn, gated):
            super().__init__()
            self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
            linear = lambda a, b: torch.nn.Linear(a, b, bias=False)  # noqa: E731
            width, keys = heads * head_dim, kv_heads * head_dim
            self.q, self.k, self.v = linear(hidden, width), linear(hidden, keys), linear(hidden, keys)
            self.out, self.down = linear(width, hidden), linear(ffn, hidden)
            self.up = torch.nn.ModuleList(linear(hidden, ffn) for _ in range(2 if gated else 1))
            self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(hidden) for _ in range(2))

        def forward(self, x):
            batch, length, _ = x.shape
            y = self.norms[0](x)
            q, k, v = (f(y).view(batch, length, -1, self.head_dim).transpose(1, 2) for f in (self.q, self.k, self.v))
            k, v = (t.repeat_interleave(self.heads // self.kv_heads, 1) for t in (k, v))
            scores = torch.softmax(q @ k.transpose(-1, -2), -1)
            x = x + self.out((scores @ v).transpose(1, 2).reshape(batch, length, -1))
            y = self.norms[1](x)
            y = torch.nn.functional.silu(self.up[0](y)) * (self.up[1](y) if len(self.up) > 1 else 1)
            return x + self.down(y)

    class Model(torch.nn.Module):
        def __init__(self, hidden, layers, heads, kv_heads, ffn, vocab, head_dim=None, gated=True, tied=False, **_):
            super().__init__()
            self.embedding = torch.nn.Embedding(vocab, hidden)
            layer = (hidden, heads, kv_heads, head_dim or hidden // heads, ffn, gated)
            self.layers = torch.nn.Sequential(*(Layer(*layer) for _ in range(layers)))
            self.norm = torch.nn.RMSNorm(hidden)
            self.head = torch.nn.Linear(hidden, vocab, bias=False)
            if tied:
                self.head.weight = self.embedding.weight

        def forward(self, tokens):
            return self.head(self.norm(self.layers(self.embedding(tokens))))

    def build(shape, batch, seq):
        with torch.device("meta"):
            return Model(**shape), torch.zeros(batch, seq, dtype=torch.long)

    return build


SHAPES = [
    (SMALL, 2, 16),
    ({**SMALL, "layers": 2, "heads": 4, "kv_heads": 4, "ffn": 256, "vocab": 50, "gated": False, "tied": True}, 1, 8),
    ({**SMALL, "hidden": 96, "layers": 1, "heads": 6, "kv_heads": 3, "head_dim": 32, "ffn": 100, "vocab": 70}, 4, 5),
]


@pytest.mark.parametrize(("shape", "batch", "seq"), SHAPES, ids=["grouped", "plain", "wide"])
def test_parameters_and_operations_are_those_of_a_model_of_that_shape(torch_model, shape, batch, seq):
    from torch.utils.flop_counter import FlopCounterMode

    model, tokens = torch_model(shape, batch, seq)
    ours = decoder(**shape)
    assert ours.parameters == sum(weight.numel() for weight in model.parameters())
    with FlopCounterMode(display=False) as counter:
        out = model(tokens)
    infer = estimate(ours, mode="infer", seq=seq, batch=batch)
    assert infer.flops == counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    train = estimate(ours, mode="train", seq=seq, batch=batch)
    # Fused attention computes the scores twice: five products in backward, where the model here has four.
    again = flops_of(infer, "attention") // 2
    assert train.flops - again == counter.get_total_flops()
    assert out.shape == (batch, seq, shape["vocab"])


def test_a_well_known_model():
    found = estimate(LLAMA_3_8B, mode="infer", peaks=named("MI300X"))
    assert found.parameters == found.active == 8_030_261_248  # as its model card says: 8.03 B
    assert found.memory.weights == 2 * 8_030_261_248
    matrices = found.parameters - 128256 * 4096 - (2 * 32 + 1) * 4096
    assert flops_of(found) - flops_of(found, "attention") == 2 * 2048 * matrices  # 2 FLOP a weight and token
    assert flops_of(found, "attention") == 32 * 4 * 32 * 128 * 2048 * 2049 // 2
    assert found.bound == "compute"
    assert found.fits


def test_decode_reads_every_weight_and_the_cache_once_and_is_bound_by_memory():
    found = estimate(LLAMA_3_8B, mode="decode", peaks=named("MI300X"))
    embedding = 128256 * 4096 * 2
    read = found.memory.weights - embedding + found.memory.cache
    assert read < found.bytes < 1.01 * read
    assert found.bound == "memory"
    assert found.floor_ns == pytest.approx(found.bytes / 5324.8, rel=0.001)
    assert flops_of(found, "attention") == 32 * 4 * 32 * 128 * 2048  # the new token sees all that are cached
    assert found.memory.cache == found.cache_per_sequence == 2 * 32 * 2048 * 8 * 128 * 2
    assert found.cache_per_token == 131_072  # 128 KiB


def brute(queries, keys, causal, window):
    shift = keys - queries
    if not causal:
        return queries * min(keys, window or keys)
    return sum(i + shift - (window or keys) < j <= i + shift for i in range(queries) for j in range(keys))


@given(st.integers(1, 12), st.integers(0, 12), st.booleans(), st.none() | st.integers(1, 30))
def test_a_mask_and_a_window_leave_the_pairs_that_counting_finds(queries, more, causal, window):
    assert seen(queries, queries + more, causal, window) == brute(queries, queries + more, causal, window)


def test_a_window_bounds_the_work_and_the_cache_of_long_sequences():
    whole, window = (Attention(64, 4, 4, 16, window=w) for w in (None, 128))
    assert window.cache(1000, 0) == 2 * 128 * 64 == whole.cache(128, 0)
    step = Step(1, 1, 1000, cached=True)
    flops = [sum(w.cost.flops for w in block.work(step) if w.part == "attention") for block in (whole, window)]
    assert flops == [4 * 1000 * 64, 4 * 128 * 64]


def test_latent_attention_caches_latents_and_absorbs_the_expansion():
    """DeepSeek-V3's: 576 elements a token and layer (DeepSeek-V2, table 1: 9/2 d_h l = 4.5 x 128)."""
    block = LatentAttention(7168, 128, 1536, 512, 128, 64, 128)
    assert block.cache(1, 0) == 576 == 9 * 128 // 2
    one = Step(1, 1, 4096, cached=True)
    work = [w.cost for w in block.work(one) if w.part == "attention"]
    assert [c.flops for c in work] == [2 * 128 * 4096 * (576 + 512)]
    assert work[0].bytes == 2 * (4096 * 576 + 128 * (576 + 512))
    # One token at the start: expanding it, or absorbing the expansion, is as much work.
    first = [
        sum(w.cost.flops for w in block.work(Step(1, 1, 1, cached=c)) if w.part == "projections") for c in (False, True)
    ]
    assert first[0] == first[1] == 2 * (block.parameters - 1536 - 512)


def test_experts_read_the_weights_of_those_that_tokens_use():
    block = Experts(64, 32, 16, 2)
    assert [block.used(rows) for rows in (0, 1, 2, 10_000)] == [0, 2, 4, 16]
    one, many = (sum(w.times * w.cost.bytes for w in block.work(Step(rows, 1, 1))) for rows in (1, 1000))
    assert 2 * 2 * 3 * 64 * 32 < one < 2 * 4 * 3 * 64 * 32
    assert many > 16 * 2 * 3 * 64 * 32
    flops = sum(w.times * w.cost.flops for w in block.work(Step(1000, 1, 1)))
    assert flops == 2 * 1000 * (64 * 16 + 2 * 3 * 64 * 32)  # the router, and two experts a token
    assert block.active == 64 * 16 + 2 * 3 * 64 * 32 < block.parameters == 64 * 16 + 16 * 3 * 64 * 32


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from(MODES))
def test_the_ranks_of_tensor_parallelism_share_the_products(ranks, mode):
    shape = decoder(hidden=64, layers=2, heads=8, kv_heads=2, ffn=160, vocab=96)
    whole, rank = (estimate(shape, mode=mode, seq=16, tensor_parallel=n) for n in (1, ranks))
    shared = ("attention", "mlp", "embedding and head")
    assert ranks * flops_of(rank, *shared) == flops_of(whole, *shared)
    # Heads of keys and values that are fewer than the ranks are on several of them.
    copies = max(ranks // 2, 1)
    kv = 2 * 2 * 8 * 64 * 2 * 2 * rank.tokens * (3 if mode == "train" else 1)
    assert ranks * flops_of(rank, "projections") == flops_of(whole, "projections") + (copies - 1) * kv
    assert rank.parameters == whole.parameters
    # Two sums a layer, of 2 bytes x tokens x hidden, in forward, and as many in backward (Megatron-LM, figure 4).
    times = 4 if mode == "train" else 2
    assert rank.communication.tensor_per_layer == times * 2 * rank.tokens * 64 * 2 * (ranks - 1) // ranks


def test_a_vocabulary_is_divided_into_whole_rows():
    """As Megatron-LM pads it: GPT-2's 50257 among 8 are 6283 each."""
    model = decoder(hidden=64, layers=1, heads=8, ffn=160, vocab=50257)
    assert model.parameters - decoder(hidden=64, layers=1, heads=8, ffn=160, vocab=1).parameters == 2 * 50256 * 64
    rank = estimate(model, mode="infer", tensor_parallel=8).gpu_parameters
    assert rank == 2 * 6283 * 64 + (4 * 64 * 64 + 3 * 64 * 160) // 8 + 3 * 64


def test_training_moves_what_lies_between_products_three_times():
    infer, train = (estimate(decoder(**SMALL), mode=mode, seq=16) for mode in ("infer", "train"))
    moved = [next(part.bytes for part in e.parts if part.name == "norms and elementwise") for e in (infer, train)]
    # Of a row: two norms, two additions, gate and product, rotation of queries and keys; and the last norm.
    assert moved == [16 * 2 * n * (3 * (4 * 64 + 6 * 64 + 5 * 160 + 2 * 10 * 8) + 2 * 64) for n in (1, 3)]


@pytest.mark.parametrize(("ranks", "said"), [(3, "8 heads"), (16, "8 heads"), (0, "--tensor-parallel must be")])
def test_ranks_that_do_not_divide_the_model_are_refused(ranks, said):
    with pytest.raises(UsageError, match=said):
        estimate(decoder(**SMALL), mode="infer", tensor_parallel=ranks)


def test_training_needs_sixteen_bytes_a_parameter():
    """The ZeRO paper's sum, for 16 bits and for 32."""
    model = decoder(**SMALL)
    for dtype in ("bf16", "fp32"):
        memory = estimate(model, mode="train", seq=16, dtype=dtype).memory
        assert memory.states == 16 * model.parameters


def test_sharded_states_are_those_of_the_zero_papers_figure_1():
    """7.5 G parameters on 64 GPUs: 120, 31.4, 16.6 and 1.9 GB (Rajbhandari et al. 2020, figure 1)."""
    # 7.5 G parameters in so many layers that one's gathered weights are few.
    model = decoder(hidden=2048, layers=149, heads=16, ffn=5504, vocab=1000, tied=True)
    assert model.parameters == pytest.approx(7.5e9, rel=0.01)
    found = {how: estimate(model, mode="train", data_parallel=64, sharding=how).memory for how in SHARDINGS}
    scale = 7.5e9 / model.parameters / 1e9
    sums = {how: (m.weights + m.gradients + m.optimizer) * scale for how, m in found.items()}
    assert sums == {"ddp": pytest.approx(120), "zero1": pytest.approx(31.4, abs=0.05), "zero2": pytest.approx(16.6, abs=0.05),
                    "zero3": pytest.approx(1.9, abs=0.05), "fsdp": pytest.approx(1.9, abs=0.05)}  # fmt: skip
    layer = 4 * 2048**2 + 3 * 2048 * 5504 + 2 * 2048
    assert found["zero3"].gathered == found["fsdp"].gathered == 2 * 2 * layer
    assert found["ddp"].buckets == 2 * model.parameters


def test_data_parallelism_exchanges_twice_the_weights_and_three_times_where_they_are_divided():
    model = decoder(**SMALL)
    sent = {how: estimate(model, mode="train", data_parallel=4, sharding=how).communication.data for how in SHARDINGS}
    assert sent["ddp"] == sent["zero1"] == sent["zero2"] == 2 * (2 * model.parameters * 3 // 4)
    assert sent["zero3"] == sent["fsdp"] == 3 * (2 * model.parameters * 3 // 4)


def test_recomputation_keeps_the_input_of_each_layer():
    """2 s b h bytes a layer (Korthikanti et al. 2022, section 5), what one layer saves, and what lies outside of layers."""
    few, many = (
        estimate(decoder(hidden=64, layers=n, heads=8, ffn=160, vocab=100), mode="train", seq=32, batch=2).memory
        for n in (2, 12)
    )
    assert many.recomputed - few.recomputed == 10 * 2 * 32 * 2 * 64
    saved = 4 * 64 + 2 * (8 + 8) * 8 + 4 * 160
    assert many.activations - few.activations == 10 * 2 * 32 * 2 * saved
    assert few.recomputed < few.activations


@pytest.mark.parametrize("seq", [1, 16, 17, 2048])
def test_the_largest_batch_is_the_last_that_fits_in_whole_pages(seq):
    peaks = named("MI300X")
    memory = estimate(LLAMA_3_8B, mode="decode", seq=seq, peaks=peaks).memory
    pages = -(-seq // PAGE)
    assert memory.pages_per_sequence == pages
    assert memory.cache == pages * PAGE * 131_072
    for more, fits in ((0, True), (1, False)):
        full = estimate(LLAMA_3_8B, mode="decode", seq=seq, batch=memory.max_batch + more, peaks=peaks).memory
        assert (full.total <= peaks.memory * SHARE) is fits
        assert full.max_batch == memory.max_batch
    small = estimate(decoder(hidden=8192, layers=80, heads=64, ffn=28672), mode="decode", peaks=named("H100"))
    assert small.memory.max_batch == 0


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
            assert getattr(found, column) == sum(getattr(part, column) for part in found.parts)
        assert (found.measured_floor_ns or found.floor_ns) >= found.floor_ns
    assert fast.floor_ns < slow.floor_ns
    assert slow.flops == fast.flops


def test_tf32_is_faster_and_as_large_as_fp32_and_fp8_is_smaller():
    peaks = named("MI300X")
    fp32, tf32, fp8 = (estimate(LLAMA_3_8B, mode="infer", dtype=name, peaks=peaks) for name in ("fp32", "tf32", "fp8"))
    assert tf32.floor_ns < fp32.floor_ns
    assert tf32.memory == fp32.memory
    assert fp8.memory.weights * 4 == fp32.memory.weights


def test_without_a_gpu_there_is_no_time():
    found = estimate(decoder(**SMALL), mode="infer")
    assert found.floor_ns is found.tokens_per_s is found.bound is found.fits is found.memory.max_batch is None


def test_what_is_left_out_is_derived():
    llama = decoder(hidden=4096, layers=2, heads=32, vocab=10)
    assert llama == decoder(hidden=4096, layers=2, heads=32, vocab=10, kv_heads=32, head_dim=128, ffn=11008)
    plain = {"hidden": 4096, "layers": 2, "heads": 32, "vocab": 10, "gated": False}
    assert decoder(**plain) == decoder(**plain, ffn=4 * 4096)


@pytest.mark.parametrize("change", [{"layers": 0}, {"heads": -1}, {"vocab": 2**31}, {"kv_heads": 3}, {"hidden": 65}])
def test_a_shape_that_is_none_is_refused(change):
    with pytest.raises(UsageError, match="--"):
        decoder(**{**SMALL, **change})
