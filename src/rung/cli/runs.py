"""`rung runs`: the climbs of a folder; and the history of all runs, by its actions."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung.cli.common import ROOT, add_command, after_the_answer, at_least, runs_in, say, share, target_options
from rung.errors import RungError, UsageError

if TYPE_CHECKING:
    from rung.runs.history import History

COMMANDS = ("bench", "compare", "climb", "profile")

EXAMPLE = """\
examples:
  rung runs                                   the run directories below .rung
  rung runs --in DIR                          those below another folder
  rung runs list                              the history: what was benched, compared, climbed and profiled, wherever it was
  rung runs trend model.py:make --batch 8     a measurement's history as a chart, and where its level changed
  rung runs compare 12 17                     two entries of the history

`rung runs ACTION --help` says more of an action. RUNG_HISTORY=off keeps no history; docs/internals/history.md says where it is.
"""
STORE = "the history in a database, as postgresql://USER@HOST/DATABASE (default: $RUNG_STORE, else a file of your own)"


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "runs", help_text, EXAMPLE, run)
    parser.add_argument("--in", dest="root", type=Path, default=ROOT, metavar="DIR", help=f"where (default: {ROOT})")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")

    def action(name: str, says: str, example: str, call: Callable[[argparse.Namespace], int], **how: Any) -> argparse.ArgumentParser:  # fmt: skip
        def called(parsed: argparse.Namespace) -> int:
            if parsed.root != ROOT:
                raise UsageError("--in is of `rung runs` without an action; the history is one for all folders.")
            return call(parsed)

        own = add_command(actions, name, says, f"example:\n  rung runs {example}\n", called, **how)
        own.add_argument("--store", metavar="URL", help=STORE)
        for option in own._actions:
            if option.dest in ("json", "debug"):
                option.default = argparse.SUPPRESS  # `rung runs --json list` means the same
        return own

    own = action("list", "what is in the history, newest first", "list --of bench --most 20", list_entries)
    own.add_argument("--of", choices=COMMANDS, help="of this command only")
    own.add_argument("--tag", metavar="TAG", help="with this tag only")
    own.add_argument("--most", type=at_least(1), default=50, metavar="N", help="so many at most (default: 50)")

    own = action("show", "all that is known of an entry", "show 12", show)
    own.add_argument("entry", metavar="ENTRY", help="its number, or a tag, of which the newest is taken")

    own = action("compare", "how the times of two entries differ", "compare before 17", compare)
    own.add_argument("a", metavar="A", help="an entry: its number or a tag")
    own.add_argument("b", metavar="B", help="the other one")

    own = action("tag", "give an entry tags, or take them away", "tag 12 before", tag)
    own.add_argument("entry", metavar="ENTRY", help="its number, or a tag that it has")
    own.add_argument("tags", nargs="+", type=tag_name, metavar="TAG", help="letters, digits and ._/-, and no number")
    own.add_argument("--remove", action="store_true", help="take these tags away")

    own = action("export", "the whole history as JSON, or its figures as CSV", "export --csv --out history.csv", export)
    own.add_argument("--csv", action="store_true", help="a row a figure, instead of JSON with the documents")
    own.add_argument("--out", type=Path, metavar="FILE", help="write it there (default: print it)")

    own = action("gc", "remove entries whose run directories are gone; say what would go unless --yes is given", "gc --older-than 90", gc)  # fmt: skip
    own.add_argument(
        "--older-than", type=days, metavar="DAYS", help="old run directories, too, with all that is in them"
    )
    own.add_argument("--yes", action="store_true", help="do it")

    own = action(
        "trend", "how a measurement went over time", "trend model.py:make --batch 8 --html trend.html", trend, rest=True
    )
    own.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="as for `rung bench`; its options choose among series (default: all)",
    )
    own.add_argument("--figure", choices=("time", "memory", "speedup"), default="time", help="of what (default: time)")
    own.add_argument("--of", choices=COMMANDS[:3], help="measured by this command only")
    own.add_argument("--any-host", action="store_true", help="one series a device, whatever the host is called")
    own.add_argument("--false-alarms", type=share, default=0.05, metavar="5%",
                     help="how many unchanging series may be told to change, at most (default: 5%%)")  # fmt: skip
    own.add_argument("--html", type=Path, metavar="FILE", help="write a page with the charts")


def days(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days")
    return value


def tag_name(text: str) -> str:
    if not re.fullmatch(r"[\w./-]{1,80}", text) or text.isdigit() or text.startswith("-"):
        raise argparse.ArgumentTypeError(f"{text!r} is no tag: write letters, digits and ._/-, and no number alone")
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
    else:
        print(f"nothing in {store.name} yet; `rung bench`, `compare`, `climb` and `profile` add to it.")
    return 0


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
