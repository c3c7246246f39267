"""Decoding with a cache of transformers as an input: the model as it is, compiled, captured, and both.

    PYTHONPATH=src python benchmarks/ladder/cache_inputs.py

Milliseconds a token in a loop of your own, which hands one `StaticCache` to the model in every call. The weights are random. Beside it is how far
the logits are from those of the model as it is. Last comes what looking at the cache takes before a replay.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

import rung
from rung.engine.contents import Contents
from rung.engine.input_guards import Inputs

LENGTH, PROMPT, WARM, STEPS, LOOKS = 512, 64, 8, 48, 200


class Decoding:
    def __init__(self, layers: int, width: int) -> None:
        torch.manual_seed(0)
        self.config = LlamaConfig(
            vocab_size=32000, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers, num_attention_heads=16,
            num_key_value_heads=4, max_position_embeddings=LENGTH,
        )  # fmt: skip
        with torch.device("cuda"):
            self.model = LlamaForCausalLM(self.config).to(torch.bfloat16).eval()
            self._prompt = torch.randint(3, 32000, (1, PROMPT))
            self.tokens = torch.randint(3, 32000, (STEPS, 1, 1))

    def filled(self) -> StaticCache:
        cache = StaticCache(config=self.config, max_cache_len=LENGTH)
        self.model(self._prompt, past_key_values=cache, use_cache=True)
        return cache

    def decoded(self, call: Callable[..., Any]) -> tuple[torch.Tensor, float]:
        """The logits, and milliseconds a token once the first ones were warm."""
        cache, found, began = self.filled(), [], 0.0
        for k in range(STEPS):
            if k == WARM:
                torch.cuda.synchronize()
                began = time.perf_counter()
            found.append(call(self.tokens[k], past_key_values=cache, use_cache=True).logits.clone())
        torch.cuda.synchronize()
        return torch.cat(found).float(), (time.perf_counter() - began) * 1e3 / (STEPS - WARM)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=2048)
    given = parser.parse_args()
    decoding = Decoding(given.layers, given.width)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {given.layers} layers of {given.width}")
    decoding.decoded(decoding.model)
    logits, milliseconds = decoding.decoded(decoding.model)
    print(f"{'as it is':16} {milliseconds:7.3f} ms a token")
    for recipe in (["compile"], ["capture"], ["compile", "capture"]):
        found, milliseconds = decoding.decoded(rung.apply(decoding.model, recipe))
        off = (found - logits).abs().max() / logits.abs().max()
        print(f"{', '.join(recipe):16} {milliseconds:7.3f} ms a token, logits {off:.1e} apart", flush=True)
    contents, cache = Contents("cuda"), decoding.filled()
    looks = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        Inputs((decoding.tokens[0],), {"past_key_values": cache}, "cuda", contents)
        looks.append(time.perf_counter() - began)
    print(f"looking at the cache {sorted(looks)[LOOKS // 2] * 1e6:.0f} us")


if __name__ == "__main__":
    main()
