"""`rung analyze`: parse, call, render."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rung.analysis.analyses import ANALYSES, check_name, table
from rung.cli import many_ranks, tables
from rung.cli.common import add_command, at_least, for_tables, opened, say
from rung.cli.slurm import add_options as add_job_options
from rung.errors import InputError, UsageError

EXAMPLE = """\
example, a recorded training step of two H200:
  $ rung analyze traces/
  traces: kineto, 10.2 k events, 2 steps, 2 ranks, NVIDIA H200
  Bottleneck: matrix products, 25.3% of the step (GPU time, mean of the ranks).
  Do first:
  1. Pointwise operations, norms and reductions are separate kernels: 28% (408 kernels a step,
     MulBackward0 first)
     1.08–1.27× faster: fuse them with torch.compile, or use fused norms and activations [rung
     climb: compile]

more:
  rung analyze traces/ --partials reduced/     reduce each of thousands of ranks to a small file
  rung analyze reduced/                        analyze these files, without the traces
  rung analyze trace.json.gz --show list       all analyses, with the question that each answers
  rung analyze trace.json.gz --show timeline   one analysis as a table
  rung analyze trace.json.gz --step 15,16      only these steps of the profiler
  rung analyze decode.json.gz --capture capture_bs32.json.gz   name the operators of replayed graphs
  rung analyze cut.json.gz --partial           read a damaged file up to the damage
  rung analyze trace.json.gz --html page.html  a page with a timeline, to keep or to share
  rung analyze trace.json.gz --out tables/     every table as CSV
  rung analyze workload/ --roofline page.html  hardware counters: what limits each kernel
  rung analyze run.db --write trace.pftrace    the same events for Perfetto

Rung recognizes the format by the content. This command needs neither torch nor a GPU.
"""

WRITERS = {".json": "write_chrome", ".pftrace": "write_perfetto", ".csv": "write_csv"}


class Answer(NamedTuple):
    """answer: a text, or the values of a document; notes: to be said beside it; lasts: it may be kept."""

    answer: Any
    notes: Sequence[str] = ()
    lasts: bool = True


def add(commands: Any, help_text: str) -> None:
    parser = add_command(commands, "analyze", help_text, EXAMPLE, run)
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="a trace, a database, or a folder of them")
    parser.add_argument(
        "--show", type=names, metavar="NAME[,NAME]", help="print these analyses as tables; `--show list` lists them"
    )
    tables.add_options(parser)
    parser.add_argument(
        "--categories",
        type=Path,
        metavar="FILE",
        help="TOML file with your own kernel families, tried before the built-in ones",
    )
    parser.add_argument(
        "--step",
        type=step,
        metavar="N[,N]|all",
        help="analyze only these recorded steps; all: every recorded step, without what ran before",
    )
    parser.add_argument(
        "--steps", type=at_least(1), metavar="N", help="number of recorded steps (default: from the trace)"
    )
    tables.add_captures(parser)
    add_job_options(parser)
    many_ranks.add_options(parser)
    parser.add_argument("--partial", action="store_true", help="read a damaged file up to the damage")
    tables.add_limit(parser)
    parser.add_argument("--no-cache", action="store_true", help="do not cache the tables of a large file")
    parser.add_argument(
        "--html", type=Path, metavar="FILE.html", help="write a page: findings, timeline, icicle, roofline, tables"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="write every table into a folder, one file each")
    parser.add_argument("--format", choices=("csv", "parquet"), help="format of the files of --out (default: csv)")
    parser.add_argument(
        "--xlsx",
        action="store_true",
        help="also write all tables of --out into one Excel workbook (pip install 'rung[xlsx]')",
    )
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="write the events as .json(.gz), .pftrace(.gz) or .csv"
    )
    parser.add_argument(
        "--roofline", type=Path, metavar="FILE.html", help="write a page with the roofline from hardware counters"
    )
    parser.add_argument(
        "--samples",
        type=Path,
        metavar="FILE",
        help="file with sampled power, memory and clocks, for --write and --html",
    )


def run(parsed: argparse.Namespace) -> int:
    if parsed.show == ("list",):
        print(listed(parsed.json))
        return 0
    write = check(parsed)
    for_tables()
    from rung.analysis.kept import load, place, save
    from rung.runs import to_json

    answers = []
    for path in parsed.paths:
        where = None if write or not repeatable(parsed) else place(path, question(parsed), categories(parsed))
        kept = load(where)
        answer = Answer(**kept) if kept else worked_out(path, parsed, write)
        if kept is None and answer.lasts:
            save(where, answer._asdict())
        for line in answer.notes:
            say(f"note: {line}")
        answers.append(answer.answer)
    if parsed.json:
        print(to_json(answers if len(answers) > 1 else answers[0]))
    else:
        print("\n\n".join(answers), end="\n" if any(answers) else "")
    return 0


def worked_out(path: Path, parsed: argparse.Namespace, write: Callable[[Any, Path], Any] | None) -> Answer:
    """The answer to what was asked of one trace; the files that were asked for are written."""
    if many_ranks.wanted(path, parsed):
        return Answer(*many_ranks.answer(path, parsed))
    if parsed.categories:
        from rung.analysis import classifier

        classifier.use(parsed.categories)
    trace = opened(path, parsed.capture, partial=parsed.partial, max_bytes=parsed.max_bytes, cache=not parsed.no_cache)
    if write:
        write(with_samples(trace, parsed.samples), parsed.write)
    if parsed.roofline:
        write_roofline(trace, parsed.roofline)
    trace, steps, note = per_step(trace, parsed)
    if parsed.html:
        write_page(with_samples(trace, parsed.samples), steps, note, parsed.html)
    if parsed.out:
        tables.write_all(trace, steps, parsed.out, parsed.format or "csv", parsed.xlsx)
    lasts = not trace.meta.get("cache")  # else it says what was wrong with the cache this time
    if parsed.show:
        return asked(trace, steps, parsed, note)._replace(lasts=lasts)
    return Answer(page(trace, steps, parsed, note, parsed.top), lasts=lasts)


def repeatable(parsed: argparse.Namespace) -> bool:
    """Whether the answer is all that was asked for, and depends on nothing but the trace and `question`."""
    files = (parsed.html, parsed.out, parsed.csv, parsed.roofline, parsed.capture)
    return not any(files) and not parsed.no_cache and not parsed.partial and parsed.max_bytes is None


def question(parsed: argparse.Namespace) -> dict[str, Any]:
    """What an answer depends on beside the trace and the files of the user's."""
    step = sorted(parsed.step) if parsed.step is not None else None
    given = {"show": parsed.show, "step": step, "steps": parsed.steps, "json": parsed.json}
    return given if parsed.json else given | {"top": parsed.top, "width": tables.width()}


def categories(parsed: argparse.Namespace) -> list[Path]:
    return [parsed.categories] if parsed.categories else []


def check(parsed: argparse.Namespace) -> Callable[[Any, Path], Any] | None:
    """Raises UsageError for what cannot be meant; the writer of --write."""
    if not parsed.paths:
        raise UsageError("give the path of a trace, as in `rung analyze trace.json.gz`.")
    for option in ("write", "roofline", "html", "out"):
        if getattr(parsed, option) and len(parsed.paths) > 1:
            raise UsageError(f"--{option} takes one PATH; a folder is one.")
    if parsed.format and not parsed.out:
        raise UsageError("--format is that of the tables of --out: add --out DIR.")
    if parsed.xlsx:
        from rung.report.workbook import need_xlsxwriter

        if not parsed.out:
            raise UsageError("--xlsx is a workbook of the tables of --out: add --out DIR.")
        need_xlsxwriter()
    if parsed.out and parsed.out.exists() and not parsed.out.is_dir():
        raise UsageError(f"--out {parsed.out} is a file; give a folder.")
    if parsed.capture and len(parsed.paths) > 1:
        raise UsageError("--capture belongs to one trace: give one PATH.")
    if parsed.samples and not (parsed.write or parsed.html):
        raise UsageError("--samples are drawn into a written trace or a page: add --write FILE or --html FILE.")
    if parsed.csv and (parsed.json or len(parsed.paths) > 1 or len(parsed.show or ()) != 1):
        raise UsageError("--csv writes one table: give one PATH, one --show NAME, and no --json.")
    for name in parsed.show or ():
        check_name(name)
    return writer(parsed.write) if parsed.write else None


def per_step(trace: Any, parsed: argparse.Namespace) -> tuple[Any, int, str]:
    """The trace of the steps that were asked for, by how many to divide it, and what there is to say of that."""
    from rung.analysis import per_step

    if parsed.step is not None:
        trace = per_step.of_steps(trace, parsed.step or None)
    return per_step.per_step(trace) if parsed.steps is None else (trace, parsed.steps, "")


def with_samples(trace: Any, path: Path | None) -> Any:
    """The trace with the samples of --samples among its curves."""
    if path is None:
        return trace
    from rung.profilers.overlay import laid_over, read_samples

    return laid_over(trace, read_samples(path))


def write_roofline(trace: Any, path: Path) -> None:
    """The page of --roofline. Raises InputError where the trace has no counters, UsageError where it cannot be written."""
    from rung.report.roofline_page import page as roofline_page
    from rung.runs import write_whole

    if trace.counters.is_empty():
        raise InputError(
            f"{trace.source} has no hardware counters: collect some with rocprofv3 --pmc or rocprof-compute, or see the roofline by operators on the page of --html."
        )
    text = roofline_page(table("counters", trace), table("counter_roofline", trace), trace.source)
    write_whole(path, text, "give another --roofline")
    say(f"roofline: {path}")


def write_page(trace: Any, steps: int, note: str, path: Path) -> None:
    """The page of --html."""
    from rung.analysis.pictures import pictures
    from rung.report.analyze import answer
    from rung.report.trace_page import page as trace_page
    from rung.runs import write_whole

    text = trace_page(answer(trace, steps, note), pictures(trace, steps=steps))
    write_whole(path, text, "give another --html")
    say(f"page: {path} ({len(text.encode()) / 1e6:.1f} MB, opens in any browser without a network)")


def page(trace: Any, steps: int, parsed: argparse.Namespace, note: str, top: int | None = None) -> Any:
    """The overview, with that many kernels, and a sentence of each analysis that has one."""
    from rung.records.record import plain
    from rung.report.analyze import analyze_lines, answer

    found = answer(trace, steps, note)
    return plain(found) if parsed.json else "\n".join(analyze_lines(found, tables.width(), top))


def asked(trace: Any, steps: int, parsed: argparse.Namespace, note: str) -> Answer:
    """The tables of --show."""
    from rung.analysis.captures import joined
    from rung.records.analyze import Tables
    from rung.records.record import plain

    found = {name: table(name, trace, steps=steps) for name in parsed.show}
    if parsed.csv:
        tables.write_csv(next(iter(found.values())), parsed.csv)
        return Answer("")
    notes = [*([note] if note else []), *joined(trace).notes]
    if parsed.json:
        rows = {name: answer.to_dicts() for name, answer in found.items()}
        document = Tables(source=trace.source, format=trace.format, steps=steps, notes=notes, tables=rows)
        return Answer(plain(document))
    return Answer(tables.blocks(found, parsed.top), notes)


def listed(as_json: bool) -> str:
    from rung.runs import to_json

    if as_json:
        return to_json({name: analysis.question for name, analysis in ANALYSES.items()})
    width = max(map(len, ANALYSES))
    return "\n".join(f"{name:<{width}}  {analysis.question}" for name, analysis in ANALYSES.items())


def step(text: str) -> set[int]:
    """`all` (an empty set) or `N,N,...`"""
    if text == "all":
        return set()
    try:
        return {int(number) for number in text.split(",")}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} names no steps; write all, or numbers as in 15,16") from None


def names(text: str) -> tuple[str, ...]:
    """`A,B,...`"""
    return tuple(name.strip() for name in text.split(","))


def writer(path: Path) -> Callable[[Any, Path], Any]:
    """The writer that a file's name asks for."""
    module = WRITERS.get(Path(path.name.removesuffix(".gz")).suffix)
    if module is None:
        raise UsageError(f"--write {path}: the name must end in {', '.join(WRITERS)} (and .gz, if it is to be packed).")
    write: Callable[[Any, Path], Any] = importlib.import_module(f"rung.trace.{module}").write
    return write
