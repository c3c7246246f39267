"""Generation with a Hugging Face model from a config, with random weights (nothing is downloaded).

pip install transformers
rung bench examples/hf_generate.py:make --new 32             # a whole generation: prompt -> 32 tokens, greedily
rung bench examples/hf_generate.py:make --cache static
rung bench examples/hf_generate.py:decode                    # one token of it, on a cache of fixed size
rung climb examples/hf_generate.py:decode --batch 4

`tokens` is what a step generates, so that `rung bench` prints tokens/s. The tokens are the output: that is what a rung
is verified by, and in `decode` the logits that they are chosen by, too.
"""

from typing import Any

import torch
from torch import Tensor, nn

from rung import Workload
from rung.errors import UsageError


def make(
    hidden: int = 512,
    layers: int = 4,
    heads: int = 8,
    batch: int = 1,
    prompt: int = 128,
    new: int = 32,
    cache: str = "dynamic",
) -> Workload:
    """`model.generate` as it is usually called: prefill of the prompt, then one forward for each of the new tokens."""

    def model() -> nn.Module:
        made = _llama(hidden, layers, heads, prompt + new)
        if cache != "dynamic":
            made.generation_config.cache_implementation = cache
        return made

    def generate(model: Any, tokens: Tensor) -> Tensor:
        # As many as are asked for, whatever they are: every step is the same work.
        found = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
        )
        return found[:, tokens.shape[1] :]

    return Workload(
        name=f"hf-generate {batch}x{prompt}+{new}",
        model=model,
        inputs=lambda seed: _prompt(batch, prompt, seed),
        other_shapes=(lambda seed: _prompt(batch + 1, prompt // 2, seed),),
        forward=generate,
        samples=batch,
        tokens=batch * new,
    )


def decode(
    hidden: int = 512, layers: int = 4, heads: int = 8, batch: int = 1, prompt: int = 128, new: int = 32
) -> Workload:
    """One token of the same generation: its step has one shape, so that it can be compiled and captured whole."""
    rows, length = batch + 1, prompt + new  # a row more, for the other shape

    def inputs(count: int, seed: int) -> dict[str, Tensor]:
        return {"token": _prompt(count, 1, seed), "position": torch.tensor([prompt + seed % new])}

    return Workload(
        name=f"hf-decode {batch}x1 after {prompt}",
        model=lambda: Decoding(_llama(hidden, layers, heads, length), _prompt(rows, prompt, 0), length),
        inputs=lambda seed: inputs(batch, seed),
        other_shapes=(lambda seed: inputs(rows, seed),),
        samples=batch,
        tokens=batch,
    )


class Decoding(nn.Module):
    """A language model and its cache of fixed size, filled with a prompt. The cache is made of buffers, so that it moves
    to the GPU, is copied and is cast with the model.

    token [rows, 1], position [1] -> the next token [rows] and its logits [rows, vocabulary].
    """

    def __init__(self, model: nn.Module, prompt: Tensor, length: int) -> None:
        super().__init__()
        self.model, config = model, model.config
        shape = (config.num_hidden_layers, prompt.shape[0], config.num_key_value_heads, length, config.head_dim)
        self.register_buffer("keys", torch.zeros(shape), persistent=False)
        self.register_buffer("values", torch.zeros(shape), persistent=False)
        with torch.no_grad():
            self.run(prompt, torch.arange(prompt.shape[1]))

    def forward(self, token: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.run(token, position)[:, -1]
        return logits.argmax(-1), logits

    def run(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Logits of tokens at these positions, which see all positions up to their own."""
        seen = torch.arange(self.keys.shape[3], device=tokens.device) <= positions[:, None]
        mask = torch.zeros(seen.shape, dtype=self.keys.dtype, device=tokens.device).masked_fill(~seen, -torch.inf)
        return self.model(
            input_ids=tokens,
            attention_mask=mask[None, None].expand(tokens.shape[0], 1, -1, -1),
            position_ids=positions[None],
            past_key_values=Cache(self.keys[:, : tokens.shape[0]], self.values[:, : tokens.shape[0]], positions),
            use_cache=True,
        ).logits


class Cache:
    """What attention needs of a cache: keys and values [layers, rows, heads, length, head size], written in place."""

    def __init__(self, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        self.keys, self.values, self.positions = keys, values, positions

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        for cached, made in ((self.keys, keys), (self.values, values)):
            cached[layer].index_copy_(2, self.positions, made.to(cached.dtype))
        return self.keys[layer], self.values[layer]

    def get_seq_length(self, *_: Any) -> int:
        return 0  # positions are always given


def _llama(hidden: int, layers: int, heads: int, length: int) -> Any:
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        raise UsageError(
            "examples/hf_generate.py needs Hugging Face transformers, which is not installed: `pip install transformers`."
        ) from None

    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        max_position_embeddings=max(length, 128),
    )
    return LlamaForCausalLM(config).eval()


def _prompt(rows: int, length: int, seed: int) -> Tensor:
    return torch.randint(3, 1000, (rows, length), generator=torch.Generator().manual_seed(seed))
