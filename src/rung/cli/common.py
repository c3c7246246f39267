"""What several commands share: a target with its own options, and where runs are kept."""

from __future__ import annotations

import argparse
import difflib
import errno
import gc
import inspect
import math
import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung.cli.live import live, write
from rung.cli.output import raw
from rung.config import TABLES, settings_of
from rung.errors import InputError, RungError, UsageError, WorkloadError, first_line, where
from rung.errors import need_torch as need_torch  # for the commands
from rung.files import check_regular
from rung.renamed import current_name

if TYPE_CHECKING:
    from rung.runs import Run

ROOT = Path(".rung")
TARGETS = "tiny-transformer, path.py:name, module:name, kernelbench:path.py, hf:NAME, timm:NAME or diffusers:NAME"
IN_JOB = "RUNG_IN_JOB"  # a variable of a job of SLURM's (launch/slurm.py): what would submit one runs in it
# Options that say how a job runs, by the one that asks for it.
OF_JOBS = {
    "--k8s-manifest": ("--k8s-image", "--k8s-nodes", "--k8s-gpus", "--k8s-claim", "--k8s-folder"),
    "--slurm": ("--partition", "--account", "--walltime", "--sbatch", "--container", "--container-mounts"),
}
# No limit anybody could need: what is larger does not fit into the numbers of libraries that count and wait.
MOST, MOST_SECONDS, MOST_BYTES = 10**9, 1e9, 1 << 60
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_ELSEWHERE = {"--budget": "--time", "--time": "--budget"}  # what another command calls its seconds


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Breaks a line of help between words, and not within --an-option."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def add_command(
    commands: Any,
    name: str,
    help_text: str,
    example: str,
    run: Callable[[argparse.Namespace], int],
    *,
    target: str = "",
    rest: bool = False,
) -> argparse.ArgumentParser:
    """A command's parser, with an example below its help and the options that all commands have.

    run: does what was asked and returns the exit code; it is called where no help was asked for. Words that the command does
    not know are refused, unless they may be a target's own options or `rest` has them kept, in `parsed.rest`.
    target: the argument that names the target; --help then shows its options, too.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help_text,
        description=help_text[0].upper() + help_text[1:] + ("" if help_text.endswith("?") else "."),
        epilog=example,
        formatter_class=HelpFormatter,
        add_help=False,
        allow_abbrev=False,
    )
    if target:
        parser.add_argument(
            "-h", "--help", action="store_true", help="show this help; with a TARGET, the target's options, too"
        )
    else:
        parser.add_argument("-h", "--help", action="help", help="show this help")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document on stdout; everything else goes to stderr"
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")

    def called(parsed: argparse.Namespace) -> int:
        if target and parsed.help:
            return show_help(parser, getattr(parsed, target))
        try:
            if not (target or rest):
                no_rest(parsed.rest)
            no_job_options_alone(parsed)
            if getattr(parsed, "k8s_manifest", None):
                from rung.cli.kubernetes import write_manifest

                return write_manifest(parsed)
            if getattr(parsed, "slurm", None) and IN_JOB not in os.environ:
                from rung.cli.slurm import in_job

                return in_job(parsed)
            return run(parsed)
        except RungError as error:
            error.args = (f"{_set_in(parsed, error)}{error}{_meant(parser, parsed.rest, str(error))}",)
            raise

    parser.set_defaults(run=called)
    return parser


def _set_in(parsed: argparse.Namespace, refused: RungError) -> str:
    """The file that has set what is refused; empty where it was typed. Only the command itself knows what some values mean."""
    if not isinstance(refused, UsageError) or parsed.command not in TABLES:
        return ""
    for key, setting in settings_of(parsed.command).items():
        named = isinstance(setting.value, str) and repr(setting.value) in str(refused)
        if (named or f"--{key} " in str(refused)) and not typed(parsed, f"--{key}"):
            return f"{setting.where}: "
    return ""


def _meant(parser: argparse.ArgumentParser, rest: Sequence[str], refused: str) -> str:
    """What to add to the refusal of an option, by a target or the command, that the command has, spelt a little otherwise, or as the value
    of another."""
    own = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    for flag in (word.partition("=")[0] for word in rest):
        near = difflib.get_close_matches(flag, own, 1, 0.8) or [
            other for other in [_ELSEWHERE.get(flag)] if other in own
        ]
        if near and near[0] == flag:  # where the command has it, it was not read as one: another name is no help
            continue
        if near and f"has no option {flag}; it takes" in refused:  # else the target has one that is like it
            return f" {parser.prog} itself has {near[0]}."
        if near and refused.startswith(f"unexpected argument '{flag}"):
            return f" Did you mean {near[0]}?"
        of = next(
            (a.option_strings[-1] for a in parser._actions if a.option_strings and flag[2:] in (a.choices or ())), ""
        )
        if of and refused.startswith(f"unexpected argument '{flag}"):
            return f" Did you mean {of} {flag[2:]}?"
    return ""


def show_help(parser: argparse.ArgumentParser, target: str | None) -> int:
    """The command's help, followed by the target's own options where one was given."""
    options: dict[str, inspect.Parameter] = {}
    if target:
        from rung.workload.load import parameters

        with target_here(target):
            options = parameters(target)  # first: where there is no such target, that is the whole answer
    parser.print_help()
    if target:
        print(f"\noptions of {target}:")
        for name, parameter in options.items():
            default = "" if parameter.default in (inspect.Parameter.empty, None) else f" (default {parameter.default})"
            kind = _kind(parameter).removesuffix(" | None")
            print(f"  --{name.replace('_', '-')}  {kind}{default}")
    return 0


def _kind(parameter: inspect.Parameter) -> str:
    """An annotation as it was written; without one, the type of the default."""
    kind = parameter.annotation
    if kind is inspect.Parameter.empty:
        return "text" if parameter.default in (inspect.Parameter.empty, None) else type(parameter.default).__name__
    written = kind if isinstance(kind, str) else inspect.formatannotation(kind)
    choices = re.fullmatch(r"(?:typing\.)?Literal\[(.*)\]( \| None)?", written)
    return " | ".join(word.strip(" '\"") for word in choices[1].split(",")) if choices else written


def target_options(parsed: argparse.Namespace) -> dict[str, str]:
    """`--name value`, `--name=value` and `--flag` that no command knows: they belong to the target.

    parsed: has `rest`, what the command does not know, and `words`, the command line as typed. A value that stands before the
    target was taken for the target itself.
    """
    rest, words = parsed.rest, parsed.words
    for word in (w for w in rest if w.startswith("--") and "=" not in w):
        after = next(iter(words[words.index(word) + 1 :]), "-")
        if not after.startswith("-") and after not in rest:
            raise UsageError(
                f"put TARGET first and its options after it: Rung took {after!r}, after {word}, for the TARGET."
            )
    options: dict[str, str] = {}
    words = list(rest)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            raise UsageError(f"unexpected argument {word!r}; options of the target are given as --name VALUE.")
        name, equals, value = word[2:].partition("=")
        if not equals:
            value = words.pop(0) if words and not words[0].startswith("--") else "true"
        options[name] = value
    return options


def typed(parsed: argparse.Namespace, option: str) -> bool:
    """Whether an option is on the command line, and not only in a file of defaults."""
    return any(word.partition("=")[0] == option for word in parsed.words)


def no_job_options_alone(parsed: argparse.Namespace) -> None:
    """Raises UsageError for an option of a job where none is asked for: the command would run here, whatever it says."""
    for asks, options in OF_JOBS.items():
        dry = ("--dry-run",) if getattr(parsed, "dry_run_of", "") == asks else ()
        alone = next((option for option in (*options, *dry) if typed(parsed, option)), "")
        if alone and not getattr(parsed, asks[2:].replace("-", "_"), True):  # True: the command has no such jobs
            raise UsageError(
                f"{alone} needs {asks}, without which the command runs here: add {asks}, or leave {alone} out."
            )


def share(text: str) -> float:
    """`2%` or `0.02`."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; write 2% or 0.02") from None
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must lie between 0 and 100%")
    return value


def seconds(text: str) -> float:
    """A time above 0 and up to MOST_SECONDS, 31 years; `inf` and `nan` are none."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 < value < math.inf):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; write a number of seconds above 0")
    if value > MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is too long a time; write at most {MOST_SECONDS:.0f} seconds")
    return value


def size(text: str) -> int:
    """`500M`, `16G` or a plain number of bytes; K, M, G and T are powers of 1024."""
    found = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE | re.ASCII)
    value = int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ")) if found else 0
    if value < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; write a number of bytes, or one with K, M, G or T as in 16G"
        )
    if value > MOST_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is too large a size; write at most {MOST_BYTES >> 40}T")
    return value


def regular_file(text: str) -> Path:
    """A file that is read as a whole. Raises UsageError for a pipe, which may never begin, and a device, which may never end."""
    try:
        check_regular(text)
    except OSError as error:
        if error.errno == errno.EINVAL:  # what else is wrong is said by who reads it
            raise UsageError(f"{text} cannot be read: {error.strerror}.") from None
    except ValueError:
        pass
    return Path(text)


def at_least(least: int) -> Callable[[str], int]:
    """A whole number that is not less, and at most MOST."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, {least} or more")
        if value > MOST:
            raise argparse.ArgumentTypeError(f"{text!r} is too large; write a whole number up to {MOST}")
        return value

    return read


def listed_names(text: str) -> tuple[str, ...]:
    """`A,B,...`"""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name; write names with commas between, as in A,B")
    return names


def rung_names(text: str) -> tuple[str, ...]:
    """`A,B,...`, in today's names."""
    return tuple(map(rung_name, listed_names(text)))


def rung_name(text: str) -> str:
    """Today's name of a rung; says it, where that is another one."""
    if (name := current_name(text)) != text:
        say(f"note: the rung {text} is called {name} now; the old name works in this release only.")
    return name


def check_early(target: str, device: str | None = None) -> None:
    """Refuses a misspelt target or device at once: a worker would say the same once it has loaded torch."""
    from rung.hardware.device import check_device
    from rung.workload.load import check_target

    check_target(target)
    if device is not None:
        check_device(device)


def no_rest(rest: Sequence[str]) -> None:
    if rest:
        raise UsageError(f"unexpected argument {rest[0]!r}; `--help` lists what the command takes.")


def for_tables() -> None:
    """To be called by a command that only works on tables, before it imports polars and numpy.

    Both start a thread for each core. On a node of 128 that costs more than a small trace does, and those of numpy's
    OpenBLAS turn idly for a while; what takes long in a trace is one thread's work. One thread needs one arena of memory, and
    polars' allocator keeps what was freed for a tenth of a second, not for ten. That of glibc gives a block of 128 KiB back
    at once, and a fresh one costs a fault for each page: here blocks of half a megabyte come and go. And Python looks for
    cycles of dead objects at every 700th object that is made: a third of a second of imports consist of those that stay.
    """
    for library in ("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(library, "1")
    os.environ.setdefault("_RJEM_MALLOC_CONF", "narenas:1,dirty_decay_ms:100,muzzy_decay_ms:0")  # of jemalloc
    gc.set_threshold(100_000)
    import ctypes

    with suppress(AttributeError, OSError):  # another C library
        for option, size in ((_M_MMAP_THRESHOLD, 4 << 20), (_M_TRIM_THRESHOLD, 16 << 20)):
            ctypes.CDLL(None).mallopt(option, size)


def opened(path: Path, captures: Sequence[Path] = (), **how: Any) -> Any:
    """The trace in a file, in a folder of them, or in that of a recording which `rung profile` made. how: as for trace.read.

    captures: traces of the phase in which its graphs were captured (analysis/captures.py); in the folder, they are no ranks.
    """
    if path.is_dir():
        from rung.profilers.collect import read_kept
        from rung.profilers.plan import is_kept

        if is_kept(path):
            return read_kept(path)
    from rung.trace import read

    with live():
        trace = read(path, without=captures, **how)
        from rung.analysis.captures import with_captures

        return with_captures(trace, captures, max_bytes=how.get("max_bytes"), cache=how.get("cache", True))


@contextmanager
def after_the_answer() -> Iterator[None]:
    """For the files that are written when the answer is on stdout: where one cannot be, that is said on stderr alone, and
    neither the answer is lost nor does a second document follow it. That holds for a mistake of our own, too, and for Ctrl-C."""
    try:
        yield
    except BaseException as error:
        error.told = True  # type: ignore[attr-defined]
        raise


@contextmanager
def target_here(target: str) -> Iterator[None]:
    """For what a target does in this process, and not in a worker: what it prints is no part of the answer, and what it raises is
    a sentence."""
    try:
        with redirect_stdout(raw(sys.stderr)), redirect_stderr(raw(sys.stderr)):
            yield
    except RungError:
        raise
    except (Exception, SystemExit) as error:
        raise WorkloadError(f"{target}: {type(error).__name__}: {first_line(error)}{where(error)}") from error


def stop_when_asked() -> None:
    """A kill and a terminal that is closed ask to stop as Ctrl-C does, so that what there is by then is kept; SIGINT also where a
    script's `&` has it ignored. Under `nohup`, which has SIGHUP ignored, a closed terminal ends nothing."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _hung_up)


def _hung_up(*_: object) -> None:
    """The shell and the system both tell of a closed terminal: the second time must not cut off what the first began."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise KeyboardInterrupt


def say(text: str = "") -> None:
    """A line of progress; stdout is kept for the answer.

    Where nobody reads it any longer, the work goes on: a climb is worth more than its progress.
    """
    try:
        write(text)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def add_runs_folder(parser: argparse.ArgumentParser, what: str) -> None:
    """The option that `runs_in` reads. what: the folder is to the command, for its help."""
    parser.add_argument(
        "--in", dest="root", type=Path, default=ROOT, metavar="DIR", help=f"{what} (default: {ROOT})"
    )  # fmt: skip


def runs_in(root: Path) -> list[Run]:
    """The runs of the folder that --in names. Without the option there may be no folder yet."""
    from rung.runs import runs_below

    if root != ROOT and not root.is_dir():
        raise InputError(f"{root} is not a folder; give --in the folder of your climbs.")
    return runs_below(root)
