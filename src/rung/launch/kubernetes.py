"""A command of Rung's as a Job of Kubernetes: its manifest, as JSON, which is YAML, too.

The Job is indexed: pod 0 runs the command, and the others wait for the ranks that it has them start (`hosts.py`). They find pod 0 by a
headless Service. A pod that is evicted or preempted is started anew, and does not count as a failure; a climb then goes on where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rung.launch.hosts import KEY, script
from rung.launch.rendezvous import REACHED_BY

UID = "metadata.labels['batch.kubernetes.io/controller-uid']"  # which nobody outside of the cluster's API knows


@dataclass(frozen=True)
class Wanted:
    """name: of the Job and its Service; image: has Rung and torch in it; nodes: pods; ranks: of each, 0 for one process; gpus: of each pod,
    and what Kubernetes calls them; claim: of a PersistentVolumeClaim that is mounted at `folder`, where the command runs."""

    name: str
    image: str
    nodes: int = 1
    ranks: int = 0
    gpus: int = 1
    resource: str = "nvidia.com/gpu"
    claim: str = ""
    folder: str = "/work"


def manifest(wanted: Wanted, words: Sequence[str], run: str = "", clear: bool = False) -> dict[str, Any]:
    """A List of the Job and, for several pods, its Service. words: of the command; run, clear: of a climb, as `hosts.script` takes them."""
    command = script(words, wanted.nodes, wanted.ranks, "JOB_COMPLETION_INDEX", run, clear)
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": wanted.name, "labels": {"app.kubernetes.io/name": "rung"}},
        "spec": {
            "completionMode": "Indexed",
            "completions": wanted.nodes,
            "parallelism": wanted.nodes,
            "backoffLimit": 0,
            "podFailurePolicy": {
                "rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
            },
            "template": {"metadata": {"labels": {"app.kubernetes.io/name": "rung"}}, "spec": _pod(wanted, command)},
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": wanted.name},
        "spec": {
            "clusterIP": "None",
            "selector": {"batch.kubernetes.io/job-name": wanted.name},
            "publishNotReadyAddresses": True,  # pods look for each other before they are ready
        },
    }
    return {"apiVersion": "v1", "kind": "List", "items": [*([service] if wanted.nodes > 1 else []), job]}


def _pod(wanted: Wanted, command: str) -> dict[str, Any]:
    gpus = {"limits": {wanted.resource: wanted.gpus}} if wanted.gpus else {}
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]  # ranks of one pod exchange through it
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    if wanted.claim:
        mounts.append({"name": "work", "mountPath": wanted.folder})
        volumes.append({"name": "work", "persistentVolumeClaim": {"claimName": wanted.claim}})
    env: list[dict[str, Any]] = []
    if wanted.nodes > 1:
        env = [
            {"name": REACHED_BY, "value": f"{wanted.name}-0.{wanted.name}"},
            {"name": KEY, "valueFrom": {"fieldRef": {"fieldPath": UID}}},
        ]
    return {
        "restartPolicy": "Never",
        **({"subdomain": wanted.name} if wanted.nodes > 1 else {}),
        "containers": [
            {
                "name": "rung",
                "image": wanted.image,
                # Kubernetes replaces $(NAME) in a command, and makes one of two dollars.
                "command": ["bash", "-c", command.replace("$", "$$")],
                "workingDir": wanted.folder,
                **({"env": env} if env else {}),
                **({"resources": gpus} if gpus else {}),
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }
