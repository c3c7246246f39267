"""What an inference server's name for a step says: its phase, its requests, its tokens and how long their sequences are."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

PREFILL, DECODE, MIXED, SPECULATIVE, IDLE = PHASES = ("prefill", "decode", "mixed", "speculative", "idle")


@dataclass(frozen=True)
class Lengths:
    """Sums over sequences: of new tokens (queries), of all tokens that these see (keys), of queries squared, and of queries
    times keys."""

    queries: int
    keys: int
    squares: int
    products: int

    @property
    def pairs(self) -> int:
        """The pairs of query and key under a causal mask whose last query sees all keys."""
        return self.products - (self.squares - self.queries) // 2

    def __add__(self, other: Lengths) -> Lengths:
        return Lengths(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


@dataclass(frozen=True)
class ServerStep:
    """One forward pass of a server. What is None was not said.

    phase: one of PHASES. "mixed": prompts and decoding in one pass; "speculative": more than one token a request is
        decoded, or a draft model runs.
    requests: in the batch; prefills: of them those whose prompt, or a part of it, is read; decodes: those that decode.
    prompt_tokens: of prompts that are read; decode_tokens: that are decoded, drafted ones too.
    lengths: of all sequences together.
    certain: the phase is said outright. Not so where a server counts requests that it has seen before: one of them may
        still read its prompt.
    """

    phase: str
    requests: int | None = None
    prefills: int | None = None
    decodes: int | None = None
    prompt_tokens: int | None = None
    decode_tokens: int | None = None
    lengths: Lengths | None = None
    certain: bool = True

    def completed(self, other: ServerStep) -> ServerStep:
        """With what another name of the same step says and this one does not."""
        if not self.certain and other.certain:
            return other.completed(self)
        silent = [field.name for field in fields(self) if getattr(self, field.name) is None]
        return replace(self, **{name: getattr(other, name) for name in silent})


_NUMBER = r"(\d{1,18})"
_SUMS = rf"\(sq{_NUMBER}sk{_NUMBER}sqsq{_NUMBER}sqsk{_NUMBER}\)"


def _counted(prefills: int, decodes: int, prompt: int | None, decoded: int | None, all_said: bool = True) -> ServerStep:
    """The step of so many requests with a prompt and so many that decode."""
    if prefills and decodes:
        phase = MIXED
    elif prefills:
        phase = PREFILL
    elif not decodes:
        phase = IDLE
    else:
        phase = SPECULATIVE if (decoded or 0) > decodes else DECODE
    return ServerStep(phase, prefills + decodes, prefills, decodes, prompt, decoded, certain=all_said)


def _with_sums(found: re.Match[str]) -> ServerStep:
    """AMD's vLLM, and SGLang as AMD annotates it: execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)"""
    prefills, *rest = map(int, found.groups())
    prompts, decodes, decoded = Lengths(*rest[:4]), rest[4], Lengths(*rest[5:])
    return replace(_counted(prefills, decodes, prompts.queries, decoded.queries), lengths=prompts + decoded)


def _with_tokens(found: re.Match[str]) -> ServerStep:
    """vLLM, annotate_profile in vllm/v1/worker/gpu_worker.py: execute_context_2(6144)_generation_3(3)

    Of execute_context_1(888_788544)_generation_0(0), as one build writes it on a B200, the second number is not read: 888 x 888 may
    be queries squared, or queries times keys.
    """
    prefills, prompt, decodes, decoded = map(int, found.groups())
    return _counted(prefills, decodes, prompt, decoded)


def _new_and_cached(found: re.Match[str]) -> ServerStep:
    """vLLM before that: execute_new_1_cached_31, where the second part of a long prompt counts as cached"""
    new, cached = map(int, found.groups())
    return _counted(new, cached, None, None, all_said=not cached)


def _executor(found: re.Match[str]) -> ServerStep:
    """TensorRT-LLM, _forward_step in tensorrt_llm/_torch/pyexecutor/py_executor.py: [Executor] _forward_step 12: 0 ctx reqs, 8 gen reqs"""
    return _counted(int(found[1]), int(found[2]), None, None)


# SGLang's ForwardMode (sglang/srt/model_executor/forward_batch_info.py). A pass of a diffusion language model is neither.
_MODES = {
    "EXTEND": PREFILL, "SPLIT_PREFILL": PREFILL, "DECODE": DECODE, "MIXED": MIXED, "TARGET_VERIFY": SPECULATIVE,
    "DRAFT_EXTEND": SPECULATIVE, "DRAFT_EXTEND_V2": SPECULATIVE, "IDLE": IDLE, "PREBUILT": IDLE,
}  # fmt: skip
_PAIR = re.compile(r"(\w+)=(\d{1,18})\b")


def _mode(found: re.Match[str]) -> ServerStep | None:
    """SGLang: step[EXTEND bs=2 toks=14721], step[DECODE bs=64]; with the lengths of its sequences as AMD records them:
    step[MIXED bs=5 c=2 g=3 c_sq=6144 c_sk=7144 c_sqsq=20971520 c_sqsk=23019520 g_sq=3 g_sk=6144 g_sqsq=3 g_sqsk=6144]
    """
    phase = _MODES.get(found[1])
    said = {key: int(value) for key, value in _PAIR.findall(found[2])}
    if phase is None or "bs" not in said:
        return None
    sums = {
        part: Lengths(*(said[f"{part}_{name}"] for name in ("sq", "sk", "sqsq", "sqsk")))
        for part in "cg"
        if all(f"{part}_{name}" in said for name in ("sq", "sk", "sqsq", "sqsk"))
    }
    prompts, decoded, requests = sums.get("c"), sums.get("g"), said["bs"]
    if phase == MIXED:
        prefills, decodes = said.get("c"), said.get("g")
    else:
        prefills, decodes = (requests, 0) if phase == PREFILL else (0, requests)
    if phase == DECODE and decoded is not None and decoded.queries > requests:
        phase = SPECULATIVE
    prompt_tokens = said.get("toks") if phase == PREFILL else 0 if phase != MIXED else None
    decode_tokens = {PREFILL: 0, DECODE: requests, IDLE: 0}.get(phase)
    return ServerStep(
        phase, requests, prefills, decodes,
        prompts.queries if prompts else prompt_tokens,
        decoded.queries if decoded else decode_tokens,
        (prompts + decoded if decoded else prompts) if prompts else decoded,
    )  # fmt: skip


def _batch(found: re.Match[str]) -> ServerStep | None:
    """ATOM: prefill[bs=2 tok=14721 ctx=[7803, 6918]], decode[bs=117/128 tok=117 d=117] in a graph of 128, and with lengths
    decode[bs=32 tok=128 d=32 spec=3 sqsq=512 sqsk=262144 sk=65536]; p: prompts among those that decode
    """
    said = {key: int(value) for key, value in reversed(_PAIR.findall(found[2]))}
    if "bs" not in said or "tok" not in said:
        return None
    requests, tokens = said["bs"], said["tok"]
    sums = [said.get(name) for name in ("sk", "sqsq", "sqsk")]
    lengths = Lengths(tokens, *(number for number in sums if number is not None)) if None not in sums else None
    if found[1] == "prefill":
        return ServerStep(PREFILL, requests, requests, 0, tokens, 0, lengths)
    prefills, decodes = said.get("p", 0), said.get("d", requests)
    step = _counted(prefills, decodes, None if prefills else 0, None if prefills else tokens)
    return replace(step, lengths=lengths)


# A name is one of these, whole.
_FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], ServerStep | None]], ...] = tuple(
    (re.compile(pattern), read)
    for pattern, read in (
        (rf"execute_\d+_context_{_NUMBER}{_SUMS}_generation_{_NUMBER}{_SUMS}", _with_sums),
        (rf"execute_context_{_NUMBER}\({_NUMBER}(?:_\d+)?\)_generation_{_NUMBER}\({_NUMBER}(?:_\d+)?\)", _with_tokens),
        (rf"execute_new_{_NUMBER}_cached_{_NUMBER}", _new_and_cached),
        (rf"(?:\[Executor\] )?_forward_step(?: \d+)?: {_NUMBER} ctx reqs, {_NUMBER} gen reqs", _executor),
        (r"step\[([A-Z][A-Z_0-9]*) ([^\]]*)\]", _mode),
        (r"(prefill|decode)\[(.*)\]", _batch),
    )
)
# What these names begin with, for a first look at many.
BEGINNING = r"^(execute_(\d|context_|new_)|(\[Executor\] )?_forward_step|step\[|prefill\[|decode\[)"


def read_step(name: str) -> ServerStep | None:
    """What a name says; None where it is none of a server's step."""
    for pattern, read in _FORMS:
        if found := pattern.fullmatch(name):
            return read(found)
    return None
