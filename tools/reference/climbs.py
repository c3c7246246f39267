"""What a climb can try, and what it leaves behind."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields

from reference.markdown import block, code, page, sentence, table
from rung.plan import CONTRACTS, Original
from rung.recipes.recipe import MADE_ON, SCHEMA, STATUSES, TABLES, TEXTS, WORDS, Recipe
from rung.renamed import RENAMED
from rung.report.ladder import LEVELS, NUMERICS, markdown
from rung.report.words import meaning
from rung.rungs import LADDER

EXAMPLE = Recipe(
    rungs=("compile", "capture", "bf16", "sdpa"),
    workload="model.py:make",
    options={"batch": "8"},
    mode="train",
    numerics="bf16",
    made_on={
        "device": "NVIDIA H100 80GB HBM3",
        "arch": "sm90",
        "torch": "2.11.0+cu130",
        "model": "Net with 1000 parameters in 10 tensors",
        "structure": "9f2c51d0a7b3e846",
    },
    measured={"speedup": 2.0, "low": 1.9, "high": 2.1, "over_plain": 1.3, "confidence": 0.96},
    status="confirmed",
)


def rungs() -> str:
    blocks = [
        "A rung is one change that a climb can try. `rung climb` tries those that fit your workload and keeps a rung only if it is faster "
        "and verified. `rung rungs NAME` prints everything about one rung.",
        "`numerics` is the most that a rung may change in the results. `--numerics exact` allows `exact` and `reassociated`; the "
        "others must be allowed by name.",
        table(["numerics", "what may change"], [[code(name), text] for name, text in NUMERICS.items()]),
        "`needs` lists the preconditions. If one does not hold, the climb does not try the rung and gives the reason. A share such as "
        "*2% of the step in gemm* is the least part of the profiled step that the rung must be able to improve.",
    ]
    for level, title in LEVELS.items():
        found = [rung for rung in LADDER if rung.level == level]
        blocks += [f"## Level {level}: {title}", markdown(found)]
    return page(
        "Rungs",
        *blocks,
        "## Renamed rungs",
        "The old names work in this release only.",
        table(["old name", "name"], [[code(old), code(new)] for old, new in RENAMED.items()]),
    )


def recipe() -> str:
    meanings = dict(re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", inspect.getdoc(Recipe) or "", re.MULTILINE))
    meanings["schema"] = f"The version of the format, {SCHEMA}."
    kinds = {"schema": "whole number", **dict.fromkeys(TEXTS, "text"), "rungs": "list of texts"}
    kinds |= {name: f"table of {what}" for name, (_, what) in TABLES.items()}
    kinds |= {name: ", ".join(map(code, words)) for name, words in WORDS.items()}
    inside = [("made_on", MADE_ON), ("original", [field.name for field in fields(Original)][:2])]
    return page(
        "Recipe file",
        "A recipe is the result of a climb: `recipe.toml` in the run directory. It is a small TOML file that you can read, edit and keep "
        'beside the model. `rung.apply(model, "recipe.toml")` runs a model under it, and `rung apply recipe.toml` prints what it changes.',
        "## Example",
        block(EXAMPLE.text(), "toml"),
        "## Fields",
        "`schema` and `rungs` are required. Rung refuses a key that it does not know.",
        table(["field", "type", "meaning"], [[code(name), kind, meanings[name]] for name, kind in kinds.items()]),
        *(f"`{name}` may have: {', '.join(map(code, keys))}." for name, keys in inside),
        "`variables` may only name variables that a [rung](rungs.md) sets, with values that a rung gives them: see "
        "[environment variables](environment.md#variables-that-rungs-set).",
        "## Status",
        table(
            ["status", "what was checked"],
            [[code(name), sentence(meaning(name, "train").partition(": ")[2])] for name in STATUSES],
        ),
        "## Refused recipes",
        "Rung refuses a recipe if a rung needs more than `numerics` allows, or if two rungs replace each other. `numerics` goes from the "
        f"strictest to the loosest: {', '.join(map(code, CONTRACTS))}.",
    )
