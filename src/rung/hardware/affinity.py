"""Each rank of a host on cores of its own, near its GPU: what Linux would leave to chance."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import zlib
from collections.abc import Sequence
from pathlib import Path

from rung.hardware.device import Device
from rung.hardware.sensors import identity

SYS = Path("/sys")
ANYWHERE = -1  # the NUMA node of a CPU rank, and of a GPU of which nobody says it

_bound: frozenset[int] | None = None  # the cores that `bind` gave this process


def bind(device: Device) -> None:
    """Has all threads of this rank run on its share of the cores that it may use: those of its GPU's NUMA node, divided evenly among the
    ranks of the host that are near the same ones. Every rank of torch's process group has to call it. Where a rank would get no core of
    its own, nothing is changed."""
    global _bound
    import torch.distributed as dist

    allowed = os.sched_getaffinity(0)
    node = _node(device)
    mine = [zlib.crc32(socket.gethostname().encode()), zlib.crc32(repr(sorted(allowed)).encode()), node]
    everyone: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, mine)
    beside = [rank for rank, other in enumerate(everyone) if other[:2] == mine[:2]]
    own = own_cores(allowed, [everyone[rank][2] for rank in beside], beside.index(dist.get_rank()))
    if not own or own == allowed:
        return
    for task in Path("/proc/self/task").iterdir():  # a new thread has what the one that starts it has
        with contextlib.suppress(OSError):  # it has ended
            os.sched_setaffinity(int(task.name), own)
    _bound = frozenset(own)


def own_cores(allowed: set[int], nodes: Sequence[int], place: int) -> set[int]:
    """The cores of one rank, by its place among the ranks of a host that may use the same cores. nodes: that of each rank's GPU. Empty
    where there are fewer cores than ranks."""
    near = {node: frozenset(allowed & cores_of(node) or allowed) for node in nodes}
    groups = set(near.values())
    if sum(map(len, groups)) > len(frozenset().union(*groups)):
        # The job has no core on some GPU's node, so that rank takes cores that are near others: all ranks share all cores.
        near = dict.fromkeys(near, frozenset(allowed))
    alike = sorted((node, rank) for rank, node in enumerate(nodes) if near[node] == near[nodes[place]])
    return share(set(near[nodes[place]]), len(alike), alike.index((nodes[place], place)))


def bound() -> bool:
    """Whether this process runs on the cores that `bind` gave it."""
    return _bound is not None and os.sched_getaffinity(0) == _bound


def share(cores: set[int], among: int, place: int) -> set[int]:
    """One of `among` equal parts, by its place; empty where there are fewer cores than parts. Threads of one core stay together, and so
    do cores of one node."""
    if len(cores) < among:
        return set()
    ordered = sorted(cores, key=_neighbourhood)
    return set(ordered[place * len(ordered) // among : (place + 1) * len(ordered) // among])


def cores_of(node: int) -> set[int]:
    """The cores of a NUMA node; none where it is not known."""
    return set(_listed(SYS / f"devices/system/node/node{node}/cpulist"))


def _node(device: Device) -> int:
    bus = (identity(device) or {}).get("bus")
    if not bus:
        return ANYWHERE
    try:
        return int((SYS / f"bus/pci/devices/{bus}/numa_node").read_text())
    except (OSError, ValueError):
        return ANYWHERE


def _neighbourhood(core: int) -> tuple[int, int, int]:
    """Node, first thread of the same core, thread."""
    folder = SYS / f"devices/system/cpu/cpu{core}"
    node = next((int(path.name.removeprefix("node")) for path in folder.glob("node[0-9]*")), 0)
    siblings: Sequence[int] = _listed(folder / "topology/thread_siblings_list")
    return node, min(siblings, default=core), core


def _listed(path: Path) -> list[int]:
    """The numbers of a list of the kernel's, as `0-3,8`."""
    try:
        text = path.read_text()
    except OSError:
        return []
    spans = re.findall(r"(\d+)(?:-(\d+))?", text)
    return [number for first, last in spans for number in range(int(first), int(last or first) + 1)]
