"""`rung bench`: parse, call, render."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rung.cli.common import add_command, need_torch, say, show_help, target_options
from rung.errors import UsageError

EXAMPLE = """\
examples:
  rung bench tiny-transformer --size tiny
  rung bench tiny-transformer --recipe .rung/20260101-120000-tiny-transformer/recipe.toml
  rung bench model.py:make --rungs compile --json
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "bench", help_text, EXAMPLE)
    parser.add_argument("target", nargs="?", metavar="TARGET", help="tiny-transformer, path.py:name or module:name")
    parser.add_argument(
        "--recipe", type=Path, metavar="FILE", help="the recipe of a climb; its options of TARGET hold, too"
    )
    parser.add_argument("--rungs", metavar="A,B,...", help="these rungs, instead of a recipe")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: the best there is)")
    parser.add_argument("--deadline", type=float, default=900.0, metavar="SECONDS", help="for compiling (default: 900)")
    parser.set_defaults(run=lambda parsed, rest: run(parser, parsed, rest))


def run(parser: argparse.ArgumentParser, parsed: argparse.Namespace, rest: Sequence[str]) -> int:
    if parsed.help:
        return show_help(parser, parsed.target)
    if not parsed.target:
        raise UsageError("give a TARGET, as in `rung bench tiny-transformer`; `rung bench --help` says more.")
    need_torch()
    from rung.ladder.bench import bench
    from rung.ladder.recipe import Recipe
    from rung.report.lines import bench_lines
    from rung.runs import to_json

    if parsed.recipe and parsed.rungs:
        raise UsageError("give --recipe or --rungs, not both.")
    options, rungs = target_options(rest), tuple(filter(None, (parsed.rungs or "").split(",")))
    if parsed.recipe:
        recipe = Recipe.read(parsed.recipe)
        options, rungs = recipe.options_for(parsed.target, options), recipe.rungs
    say(f"measuring {parsed.target}" + (f" with {' + '.join(rungs)}" if rungs else "") + " ...")
    result = bench(parsed.target, options, rungs, device=parsed.device, deadline=parsed.deadline)
    print(to_json(result) if parsed.json else "\n".join(bench_lines(result)))
    return 0
