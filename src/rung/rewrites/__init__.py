"""Rewrites on the graph that Dynamo captures, packed as a ``torch.compile`` backend.

The user's model, its class, its state dict and its hooks stay as they are: only the captured graph changes.
"""

from rung.rewrites.backend import PASSES, RewriteBackend, hidden, inductor_patches

__all__ = ["PASSES", "RewriteBackend", "hidden", "inductor_patches"]
