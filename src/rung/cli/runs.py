"""`rung runs`: the climbs of a folder; and the history of all runs, by its actions."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung.cli.common import (
    ROOT,
    add_command,
    add_runs_folder,
    after_the_answer,
    at_least,
    runs_in,
    say,
    share,
    target_options,
)
from rung.errors import RungError, UsageError

if TYPE_CHECKING:
    from rung.runs.history import History

COMMANDS = ("bench", "compare", "climb", "profile")

EXAMPLE = """\
example:
  $ rung runs
  .rung/20261126-195606-model-make  net (infer, exact)  4.12×, verified, ended early

more:
  rung runs --in DIR                          the run directories in another folder
  rung runs list                              the history of all commands, in all folders
  rung runs trend model.py:make --batch 8     how a measurement changed over time
  rung runs compare 12 17                     compare two entries of the history

`rung runs ACTION --help` describes an action. RUNG_HISTORY=off keeps no history
(docs/internals/history.md).
"""
LIST = """\
list --of bench --most 2
  entry  UTC               command  target      result                      tags
  17     2026-11-26 20:06  bench    ops.py:slow  7.64 ms (7.16 ms – 11.0 ms)
  16     2026-11-26 20:06  bench    ops.py:slow  2.86 ms (2.58 ms – 5.29 ms)
"""
SHOW = """\
show 4
  entry      4, 2026-11-26 20:01 UTC, tags: before
  command    rung bench model.py:make --preset quick
  target     model.py:make
  status     complete
  machine    AMD EPYC, vm
  versions   rung 1.0.0rc3, torch 2.13.0+cpu, python 3.11.7
"""
COMPARE = """\
compare 15 17
                                     A entry 15  B entry 17  B against A
  ops.py:slow mode=call              2.46 ms     7.64 ms     no clear difference (+211.1%)
"""
TREND = """\
trend ops.py:slow
  time of ops.py:slow (mode call), by rung bench on AMD EPYC, vm
  8 ms ┤  │    │
       ┤  │    •
  6 ms ┤  │
       ┤  │  │
  4 ms ┤  │  │
       ┤  •  •
  2 ms ┤• │
       └──────────
        2026-11-26

more:
  rung runs trend model.py:make --batch 8 --html trend.html
"""
STORE = (
    "use the history in this database, as in postgresql://USER@HOST/DATABASE (default: $RUNG_STORE, else your own file)"
)


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "runs", help_text, EXAMPLE, run)
    add_runs_folder(parser, "the folder of the run directories")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")

    def action(name: str, says: str, example: str, call: Callable[[argparse.Namespace], int], **how: Any) -> argparse.ArgumentParser:  # fmt: skip
        def called(parsed: argparse.Namespace) -> int:
            if parsed.root != ROOT:
                raise UsageError("--in belongs to `rung runs` without an action; there is one history for all folders.")
            return call(parsed)

        own = add_command(actions, name, says, f"example:\n  $ rung runs {example}", called, **how)
        own.add_argument("--store", metavar="URL", help=STORE)
        for option in own._actions:
            if option.dest in ("json", "debug"):
                option.default = argparse.SUPPRESS  # `rung runs --json list` means the same
        return own

    own = action("list", "list the history, newest first", LIST, list_entries)
    own.add_argument("--of", choices=COMMANDS, help="only entries of this command")
    own.add_argument("--tag", metavar="TAG", help="only entries with this tag")
    own.add_argument("--most", type=at_least(1), default=50, metavar="N", help="show at most N entries (default: 50)")

    own = action("show", "show everything about an entry", SHOW, show)
    own.add_argument("entry", metavar="ENTRY", help="its number, or a tag (the newest entry with it)")

    own = action("compare", "compare the times of two entries", COMPARE, compare)
    own.add_argument("a", metavar="A", help="an entry: its number, or a tag")
    own.add_argument("b", metavar="B", help="another entry")

    own = action(
        "tag",
        "add tags to an entry, or remove them",
        "tag 4 before\n  entry      4, 2026-11-26 20:01 UTC, tags: before\n",
        tag,
    )
    own.add_argument("entry", metavar="ENTRY", help="its number, or a tag")
    own.add_argument(
        "tags", nargs="+", type=tag_name, metavar="TAG", help="letters, digits and ._/-, but not a number alone"
    )
    own.add_argument("--remove", action="store_true", help="remove these tags")

    own = action(
        "export",
        "export the history as JSON, or its figures as CSV",
        "export --csv --out history.csv\n  wrote 17 entries to history.csv\n",
        export,
    )
    own.add_argument(
        "--csv", action="store_true", help="write CSV with one row per figure, instead of JSON with whole documents"
    )
    own.add_argument("--out", type=Path, metavar="FILE", help="write to this file (default: stdout)")

    own = action("gc", "remove entries whose run directories are gone (without --yes, only list them)", "gc --older-than 90\n  nothing to remove.\n", gc)  # fmt: skip
    own.add_argument(
        "--older-than",
        type=days,
        metavar="DAYS",
        help="also delete run directories that are older, with all files in them",
    )
    own.add_argument("--yes", action="store_true", help="remove them")

    own = action(
        "trend",
        "show how a measurement changed over time",
        TREND,
        trend,
        rest=True,
    )
    own.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="a target with its options, as you gave it to `rung bench` (default: all)",
    )
    own.add_argument(
        "--figure", choices=("time", "memory", "speedup"), default="time", help="the figure to show (default: time)"
    )
    own.add_argument("--of", choices=COMMANDS[:3], help="only measurements by this command")
    own.add_argument("--any-host", action="store_true", help="join the series of all hosts with the same device")
    own.add_argument("--false-alarms", type=share, default=0.05, metavar="5%",
                     help="at most this share of unchanged series is reported as changed (default: 5%%)")  # fmt: skip
    own.add_argument("--html", type=Path, metavar="FILE", help="write a page with the charts")


def days(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days")
    return value


def tag_name(text: str) -> str:
    if not re.fullmatch(r"[\w./-]{1,80}", text) or text.isdigit() or text.startswith("-"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a tag: write letters, digits and ._/-, and no number alone")
    return text


def history(parsed: argparse.Namespace) -> History:
    from rung.runs.history import open_history

    return open_history(parsed.store, say)


def run(parsed: argparse.Namespace) -> int:
    """Without an action: the run directories of a folder."""
    from rung.report.climbs import run_line
    from rung.report.units import one_line
    from rung.runs import Run, to_json

    def document(run: Run) -> dict[str, Any]:
        """A damaged run is part of the list like any other: it hides none of them."""
        try:
            return {k: v for k, v in run.data().items() if k in ("directory", "running", "manifest", "result")}
        except RungError as error:
            return {"directory": str(run.directory), "error": str(error)}

    def line(run: Run) -> str:
        try:
            return run_line(run.record())
        except RungError as error:
            return f"{one_line(run.directory)}  damaged: {one_line(error)}"

    found = runs_in(parsed.root)
    if parsed.json:
        print(to_json([document(run) for run in found]))
        return 0
    for run in found:
        print(line(run))
    if not found:
        print(f"no runs in {parsed.root}; `rung climb tiny-transformer` makes one.")
    return 0


def list_entries(parsed: argparse.Namespace) -> int:
    from rung.records.history import Entries
    from rung.records.record import plain
    from rung.report.history import list_lines
    from rung.runs import to_json

    store = history(parsed)
    found = store.entries(of=parsed.of or "", tag=parsed.tag or "", most=parsed.most)
    if parsed.json:
        print(to_json(plain(Entries(store=store.name, entries=found))))
    elif found:
        print("\n".join(list_lines(found)))
    elif asked := narrowed(parsed):
        print(f"no entry {asked} in {store.name}; `rung runs list` without options shows what it has.")
    else:
        print(f"nothing in {store.name} yet; `rung bench`, `compare`, `climb` and `profile` add to it.")
    return 0


def narrowed(parsed: argparse.Namespace) -> str:
    """What a list of entries was narrowed to, in words; empty where it was not."""
    return " ".join(
        part for part in (parsed.of and f"of rung {parsed.of}", parsed.tag and f"with the tag {parsed.tag}") if part
    )


def show(parsed: argparse.Namespace) -> int:
    from rung.records.record import plain
    from rung.report.history import entry_lines
    from rung.runs import to_json

    found = history(parsed).entry(parsed.entry)
    print(to_json(plain(found)) if parsed.json else "\n".join(entry_lines(found)))
    return 0


def compare(parsed: argparse.Namespace) -> int:
    from rung.records.record import plain
    from rung.report.benchmarks import saved_lines
    from rung.runs import to_json
    from rung.timing.saved import compare_entries

    store = history(parsed)
    found = compare_entries(store.entry(parsed.a), store.entry(parsed.b))
    print(to_json(plain(found)) if parsed.json else "\n".join(saved_lines(found)))
    return 0


def tag(parsed: argparse.Namespace) -> int:
    from rung.records.record import plain
    from rung.report.history import entry_lines
    from rung.runs import to_json

    store = history(parsed)
    number = store.entry(parsed.entry).id
    store.tag(number, *((), parsed.tags) if parsed.remove else (parsed.tags,))
    found = store.entry(str(number))
    print(to_json(plain(found)) if parsed.json else entry_lines(found)[0])
    return 0


def export(parsed: argparse.Namespace) -> int:
    from rung.cli.output import write_data
    from rung.records.history import Entries
    from rung.records.record import plain
    from rung.report.history import csv_text
    from rung.runs import to_json, write_whole

    if parsed.csv and parsed.json:
        raise UsageError("--json and --csv are two forms of the same: give one of them.")
    store = history(parsed)
    found = store.entries(documents=True)[::-1]
    text = csv_text(found) if parsed.csv else to_json(plain(Entries(store=store.name, entries=found)))
    if parsed.out:
        write_whole(parsed.out, text)
        say(f"wrote {len(found)} entries to {parsed.out}")
    else:
        write_data(text)
    return 0


def gc(parsed: argparse.Namespace) -> int:
    from rung.records.record import plain
    from rung.report.history import garbage_lines
    from rung.runs import to_json
    from rung.runs.garbage import collect

    found = collect(history(parsed), parsed.older_than, parsed.yes)
    print(to_json(plain(found)) if parsed.json else "\n".join(garbage_lines(found)))
    return 0


def trend(parsed: argparse.Namespace) -> int:
    from rung.cli.tables import width
    from rung.measure.trend import series_of
    from rung.records.history import Trend
    from rung.records.record import plain
    from rung.report.trend import trend_lines
    from rung.report.trend_page import page
    from rung.runs import to_json, write_whole
    from rung.runs.entries import full_target

    store, target = history(parsed), full_target(parsed.target or "")
    series = series_of(
        store.entries(documents=True),
        name=parsed.figure,
        target=target,
        options=target_options(parsed),
        of=parsed.of or "",
        hosts_together=parsed.any_host,
        false_alarms=parsed.false_alarms,
    )
    if not series:
        of_what = f" of {parsed.target} with these options" if parsed.target else ""
        raise UsageError(
            f"the history {store.name} has no {parsed.figure}{of_what}; `rung runs list` shows what it has."
        )
    found = Trend(store=store.name, false_alarms=parsed.false_alarms, series=series)
    print(to_json(plain(found)) if parsed.json else "\n".join(trend_lines(found, width(), bool(parsed.target))))
    if parsed.html:
        with after_the_answer():
            write_whole(parsed.html, page(found), "give another --html")
        say(f"page: {parsed.html}")
    return 0
