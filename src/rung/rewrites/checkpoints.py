"""Checkpointed regions of a graph.

Dynamo makes an operator of `torch.utils.checkpoint.checkpoint` that leaves random numbers to Inductor. Run as it is, it draws others in what is
recomputed than in the forward, so that a dropout there makes gradients wrong.

torch does not cache what a graph with functions of others becomes under AOTAutograd, because it knows them by name alone. It does where such a
function is called in a region, and would give what that was in another version of Rung.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch._functorch.config
from torch import fx
from torch._higher_order_ops.wrap import tag_activation_checkpoint
from torch.utils.checkpoint import checkpoint


def caching(gm: fx.GraphModule) -> contextlib.AbstractContextManager[Any]:
    """In which the graph is compiled: without that cache where regions, or other wrapped bodies, call functions of Rung's."""
    bodies = [module for module in gm.modules() if isinstance(module, fx.GraphModule) and module is not gm]
    if any(_is_ours(node) for body in bodies for node in body.graph.nodes):
        return torch._functorch.config.patch(enable_autograd_cache=False)  # type: ignore[no-any-return]
    return contextlib.nullcontext()


def _is_ours(node: fx.Node) -> bool:
    return node.op == "call_function" and getattr(node.target, "__module__", "").startswith("rung.")


def checkpoint_as_written(gm: fx.GraphModule) -> None:
    """Has all regions of the graph checkpointed as the program itself would."""
    for part in [module for module in gm.modules() if isinstance(module, fx.GraphModule)]:
        regions = part.graph.find_nodes(op="call_function", target=tag_activation_checkpoint)
        for node in regions:
            node.target = _checkpointed
        if regions:
            part.recompile()


def _checkpointed(body: fx.GraphModule, *args: Any, preserve_rng_state: bool = True, **options: Any) -> Any:
    # While a whole step is captured, torch refuses to read a generator's state. That is better than other random numbers in what is recomputed.
    options |= {"use_reentrant": False, "preserve_rng_state": preserve_rng_state}
    if (contexts := body.meta.get("_checkpoint_context_fn")) is not None:
        options["context_fn"] = contexts
    return checkpoint(body, *args, **options)
