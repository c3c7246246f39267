"""Convolution weights with their channels innermost: the layout that tensor and matrix cores read without a copy.

Activations follow the weights: a convolution answers in the layout of its weight. Values, objects and the state dict stay. What the model
returns is given back in the layout that it has without this.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree

from rung.engine.parts import on_tensors
from rung.rewrites.packed_weights import shares_storage

KINDS = (nn.Conv2d, nn.ConvTranspose2d, nn.Conv3d, nn.ConvTranspose3d)
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}  # by the dimensions of a weight


def contiguous_weights(model: nn.Module) -> list[nn.Parameter]:
    """The weights of a model's 2-D and 3-D convolutions that lie in the usual layout and may be laid out: its own, and in no bucket of
    DistributedDataParallel."""
    in_buckets = set(map(id, bucketed_weights(model)))
    return [weight for weight in _weights(model) if _lies_usual(weight) and id(weight) not in in_buckets]


def bucketed_weights(model: nn.Module) -> list[nn.Parameter]:
    """Those in the usual layout that a DistributedDataParallel has in its buckets. It chose the layout of their gradients when the model was
    wrapped, and reads gradients of another layout wrongly, without a word."""
    wrapped = [module for module in model.modules() if isinstance(module, nn.parallel.DistributedDataParallel)]
    return [weight for module in wrapped for weight in _weights(module) if _lies_usual(weight)]


def lay_out(model: nn.Module) -> list[nn.Parameter]:
    """Lays the weights of a model's convolutions out channels-last; returns those that lay in the usual layout."""
    weights = contiguous_weights(model)
    for weight in weights:
        weight.data = weight.detach().contiguous(memory_format=FORMATS[weight.dim()])
    return weights


class ChannelsLast:
    """The weights of a model's convolutions in channels-last layout, until `undo`.

    torch's fused optimizer steps read a weight, its gradient and its state in one order, and say nothing if their layouts differ. So each
    optimizer that steps these weights has its state laid out as they are, and so have their gradients, before each step. What an
    optimizer saves is in the usual layout, for programs that have their weights in it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._weights = lay_out(model)
        self._ids = set(map(id, self._weights))
        self._lay_out_gradients()
        self._optimizers: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[Any]] = weakref.WeakKeyDictionary()
        this = weakref.ref(self)

        def before_a_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            # Code that Dynamo makes of a step reads each tensor in its own layout.
            if not torch.compiler.is_compiling() and (laid_out := this()) is not None:
                laid_out._before_a_step(optimizer)

        # Of all optimizers of the process: nobody names those of a training loop to `rung.apply`.
        handle = register_optimizer_step_pre_hook(before_a_step)
        self._unhook = weakref.finalize(self, handle.remove)
        self._unhook.atexit = False

    def __len__(self) -> int:
        """How many weights lie channels-last, whoever laid them out."""
        return sum(weight.is_contiguous(memory_format=FORMATS[weight.dim()]) for weight in _weights(self._model))

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Has an optimizer's state lie as the weights do, now and when a state is loaded."""
        self._lay_out_state(optimizer)
        if optimizer in self._optimizers:
            return
        self._optimizers[optimizer] = [
            optimizer.register_load_state_dict_post_hook(self._lay_out_state),
            optimizer.register_state_dict_post_hook(self._saved),
        ]

    def undo(self) -> None:
        self._unhook()
        for weight in self._weights:
            weight.data = weight.detach().contiguous()
        self._lay_out_gradients()
        for optimizer, handles in self._optimizers.items():
            self._lay_out_state(optimizer)
            for handle in handles:
                handle.remove()
        self._optimizers.clear()

    def _before_a_step(self, optimizer: torch.optim.Optimizer) -> None:
        if optimizer not in self._optimizers:
            if not any(id(parameter) in self._ids for group in optimizer.param_groups for parameter in group["params"]):
                return
            self.follow(optimizer)
        self._lay_out_gradients()

    def _lay_out_gradients(self) -> None:
        """Gradients that were summed up while the weights lay otherwise."""
        for weight in self._weights:
            gradient = weight.grad
            if gradient is not None and gradient.layout is torch.strided and gradient.stride() != weight.stride():
                weight.grad = torch.empty_like(weight, dtype=gradient.dtype).copy_(gradient)

    def _lay_out_state(self, optimizer: torch.optim.Optimizer) -> None:
        for weight in self._weights:
            state = optimizer.state.get(weight, {})
            for name, value in state.items():
                if _is_as_large(value, weight) and value.stride() != weight.stride():
                    state[name] = torch.empty_like(weight, dtype=value.dtype, device=value.device).copy_(value)

    def _saved(self, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
        ours = {id(v) for w in self._weights for v in optimizer.state.get(w, {}).values() if _is_as_large(v, w)}
        states = {
            key: {name: value.contiguous() if id(value) in ours else value for name, value in state.items()}
            for key, state in saved["state"].items()
        }
        return {**saved, "state": states}


def _weights(model: nn.Module) -> list[nn.Parameter]:
    # Not `.weight`: a parametrized one is made anew by each look, and spectral norm writes to its buffers then.
    weights = [module._parameters.get("weight") for module in model.modules() if isinstance(module, KINDS)]
    # A parametrized or quantised weight is made anew, or laid out, by its owner.
    return [weight for weight in weights if type(weight) is nn.Parameter]


def _lies_usual(weight: nn.Parameter) -> bool:
    """In the usual layout. One that others hold stays where they see it."""
    return weight.is_contiguous() and not shares_storage(weight)


def outputs_as_without(output: Any, inputs: Any) -> Any:
    """The output in the layout that it has while the weights lie in the usual one: channels-last only if an input is. Code that takes a
    `view` of it runs in that layout alone."""
    if any(isinstance(leaf, torch.Tensor) and _channels_last(leaf) for leaf in pytree.tree_leaves(inputs)):
        return output
    return on_tensors(lambda tensor: tensor.contiguous() if _channels_last(tensor) else tensor, output)


def _channels_last(tensor: torch.Tensor) -> bool:
    if tensor.dim() not in FORMATS or tensor.layout is not torch.strided or tensor.is_nested or tensor.is_contiguous():
        return False
    return bool(tensor.is_contiguous(memory_format=FORMATS[tensor.dim()]))


def _is_as_large(value: Any, weight: nn.Parameter) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == weight.shape
