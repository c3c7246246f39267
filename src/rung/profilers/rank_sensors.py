"""Power, memory and clocks of each rank's GPU: sampled by the rank, on whichever host it is, and handed to the coordinator."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rung.hardware.device import Device
from rung.hardware.ranks import Ranks
from rung.hardware.sensors import identity, sensor_for
from rung.launch.gather import Writing
from rung.profilers.samples import step_energy, summary
from rung.profilers.sampling import Sampling
from rung.profilers.steps import Sensing
from rung.records.profile import SampledGpu, SampledRank, SamplingCost
from rung.records.record import record_of

FOLDER = "rank{rank}"  # below the folder of the samples
ANSWER = "answer.json"  # in it
NAMED = 4  # ranks in a sentence


class Steps:
    """The steps whose energy is told: how many, and their begin and end on CLOCK_MONOTONIC."""

    count = 0
    span = (0, 0)


@contextlib.contextmanager
def sensed(sensing: Sensing, device: Device, files: Writing) -> Iterator[Steps]:
    """Samples this rank's GPU meanwhile; afterwards hands over the samples and what they add up to."""
    ranks, steps, gpu = Ranks.here, Steps(), identity(device)
    folder = files.place(str(Path(sensing.folder) / FOLDER.format(rank=ranks.rank) / ANSWER)).parent
    folder.mkdir(parents=True, exist_ok=True)
    said = SampledRank(rank=ranks.rank, host=socket.gethostname())
    if sensor := sensor_for(gpu):
        # Counted as torch does, which is how the trace of this rank names its GPU.
        with Sampling(folder, sensing.rate, [sensor], first=device.index) as sampling:
            yield steps
        table = sampling.table()
        said.gpu = record_of(list[SampledGpu], summary(table).to_dicts())[0]
        said.step = step_energy(table, steps.span, steps.count, sensor.bus)
        said.overhead = record_of(SamplingCost, sampling.overhead._asdict())
        for path in sampling.paths:
            files.told(path)
    else:
        yield steps
    (folder / ANSWER).write_bytes(msgspec.json.encode(said))
    files.told(folder / ANSWER)


def gathered(folder: Path) -> list[SampledRank]:
    """What the ranks handed over, in their order. folder: of the samples."""
    found = []
    for path in folder.glob(f"rank*/{ANSWER}"):
        with contextlib.suppress(
            msgspec.DecodeError
        ):  # cut off: that it is, is told with the other files (`launch/gather.py`)
            found.append(msgspec.json.decode(path.read_bytes(), type=SampledRank))
    return sorted(found, key=lambda one: one.rank)


def silent(ranks: list[SampledRank]) -> list[str]:
    """A sentence where sensors of some ranks did not answer."""
    lacking = [f"{one.rank} ({one.host})" for one in ranks if one.gpu is None]
    if not lacking:
        return []
    more = f" and {len(lacking) - NAMED} more" if len(lacking) > NAMED else ""
    return [f"no GPU's sensors can be read by rank{'s' * (len(lacking) > 1)} {', '.join(lacking[:NAMED])}{more}: `rung doctor` on that "
            "host shows what is there."]  # fmt: skip
