"""Rewrites on the graph that Dynamo captures, packed as a ``torch.compile`` backend.

The user's model, its class, its state dict and its hooks stay as they are: only the captured graph changes.
"""

from rung.rewrites.surgeon import PASSES, Surgeon, hidden, inductor_patches

__all__ = ["PASSES", "Surgeon", "hidden", "inductor_patches"]
