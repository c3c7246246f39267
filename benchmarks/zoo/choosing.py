"""Which cases of the zoo there are, and which of them names on the command line mean."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from making import Case
from rows import drawn

FAMILIES = ("huggingface", "timm_models", "diffusion", "handwritten")  # files beside this one
# A few that make and run within seconds on a CPU; the first need nothing but torch.
SLICE = ("own/estuary", "own/unet", "own/ranker", "hf/qwen3-0.6b", "hf/t5-v1.1-base", "timm/convnext_tiny")


def cases(kernelbench: Path | None = None) -> dict[str, Case]:
    """All that there are, by name; those of a KernelBench checkout where its folder of levels is given."""
    found: dict[str, Case] = {}
    for family in FAMILIES:
        found |= importlib.import_module(family).CASES
    if kernelbench:
        problems = sorted(kernelbench.glob("level[123]/*.py"))
        if not problems:
            raise SystemExit(
                f"{kernelbench} has no level1/*.py: give the folder KernelBench of a KernelBench checkout."
            )
        for path in problems:
            name = f"kernelbench/{path.parent.name}/{path.stem}"
            found[name] = Case(name, f"KernelBench {path.parent.name}", f"kernelbench:{path.resolve()}", one_size=True)
    return found


def in_drawn_order(known: Mapping[str, Case]) -> list[str]:
    """Every case with each of its variants, in the order in which they are run."""
    return drawn(f"{name}:{variant}" for name, case in known.items() for variant in case.variants)


def chosen(
    known: dict[str, Case], order: Sequence[str], names: Sequence[str], first: int | None
) -> list[tuple[Case, str]]:
    """The cases that the names mean, in the drawn order. A name is a case (`hf/gpt2`, `hf/gpt2:train`), what a case's name begins with
    (`hf`, `kernelbench/level1`), a variant (`train`), or `slice`. first: so many of them."""
    for name in names:
        if not any(_means(name, case) for case in order):
            raise SystemExit(f"nothing in the zoo is called {name!r}; `zoo.py list` shows what there is.")
    picked = [case for case in order if not names or any(_means(name, case) for name in names)]
    found = []
    for case in picked[:first]:
        name, _, variant = case.rpartition(":")
        found.append((known[name], variant))
    return found


def _means(word: str, case: str) -> bool:
    name, _, variant = case.rpartition(":")
    if word == "slice":
        return name in SLICE
    return word in (case, name, variant) or name.startswith(f"{word}/")
