"""Several ranks, as they are asked for on the command line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from rung.cli.common import at_least
from rung.errors import UsageError

if TYPE_CHECKING:
    from rung.side import Launcher


def add_rank_options(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """several: the command takes more than one number, and shows how the workload scales."""
    more = "; several numbers show how it scales" if several else ""
    parser.add_argument("--nproc-per-node", type=_counts, default=(), metavar="N[,N...]" if several else "N",
                        help=f"train on N ranks of this host, started by torchrun{more}")  # fmt: skip
    parser.add_argument(
        "--launcher",
        metavar="COMMAND",
        help="start the ranks with this command, as in 'mpirun -np 8' or 'srun torchrun ...'",
    )
    parser.set_defaults(several=several)


def check_ranks(parsed: argparse.Namespace) -> None:
    """Raises UsageError for what several ranks cannot do."""
    if not (parsed.nproc_per_node or parsed.launcher):
        return
    if parsed.nproc_per_node and parsed.launcher:
        raise UsageError("give --nproc-per-node or --launcher, not both.")
    if getattr(parsed, "call", False):
        raise UsageError("--call times a plain function, in one process; several ranks run a workload.")
    if len(parsed.nproc_per_node) > 1 and (not parsed.several or getattr(parsed, "sweep", None)):
        raise UsageError(
            "give one number with --nproc-per-node" + (", or leave --sweep out." if parsed.several else ".")
        )
    if len(parsed.nproc_per_node) > 1 and parsed.preset in ("sanity", "quick"):
        raise UsageError(
            f"--preset {parsed.preset} measures nothing, so it does not show how a workload scales: leave it out."
        )
    which = "--nproc-per-node" if parsed.nproc_per_node else "--launcher"
    if getattr(parsed, "devices", None):
        raise UsageError(f"--devices times on one GPU, and {which} times on one GPU per rank: leave one out.")
    if getattr(parsed, "jobs", None):
        raise UsageError(
            f"--jobs lets workers prepare at the same time, and nothing runs next to ranks: leave it out with {which}."
        )
    timer = getattr(parsed, "timer", "auto")
    if timer in ("graph", "batch"):
        raise UsageError(f"--timer {timer} hides launches; ranks, which wait for each other, are timed as launched.")


def launcher_of(parsed: argparse.Namespace) -> Launcher | None:
    """What starts the ranks; None for one process."""
    from rung.launch import launcher, torchrun

    if parsed.launcher:
        return launcher(parsed.launcher)
    return torchrun(parsed.nproc_per_node[0]) if parsed.nproc_per_node else None


def _counts(text: str) -> tuple[int, ...]:
    """`4` or `1,2,4`: numbers of ranks."""
    found = tuple(map(at_least(1), text.split(",")))
    if len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"{text!r} names a number twice")
    return found
