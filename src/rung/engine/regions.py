"""The blocks of a model that repeat."""

from __future__ import annotations

from collections import Counter

from torch import nn


def blocks(model: nn.Module) -> list[nn.Module]:
    """The members of the longest list, or dictionary, of modules of one class; what is called in turn, and mostly alike in
    shape."""
    best: list[nn.Module] = []
    for module in model.modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential, nn.ModuleDict)) and len(module):
            members = list(module.values() if isinstance(module, nn.ModuleDict) else module)
            kind, _ = Counter(type(m) for m in members).most_common(1)[0]
            alike = [m for m in members if type(m) is kind and next(m.parameters(), None) is not None]
            best = max(best, alike, key=lambda found: (len(found), sum(1 for m in found for _ in m.modules())))
    return best
