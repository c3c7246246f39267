"""Rungs of earlier versions: names that have changed, and what was removed. Old names work for one release: on the command line, in
recipes and in run directories."""

from __future__ import annotations

import re

# The name that it had → the name that it has. Empty this table, and delete what reads it, with the release after the next.
RENAMED = {
    "uncopied-attention": "strided-sdpa-inputs",
    "lean-sdpa": "sdpa-no-mask",
    "casts-together": "foreach-weight-casts",
    "joined-gradients": "fused-dgrad",
    "k-major-gradients": "k-major-wgrad",
    "epilogue-first": "epilogue-fusion-first",
    "dependent-launches": "pdl",
}
# What no climb was ever faster for, and why it is no rung any more (docs/zoo.md).
REMOVED = {
    "cublaslt": "it was tried in three climbs and changed nothing",
    "freezing": "torch.compile takes the weights as inputs whatever it says, so it changed nothing",
}
# Not within a longer name, a file's name or a path.
_OLD = re.compile(rf"(?<![\w./-])(?:{'|'.join(RENAMED)})(?![\w/-]|\.\w)")


def current_name(name: str) -> str:
    return RENAMED.get(name, name)


def with_current_names(text: str) -> str:
    """What an earlier version wrote, in today's names: lists of rungs, keys, and sentences about rungs."""
    return _OLD.sub(lambda found: RENAMED[found[0]], text)
