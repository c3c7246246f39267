"""What the families of the zoo share: a case, inputs of a seed, and a smaller size of the same architecture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import rung

INFER, TRAIN = "infer", "train"
LABELS = "labels"  # of a batch: what the loss reads and the model is not given
TOY_ROWS, TOY_LENGTH = 2, 32


@dataclass(frozen=True)
class Case:
    """One model. name: FAMILY/MODEL; kind: what is told apart in tables; target and options: as `rung climb` is given them, without
    those of the variant; needs: what must be installed; one_size: there is no
    toy size of it."""

    name: str
    kind: str
    target: str
    options: Mapping[str, str] = field(default_factory=dict)
    variants: tuple[str, ...] = (INFER,)
    needs: tuple[str, ...] = ()
    one_size: bool = False

    @property
    def family(self) -> str:
        return self.name.partition("/")[0]

    def all_options(self, variant: str, toy: bool) -> dict[str, str]:
        return {
            **self.options,
            **({"train": "true"} if variant == TRAIN else {}),
            **({"toy": "true"} if toy and not self.one_size else {}),
        }


class Draw:
    """Random tensors of one seed, in the order in which they are asked for."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def ids(self, highest: int, *shape: int, lowest: int = 3) -> torch.Tensor:
        """Token ids or classes; the first three ids are often padding and the ends of a text."""
        return torch.randint(lowest, highest, shape, generator=self.generator)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def uniform(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self.generator)


def padded(rows: int, length: int) -> torch.Tensor:
    """An attention mask: of every second row, the last eighth is padding."""
    mask = torch.ones(rows, length, dtype=torch.int64)
    mask[1::2, length - length // 8 :] = 0
    return mask


@contextmanager
def weights_in(dtype: torch.dtype) -> Iterator[None]:
    """Parameters that are made inside have this dtype, and buffers that ask for another keep theirs, as when weights are loaded."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def workload(
    name: str,
    model: Callable[[], nn.Module],
    batch: Callable[[Draw, int], dict[str, torch.Tensor]],
    rows: int,
    train: bool,
    forward: Callable[[Any, dict[str, torch.Tensor]], torch.Tensor],
    *,
    dtype: torch.dtype = torch.float32,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    tokens: int | None = None,
) -> rung.Workload:
    """A workload of the zoo. batch: makes so many rows; forward: `(model, batch without labels) -> output`; dtype: of the weights, and
    of what the model reads in floating point; loss: `(output, labels)`, by default the cross entropy of the last dimension."""

    def made() -> nn.Module:
        with weights_in(dtype):
            return model()

    def inputs(seed: int) -> dict[str, torch.Tensor]:
        drawn = batch(Draw(seed), rows)
        return {name: value.to(dtype) if value.is_floating_point() else value for name, value in drawn.items()}

    def run(module: Any, given: dict[str, torch.Tensor]) -> torch.Tensor:
        return forward(module, {name: value for name, value in given.items() if name != LABELS})

    chosen = loss or cross_entropy
    return rung.Workload(
        f"{name} {TRAIN if train else INFER}", made, inputs, run,
        loss=(lambda output, given: chosen(output, given[LABELS])) if train else None,
        optimizer=(lambda parameters: torch.optim.AdamW(parameters, lr=1e-4)) if train else None,
        samples=rows, tokens=tokens, output=not train,
    )  # fmt: skip


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, -2).float(), labels.flatten())


# What a value of a configuration is at toy size, by its name. What is not named stays.
_TOY: dict[str, Any] = {
    **dict.fromkeys(("vocab_size",), 128),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim"), 64),
    **dict.fromkeys(("intermediate_size", "n_inner", "d_ff", "ffn_dim", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_inner"), 96),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers", "n_layers"), 2
    ),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads", "decoder_attention_heads"), 4
    ),
    **dict.fromkeys(("num_key_value_heads",), 2),
    **dict.fromkeys(("head_dim", "d_kv", "rotary_dim"), 16),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ff"), 32),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok",), 2),
}  # fmt: skip


def shrunk(values: Mapping[str, Any], toy: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's values at toy size; toy: those that this model needs otherwise."""
    found = {
        name: shrunk(value, {}) if isinstance(value, dict) else _TOY.get(name, value) for name, value in values.items()
    }
    for name, value in toy.items():
        found[name] = (
            {**found[name], **value} if isinstance(value, dict) and isinstance(found.get(name), dict) else value
        )
    return found
