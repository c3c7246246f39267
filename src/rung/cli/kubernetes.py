"""A command as a Job of Kubernetes: its options, and the file that is written."""

from __future__ import annotations

import argparse
import re
import shlex
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath

from rung.cli.common import at_least, say
from rung.cli.ranks import check_ranks
from rung.cli.slurm import words_without
from rung.errors import UsageError

OURS = ("--k8s-manifest", "--k8s-image", "--k8s-nodes", "--k8s-gpus", "--k8s-claim", "--k8s-folder", "--nproc-per-node")


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("in a Job of Kubernetes")
    group.add_argument(
        "--k8s-manifest", metavar="FILE", help="write the Job for `kubectl apply -f FILE` (- prints it), and stop"
    )
    group.add_argument(
        "--k8s-image", default="", metavar="IMAGE", help="the container image; it must contain Rung, torch and bash"
    )
    group.add_argument("--k8s-nodes", type=at_least(1), default=1, metavar="N", help="the number of pods (default: 1)")
    group.add_argument(
        "--k8s-gpus", choices=("nvidia.com/gpu", "amd.com/gpu"), default="nvidia.com/gpu", metavar="RESOURCE",
        help="the cluster's name for its GPUs: nvidia.com/gpu (default) or amd.com/gpu",
    )  # fmt: skip
    group.add_argument(
        "--k8s-claim", default="", metavar="CLAIM",
        help="a PersistentVolumeClaim that all pods mount: the workload's files are read from it, and the results written to it",
    )  # fmt: skip
    group.add_argument(
        "--k8s-folder",
        default="/work",
        metavar="DIR",
        help="where the claim is mounted, and the folder in which the command runs (default: /work)",
    )


def write_manifest(parsed: argparse.Namespace) -> int:
    """Writes the manifest of the command that was typed. Raises UsageError for what cannot run so."""
    from rung.launch.kubernetes import Wanted, manifest
    from rung.runs import to_json, write_whole

    if not parsed.k8s_image:
        raise UsageError("--k8s-manifest needs --k8s-image, an image that has Rung and torch in it.")
    if parsed.slurm:
        raise UsageError("give --slurm or --k8s-manifest, not both.")
    if getattr(parsed, "launcher", None):
        raise UsageError("the pods start the ranks themselves; leave --launcher out.")
    check_ranks(parsed)
    counts = parsed.nproc_per_node
    if len(counts) > 1 and parsed.k8s_nodes > 1:
        raise UsageError("with --k8s-nodes, give one number with --nproc-per-node.")
    if parsed.k8s_nodes > 1 and not counts:
        raise UsageError(
            f"--k8s-nodes {parsed.k8s_nodes} needs --nproc-per-node, which says how many ranks each pod runs."
        )
    if not PurePosixPath(parsed.k8s_folder).is_absolute():
        raise UsageError(f"--k8s-folder {parsed.k8s_folder} must be absolute, as /work is.")
    if parsed.k8s_claim and not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", parsed.k8s_claim):
        raise UsageError(f"--k8s-claim {parsed.k8s_claim} is no name of a PersistentVolumeClaim.")
    name = f"rung-{parsed.command}-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"
    words, run = words_without(parsed, OURS), ""
    begins = (
        parsed.command == "climb" and not parsed.resume and bool(parsed.k8s_claim)
    )  # without, nothing outlives the pod
    if begins:
        run = str(parsed.out or PurePosixPath(".rung") / name)
        words = [*words, *([] if parsed.out else ["--out", run])]
    devices = (getattr(parsed, "devices", None) or "").split(",")
    gpus = 0 if parsed.device == "cpu" else max(counts) if counts else len(devices)
    several = ["--nproc-per-node", ",".join(map(str, counts))] if len(counts) > 1 else []
    wanted = Wanted(
        name, parsed.k8s_image, parsed.k8s_nodes, counts[0] if len(counts) == 1 else 0, gpus, parsed.k8s_gpus,
        parsed.k8s_claim, parsed.k8s_folder,
    )  # fmt: skip
    text = to_json(manifest(wanted, [*words, *several], run, begins and not parsed.out))
    if parsed.k8s_manifest == "-":
        print(text, end="")
        return 0
    write_whole(Path(parsed.k8s_manifest), text, "give another --k8s-manifest")
    say(f"wrote {parsed.k8s_manifest}: start it with `kubectl apply -f {shlex.quote(parsed.k8s_manifest)}`,")
    say(f"follow it with `kubectl logs -f job/{name}`" + (" (pod 0 has the answer)." if wanted.nodes > 1 else "."))
    return 0
