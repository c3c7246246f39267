"""`rung compare`: parse, call, render."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung.cli.common import (
    TARGETS,
    add_command,
    after_the_answer,
    check_early,
    need_torch,
    no_rest,
    regular_file,
    rung_names,
    say,
    seconds,
    share,
    stop_when_asked,
    target_options,
    typed,
)
from rung.cli.kubernetes import add_options as add_kubernetes_options
from rung.cli.live import live
from rung.cli.ranks import add_rank_options, check_ranks, launcher_of
from rung.cli.remember import remembered
from rung.cli.slurm import add_options
from rung.errors import UsageError

FOR_SAVED = ("--json", "--debug", "--fail-if-slower")  # what two files of measurements take
SAME = "A and B are the same: this measures which differences are the machine's. To compare two, name both: rung compare A B"
HERE = 20.0  # seconds of timing in one process, unless --budget says otherwise

if TYPE_CHECKING:
    from rung.records.compare import Comparison, Ranking
    from rung.side import Side

EXAMPLE = """\
example, two plain functions on a CPU:
  $ rung compare ops.py:old ops.py:new --call --inputs ops.py:inputs
  A  ops.py:old
  B  ops.py:new
  step   A 311 µs (310 µs – 314 µs), B 115 µs (113 µs – 120 µs)
  equal  yes, by all 17 comparisons of a step's results and updates, in full precision
  B is faster than A: 2.75× (2.66–2.80) at 99.8% confidence, 16 rounds in one process.

more:
  rung compare tiny-transformer --size tiny --rungs compile      B is A with torch.compile
  rung compare tiny-transformer --recipe .rung/RUN/recipe.toml   B is A under a recipe
  rung compare old.py:make new.py:make --verify                  two workloads: equal, and faster?
  rung compare model.py:make --base main --fail-if-slower 2%     for CI: is it slower than `main`?
  rung compare ops.py:old ops.py:new ops.py:newer --call         rank three functions
  rung compare monday.json tuesday.json                          two files of `rung bench --json`
  rung compare model.py:make --env GPU_MAX_HW_QUEUES=2           B has the environment variable
  rung compare model.py:make --env NCCL_ALGO=Ring --nproc-per-node 8

Rung starts fresh processes of A and B and times them in alternating blocks, until B is shown to be
faster, slower, or the same within --same-within. Of more than two sides it compares every pair; the
options for B then hold for all sides but A. Options that the command does not know go to all
targets.
"""


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "compare", help_text, EXAMPLE, run, target="a")
    parser.add_argument(
        "a",
        nargs="?",
        metavar="A",
        help=TARGETS,
    )
    parser.add_argument("b", nargs="?", metavar="B", help="the other side (default: A)")
    parser.add_argument("more", nargs="*", metavar="C", help="more sides: Rung ranks them all")
    for name, side in (("", "B"), ("a-", "A")):
        parser.add_argument(f"--{name}recipe", type=regular_file, metavar="FILE", help=f"{side} runs under this recipe")
        parser.add_argument(f"--{name}rungs", type=rung_names, metavar="A,B,...", help=f"{side} runs with these rungs")
        parser.add_argument(
            f"--{name}env",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help=f"set this environment variable for {side}; may be given again",
        )
    parser.add_argument("--call", action="store_true", help="A and B are plain functions, not workloads")
    parser.add_argument(
        "--inputs",
        metavar="PATH.py:NAME",
        help="with --call: a function that makes the arguments from a seed; Rung verifies all sides first, in this process",
    )
    parser.add_argument(
        "--gradients",
        action="store_true",
        help="with --inputs: verify gradients of the inputs, too; only the call is timed",
    )
    parser.add_argument("--base", metavar="REV", help="A is the code of this git revision")
    parser.add_argument("--verify", action=argparse.BooleanOptionalAction, help="first check that B computes what A computes")  # fmt: skip
    parser.add_argument(
        "--same-within",
        type=share,
        default=0.01,
        metavar="1%",
        help="a difference below this counts as the same (default: 1%%; never more than --fail-if-slower)",
    )
    parser.add_argument(
        "--fail-if-slower",
        type=share,
        metavar="2%",
        help="exit with code 1 if B is slower by this much, with confidence",
    )
    parser.add_argument(
        "--budget", type=seconds, metavar="SECONDS",
        help="begin no restart (a measurement of all sides in fresh processes) after this time. "
        "The time of --verify counts. Rung always finishes --verify and the first restart",
    )  # fmt: skip
    parser.add_argument(
        "--deadline", type=seconds, default=900.0, metavar="SECONDS", help="time limit for compiling (default: 900)"
    )
    parser.add_argument(
        "--fail-if-inconclusive",
        action=argparse.BooleanOptionalAction,
        help="also exit with code 1 if it ends before it is clear whether B is slower",
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown, for example for a pull request")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the verdict as a JUnit test report")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with the histogram and the time series")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: the best one)")
    add_rank_options(parser)
    add_options(parser)
    add_kubernetes_options(parser)


def run(parsed: argparse.Namespace) -> int:
    if not parsed.a:
        raise UsageError("give A, as in `rung compare tiny-transformer --rungs compile`; see `rung compare --help`.")
    if parsed.b and all(name.endswith(".json") for name in (parsed.a, parsed.b, *parsed.more)):
        return saved(parsed)
    need_torch()
    stop_when_asked()  # a kill, too, ends the workers and removes a revision's checkout
    from rung.records.record import plain
    from rung.report.ci import comment, junit
    from rung.report.compare import compare_lines
    from rung.runs import to_json, write_whole
    from rung.timing.compare import failure

    if parsed.more and parsed.fail_if_slower:
        if typed(parsed, "--fail-if-slower"):
            raise UsageError("--fail-if-slower judges B against A; leave the other sides out.")
        parsed.fail_if_slower = None
    if parsed.fail_if_slower and parsed.fail_if_slower < parsed.same_within:
        # What is called the same could be slower by the limit, and would pass.
        if typed(parsed, "--same-within"):
            say(f"--same-within is {parsed.fail_if_slower:.3g} here, the limit of --fail-if-slower")
        parsed.same_within = parsed.fail_if_slower
    if parsed.json and parsed.markdown:
        raise UsageError("--json and --markdown both print the result: give one of them.")
    result = on_inputs(parsed) if parsed.inputs else in_processes(parsed)
    why = failure(result, parsed.fail_if_slower, bool(parsed.fail_if_inconclusive))
    shown = plain(result)
    how = {"target": parsed.a, "call": parsed.call, "base": parsed.base or "", "inputs": parsed.inputs or ""}
    with remembered("compare", shown, **how):
        if parsed.json:
            print(to_json(shown))
        else:
            print(comment(result, why) if parsed.markdown else "\n".join(compare_lines(result)))
        if parsed.junit:
            with after_the_answer():
                write_whole(parsed.junit, junit(result, why), "give another --junit")
        if parsed.html:
            from rung.report.samples_page import compare_page

            with after_the_answer():
                write_whole(parsed.html, compare_page(result), "give another --html")
            say(f"page: {parsed.html}")
    return int(bool(why))


def on_inputs(parsed: argparse.Namespace) -> Comparison | Ranking:
    """Functions with arguments, verified and timed in this process."""
    from rung.timing.compare_here import compare_here
    from rung.workload.own_modules import InTurn

    if not parsed.call:
        raise UsageError("--inputs makes the arguments of plain functions: add --call.")
    sides = (parsed.recipe, parsed.a_recipe, parsed.rungs, parsed.a_rungs, parsed.env, parsed.a_env, parsed.base)
    if any(sides) or not parsed.b:
        raise UsageError(
            "--inputs compares two or more functions as they are, in this process: name them, and leave recipes, rungs, variables and --base out."
        )
    check_ranks(parsed)
    no_rest(parsed.rest)
    calls: dict[str, Callable[..., Any]] = {}
    targets = (parsed.a, parsed.b, *parsed.more)
    with InTurn(targets) as versions:
        for k, target in enumerate(targets):
            again = targets[:k].count(target)
            calls[f"{target} #{again + 1}" if again else target] = versions.load(target, function)
        if len(set(targets)) == 1:
            say(SAME)
        inputs = versions.load_inputs(parsed.inputs, function)
        with live(parsed.budget):
            return compare_here(
                calls,
                margin=parsed.same_within,
                seconds=parsed.budget or HERE,
                device=parsed.device,
                inputs=inputs,
                gradients=parsed.gradients,
            )


def function(target: str) -> Callable[..., Any]:
    """The plain function that a target names."""
    from rung.workload import Workload
    from rung.workload.load import find

    made = find(target)
    if isinstance(made, Workload):
        raise UsageError(f"{target} is a rung.Workload and no function: leave --call and --inputs out.")
    return made


def in_processes(parsed: argparse.Namespace) -> Comparison | Ranking:
    """Targets, in fresh processes of each."""
    from rung.timing.compare import at_revision, compare

    if parsed.gradients:
        raise UsageError("--gradients is for functions with arguments: add --call and --inputs.")
    check_ranks(parsed)
    options = target_options(parsed)
    for target in (parsed.a, parsed.b or parsed.a, *parsed.more):
        check_early(target, parsed.device)
    a = side(parsed.a, options, parsed.a_recipe, parsed.a_rungs, parsed.a_env, parsed.call)
    b = side(parsed.b or parsed.a, options, parsed.recipe, parsed.rungs, parsed.env, parsed.call)
    rest_of_them = [side(c, options, parsed.recipe, parsed.rungs, parsed.env, parsed.call) for c in parsed.more]
    if a == b and not parsed.base:
        say(SAME)
    with ExitStack() as stack:
        if parsed.base:
            a = stack.enter_context(at_revision(a, parsed.base))
        stack.enter_context(live(parsed.budget))
        return compare(
            a,
            b,
            *rest_of_them,
            device=parsed.device,
            margin=parsed.same_within,
            verify=bool(parsed.verify),
            budget=parsed.budget,
            deadline=parsed.deadline,
            say=say,
            launcher=launcher_of(parsed),
        )


def saved(parsed: argparse.Namespace) -> int:
    """Two measurements that were kept as files."""
    from rung.records.record import plain
    from rung.report.benchmarks import saved_lines
    from rung.runs import to_json
    from rung.timing.saved import compare_saved

    if parsed.more:
        raise UsageError("give two files of measurements; more than two cannot be compared.")
    no_rest(parsed.rest)  # no target takes it: a misspelt --fail-if-slower would pass
    flags = (word.partition("=")[0] for word in parsed.words if word.startswith("--") and word != "--")
    if wrong := next((flag for flag in flags if flag not in FOR_SAVED), ""):
        raise UsageError(f"{wrong} needs a comparison that runs now; for two files of measurements, use --json.")
    result = compare_saved(regular_file(parsed.a), regular_file(parsed.b))
    print(to_json(plain(result)) if parsed.json else "\n".join(saved_lines(result)))
    slower = [row.change for row in result.rows if row.apart]
    return int(bool(parsed.fail_if_slower and slower and max(slower) >= parsed.fail_if_slower))


def side(
    target: str,
    options: dict[str, str],
    recipe: Path | None,
    rungs: Sequence[str] | None,
    env: Sequence[str],
    call: bool,
) -> Side:
    """One side as it was typed."""
    from rung.recipes.recipe import side_of
    from rung.rungs import rungs_named

    if recipe and rungs:
        raise UsageError("give --recipe or --rungs for a side, not both.")
    made = side_of(target, options, rungs, recipe, call=call)
    rungs_named(made.rungs)
    odd = next((e for e in env if "=" not in e), None)
    if odd:
        raise UsageError(f"--env {odd}: write NAME=VALUE.")
    return replace(made, env=made.env | dict(e.split("=", 1) for e in env))
