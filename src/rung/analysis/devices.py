"""What the GPUs of a trace are called."""

from __future__ import annotations

import re

from rung.hardware.peaks import peaks_of_properties
from rung.trace.table import Trace


def gpu_names(trace: Trace) -> list[str]:
    """The different GPUs that the trace's files describe, as the driver names them; where that is nothing or generic, as
    ROCm's "AMD Radeon Graphics" is, with the row of the peaks that fits their architecture, units and memory best.
    """
    devices = trace.devices or [device for file in trace.meta.get("files", []) for device in file.get("devices", [])]
    names: dict[str, None] = {}
    for device in devices:
        name = str(device.get("name") or "")
        peaks = None if re.search(r"\d", name) else peaks_of_properties(device)
        said = f"{name or 'a GPU without a name'} (taken for {peaks.name})" if peaks else name
        if said:
            names.setdefault(said)
    return list(names)
