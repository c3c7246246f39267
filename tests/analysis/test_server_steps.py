"""Names of a server's steps: real ones, and what numbers they hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rung.analysis.server_steps import PHASES, Lengths, ServerStep, read_step

# Real names and who writes them: AMD's vLLM (../shared/data/traces), vLLM's annotate_profile in vllm/v1/worker/gpu_worker.py (three
# versions of it), SGLang's step[...] (../shared/data/traces; with sums: the tests of TraceLens 171dd747, tests/test_annotation_utils.py, as
# those of ATOM), TensorRT-LLM's _forward_step in tensorrt_llm/_torch/pyexecutor/py_executor.py.
NAMES = {
    "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)": ServerStep(
        "decode", 32, 0, 32, 0, 32, Lengths(32, 55086, 32, 55086)
    ),
    "execute_14721_context_2(sq14721sk14721sqsq108745533sqsk108745533)_generation_0(sq0sk0sqsq0sqsk0)": ServerStep(
        "prefill", 2, 2, 0, 14721, 0, Lengths(14721, 14721, 108745533, 108745533)
    ),
    "execute_6147_context_2(sq6144sk7144sqsq20971520sqsk23019520)_generation_3(sq3sk6144sqsq3sqsk6144)": ServerStep(
        "mixed", 5, 2, 3, 6144, 3, Lengths(6147, 13288, 20971523, 23025664)
    ),
    "execute_128_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq128sk65536sqsq512sqsk262144)": ServerStep(
        "speculative", 32, 0, 32, 0, 128, Lengths(128, 65536, 512, 262144)
    ),
    "execute_context_2(6144)_generation_3(3)": ServerStep("mixed", 5, 2, 3, 6144, 3),
    "execute_context_1(888_788544)_generation_0(0)": ServerStep("prefill", 1, 1, 0, 888, 0),
    "execute_context_0(0)_generation_64(64)": ServerStep("decode", 64, 0, 64, 0, 64),
    "execute_context_0(0)_generation_32(128)": ServerStep("speculative", 32, 0, 32, 0, 128),
    "execute_context_0(0)_generation_0(0)": ServerStep("idle", 0, 0, 0, 0, 0),
    "execute_new_1_cached_0": ServerStep("prefill", 1, 1, 0),
    "execute_new_0_cached_31": ServerStep("decode", 31, 0, 31, certain=False),
    "execute_new_1_cached_31": ServerStep("mixed", 32, 1, 31, certain=False),
    "step[DECODE bs=32]": ServerStep("decode", 32, 0, 32, 0, 32),
    "step[EXTEND bs=17 toks=8192]": ServerStep("prefill", 17, 17, 0, 8192, 0),
    "step[MIXED bs=2]": ServerStep("mixed", 2),
    "step[TARGET_VERIFY bs=8]": ServerStep("speculative", 8, 0, 8, 0),
    "step[IDLE bs=0]": ServerStep("idle", 0, 0, 0, 0, 0),
    "step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=262144 g_sk=131072]": ServerStep(
        "speculative", 64, 0, 64, 0, 128, Lengths(128, 131072, 256, 262144)
    ),
    "step[MIXED bs=5 c=2 g=3 c_sq=6144 c_sk=7144 c_sqsq=20971520 c_sqsk=23019520 g_sq=3 g_sk=6144 g_sqsq=3 g_sqsk=6144]": (
        ServerStep("mixed", 5, 2, 3, 6144, 3, Lengths(6147, 13288, 20971523, 23025664))
    ),
    "prefill[bs=2 tok=14721 ctx=[7803, 6918]]": ServerStep("prefill", 2, 2, 0, 14721, 0),
    "prefill[bs=6 tok=17408 ctx=[4096, 4096, 4096]...+3]": ServerStep("prefill", 6, 6, 0, 17408, 0),
    "prefill[bs=2 tok=14721 ctx=[7803, 6918] sqsq=108745533 sqsk=108745533 sk=14721]": ServerStep(
        "prefill", 2, 2, 0, 14721, 0, Lengths(14721, 14721, 108745533, 108745533)
    ),
    "decode[bs=117/128 tok=117 d=117]": ServerStep("decode", 117, 0, 117, 0, 117),
    "decode[bs=32 tok=128 d=32 spec=3 sqsq=512 sqsk=262144 sk=65536]": ServerStep(
        "speculative", 32, 0, 32, 0, 128, Lengths(128, 65536, 512, 262144)
    ),
    "decode[bs=128 tok=384 p=2 d=126 sqsq=132612 sqsk=1114112 sk=258048 tbo=1]": ServerStep(
        "mixed", 128, 2, 126, lengths=Lengths(384, 258048, 132612, 1114112)
    ),
    "[Executor] _forward_step 12: 0 ctx reqs, 8 gen reqs": ServerStep("decode", 8, 0, 8),
    "_forward_step: 3 ctx reqs, 5 gen reqs": ServerStep("mixed", 8, 3, 5),
}
NOT_STEPS = [
    "capture_32_DECODE", "gpu_model_runner: forward", "scheduler.run_batch", "ProfilerStep#3", "execute_diffusion_1_1024x1024",
    "step[DLLM_EXTEND bs=1]", "step[DECODE]", "execute_new_1_cached_", "decode[bs=1]", "decode[]", "", "xexecute_new_1_cached_2",
    "execute_context_2(9999999999999999999999)_generation_3(3)",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_real_name_says_its_phase_requests_tokens_and_lengths(name):
    assert read_step(name) == NAMES[name]


@pytest.mark.parametrize("name", NOT_STEPS)
def test_other_names_are_no_steps(name):
    assert read_step(name) is None


small = st.lists(
    st.tuples(st.integers(1, 50), st.integers(0, 500)), max_size=4
)  # new and cached tokens of each sequence


def sums(sequences):
    asked = [(new, new + cached) for new, cached in sequences]
    return [
        sum(q for q, _ in asked),
        sum(k for _, k in asked),
        sum(q * q for q, _ in asked),
        sum(q * k for q, k in asked),
    ]


@given(small, small)
def test_pairs_are_those_that_the_mask_leaves_of_every_sequence(prompts, decoding):
    texts = ["sq{}sk{}sqsq{}sqsk{}".format(*sums(part)) for part in (prompts, decoding)]
    step = read_step(f"execute_1_context_{len(prompts)}({texts[0]})_generation_{len(decoding)}({texts[1]})")
    # Counted one by one: new token i sees the cached ones, those before it and itself.
    assert step.lengths.pairs == sum(cached + i + 1 for new, cached in prompts + decoding for i in range(new))
    assert (step.requests, step.prompt_tokens) == (len(prompts + decoding), sum(new for new, _ in prompts))
    parts = " ".join(
        f"{part}_{name}={value}"
        for part, sequences in (("c", prompts), ("g", decoding))
        for name, value in zip(("sq", "sk", "sqsq", "sqsk"), sums(sequences), strict=True)
    )
    other = read_step(f"step[MIXED bs={step.requests} c={len(prompts)} g={len(decoding)} {parts}]")
    assert (other.lengths, other.prompt_tokens, other.decode_tokens) == (
        step.lengths,
        step.prompt_tokens,
        step.decode_tokens,
    )


pieces = ["execute_", "context_", "_generation_", "(", ")", "sq", "sk", "step[", "DECODE", "MIXED", " bs=", "c_sq=", "]", "prefill[",
          "decode[", " tok=", " d=", "7", "-3", "99999999999999999999", " ctx reqs, ", "/", "\n", "٣"]  # fmt: skip


@given(st.lists(st.sampled_from(pieces), max_size=12).map("".join) | st.text())
def test_no_name_is_too_strange(name):
    step = read_step(name)
    assert step is None or step.phase in PHASES


def test_names_of_one_step_complete_each_other():
    mode, sums_ = read_step("step[MIXED bs=5]"), read_step("execute_new_2_cached_3")
    assert mode.completed(sums_) == sums_.completed(mode) == ServerStep("mixed", 5, 2, 3)
