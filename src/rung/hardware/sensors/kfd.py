"""AMD's GPUs as the kernel driver numbers them (KFD), which is the order in which ROCm and torch do: other tools sort by PCI address."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rung.hardware.neighbours import SHOWN

SYS = Path("/sys")
# ROCm's runtime shows what the first names; HIP shows a part of that, by the first of the two that has a value.
_SHOWN = (("ROCR_VISIBLE_DEVICES",), SHOWN["amd"])


@dataclass(frozen=True)
class Node:
    """bus: the PCI address, "0000:75:00.0"; number: the driver's own of this GPU, by which it keeps what each process uses there."""

    bus: str
    number: str


def nodes(sys: Path = SYS) -> list[Node]:
    """The GPUs that this process may use, in the driver's order. Partitions of a GPU are several with one address."""
    return list(_nodes(sys / "class/kfd/kfd/topology/nodes"))


def _nodes(topology: Path) -> Iterator[Node]:
    folders = [folder for folder in topology.glob("*") if folder.name.isdecimal()]
    for folder in sorted(folders, key=lambda folder: int(folder.name)):
        try:  # one that a container may not use cannot be read
            text, number = (folder / "properties").read_text(), (folder / "gpu_id").read_text().strip()
        except OSError:
            continue
        facts = {name: int(value) for name, value in re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE)}
        if facts.get("simd_count") and "location_id" in facts:  # else it is a CPU
            # Bits 8 to 15 are the bus, 3 to 7 the device. The function's bits number the partitions.
            place = facts["location_id"]
            yield Node(f"{facts.get('domain', 0):04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.0", number)


def bus_of(index: int, count: int, variables: Mapping[str, str], sys: Path = SYS) -> str | None:
    """The PCI address of a GPU by torch's number. None where that is not certain.

    count: how many GPUs torch sees; variables: of the environment that it was started in.
    """
    shown = nodes(sys)
    for names in _SHOWN:
        value = next((variables[name] for name in names if variables.get(name)), None)
        if value is None:
            continue
        numbers = [text.strip() for text in value.split(",")]
        if not all(text.isdecimal() and int(text) < len(shown) for text in numbers):  # a GPU may be named by its UUID
            return None
        shown = [shown[int(text)] for text in numbers]
    return shown[index].bus if len(shown) == count and 0 <= index < count else None
