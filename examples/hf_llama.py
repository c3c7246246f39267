"""A Hugging Face Llama from a config, with random weights (nothing is downloaded).

pip install transformers
rung climb examples/hf_llama.py:make --layers 2 --hidden 256
"""

import torch
from torch.nn import functional as F

from rung import Workload
from rung.errors import UsageError


def make(
    hidden: int = 512, layers: int = 4, heads: int = 8, batch: int = 4, seq: int = 128, mode: str = "train"
) -> Workload:
    """Causal language modelling with Llama's architecture and eager attention, as a model is often found."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        raise UsageError(
            "examples/hf_llama.py needs Hugging Face transformers, which is not installed: `pip install transformers`."
        ) from None

    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        attn_implementation="eager",
        use_cache=False,
    )

    def tokens(rows: int, length: int, seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randint(1000, (rows, length + 1), generator=generator)
        return {"input_ids": drawn[:, :-1].contiguous(), "labels": drawn[:, 1:].contiguous()}

    return Workload(
        name="hf-llama",
        model=lambda: LlamaForCausalLM(config),
        inputs=lambda seed: tokens(batch, seq, seed),
        other_shapes=(lambda seed: tokens(3, seq // 2 - 1, seed),),
        forward=lambda model, batch: model(input_ids=batch["input_ids"], use_cache=False).logits,
        mode=mode,
        loss=lambda logits, batch: F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten()),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-4),
        samples=batch,
        tokens=batch * seq,
    )
