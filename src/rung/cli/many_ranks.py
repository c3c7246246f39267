"""`rung analyze` of more ranks than fit into memory: each trace is reduced to a partial, and the partials answer."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung.cli import tables
from rung.cli.common import say, stop_when_asked
from rung.cli.live import live
from rung.errors import InputError, UsageError

if TYPE_CHECKING:
    from rung.analysis.partials.merge import Merged

# More traces in a folder are reduced, if they have so many bytes together: many small ones are read sooner than reduced.
MANY, LARGE = 64, 256_000_000
WHOLE = 1.4  # bytes of memory that a byte of a trace takes, where whole traces are read
# What needs the whole traces, by its name in the parsed arguments.
_WHOLE = ("html", "out", "write", "roofline", "samples", "step", "capture", "categories", "xlsx")


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("for many ranks (docs/internals/scale.md)")
    group.add_argument(
        "--partials", type=Path, metavar="DIR",
        help=f"reduce each trace to a small file in this folder and analyze these files, which later runs need instead of the traces. Rung always "
        f"reduces more than {MANY} large traces (default: into the cache)",
    )  # fmt: skip
    group.add_argument(
        "--engine",
        metavar="dask://HOST:PORT|slurm://N",
        help="reduce on the workers of this Dask scheduler, or on N workers in SLURM jobs, which take --partition, --account, "
        "--walltime and --sbatch (pip install 'rung[dask]')",
    )


def wanted(path: Path, parsed: argparse.Namespace) -> bool:
    """Whether this is answered from partials. Raises UsageError where it must be, and cannot."""
    asked = "--partials" if parsed.partials else "--engine" if parsed.engine else ""
    if not path.is_dir():
        if asked:
            raise UsageError(f"{asked} is about a folder of traces, one a rank: {path} is none.")
        return False
    reduced = bool(_partials_in(path))
    needs_whole = _needs_whole(parsed)
    if (asked or reduced) and needs_whole:
        from rung.analysis.partials.merge import ANSWERED

        what = f"{path} has partials of traces" if reduced else f"{asked} reduces the traces"
        raise UsageError(
            f"{what}, which cannot answer {needs_whole}: leave it out or ask the traces themselves. Partials answer --show {','.join(ANSWERED)}."
        )
    return bool(asked) or reduced or (not needs_whole and _too_many(path))


def answer(path: Path, parsed: argparse.Namespace) -> tuple[Any, Sequence[str], bool]:
    """The text, or the values of the document; what is to be said beside it; whether it may be kept."""
    with live(), _partials(path, parsed) as files:
        from rung.analysis.partials.merge import merged

        found = merged(files, str(path), steps=parsed.steps, wanted=parsed.show or ())
    return (_tables(found, parsed), found.overview.notes, False) if parsed.show else (_page(found, parsed), (), False)


@contextmanager
def _partials(path: Path, parsed: argparse.Namespace) -> Iterator[list[Path]]:
    """The partials in a folder, or those of the traces in it."""
    if files := _partials_in(path):
        yield files
        return
    from rung.analysis.partials.reduce import cached, reduce
    from rung.trace.open import files_in, folder_reader

    if folder_reader(path):
        raise UsageError(f"the CSV files in {path} only mean something together: leave --partials and --engine out.")
    traces = files_in(path)
    if not traces:
        raise InputError(f"The directory {path} has no file in it: give the one with the traces.")
    engine = _engine(parsed) if parsed.engine else None
    how = {"partial": parsed.partial, "max_bytes": parsed.max_bytes}
    if parsed.partials:
        yield reduce(traces, parsed.partials, engine, **how)
        say(f"partials: {parsed.partials} (rung analyze {parsed.partials} needs no trace)")
    else:
        with cached(keep=not parsed.no_cache) as folder:
            yield reduce(traces, folder, engine, **how)


def _engine(parsed: argparse.Namespace) -> Any:
    """Raises UsageError where there is none of that name."""
    from rung.analysis.partials.on_dask import SLURM, Jobs, on_dask, on_slurm

    if not parsed.engine.startswith(SLURM):
        return on_dask(parsed.engine)
    from rung.launch.slurm import look

    stop_when_asked()  # a kill, too, ends the jobs

    def alive(numbers: Sequence[int]) -> bool:
        return any((state := look(number)) is not None and state.alive for number in numbers)

    more = tuple(shlex.split(parsed.sbatch))
    return on_slurm(parsed.engine, Jobs(parsed.partition, parsed.account, parsed.walltime, more, alive))


def _partials_in(path: Path) -> list[Path]:
    from rung.analysis.partials.table import ENDING

    return sorted(path.glob(f"*{ENDING}"))


def _needs_whole(parsed: argparse.Namespace) -> str:
    """The option that whole traces are needed for; "" where there is none."""
    from rung.analysis.partials.merge import ANSWERED

    option = next((name for name in _WHOLE if getattr(parsed, name) not in (None, False, [])), "")
    names = [name for name in parsed.show or () if name not in ANSWERED]
    return f"--{option}" if option else f"--show {names[0]}" if names else ""


def _too_many(path: Path) -> bool:
    from rung.analysis.partials.reduce import PACKED
    from rung.hardware.limits import free_memory
    from rung.profilers.plan import is_kept
    from rung.trace.open import files_in, folder_reader

    files = files_in(path)
    if len(files) < 2 or is_kept(path) or folder_reader(path):
        return False
    size = sum(file.stat().st_size * (PACKED if file.suffix == ".gz" else 1) for file in files)
    return (len(files) > MANY and size > LARGE) or size * WHOLE > free_memory() / 2


def _tables(found: Merged, parsed: argparse.Namespace) -> Any:
    from rung.records.analyze import Tables
    from rung.records.record import plain

    shown = {name: found.tables[name] for name in parsed.show}
    if parsed.csv:
        tables.write_csv(next(iter(shown.values())), parsed.csv)
        return ""
    if not parsed.json:
        return tables.blocks(shown, parsed.top)
    overview, rows = found.overview, {name: table.to_dicts() for name, table in shown.items()}
    return plain(
        Tables(source=overview.source, format=overview.format, steps=overview.steps, notes=overview.notes, tables=rows)
    )


def _page(found: Merged, parsed: argparse.Namespace) -> Any:
    from rung.analysis.findings import between_ranks
    from rung.records.analyze import Finding
    from rung.records.record import plain, record_of
    from rung.report.analyze import analyze_lines
    from rung.report.headlines import HEADLINES, headlines

    overview = found.overview
    rows = between_ranks(found.tables["stragglers"], overview.steps).to_dicts()
    overview.findings = record_of(list[Finding], rows)
    without = set(HEADLINES) - set(found.tables)
    overview.headlines = headlines(lambda name: found.tables[name], overview.steps, without)
    return plain(overview) if parsed.json else "\n".join(analyze_lines(overview, tables.width(), parsed.top))
