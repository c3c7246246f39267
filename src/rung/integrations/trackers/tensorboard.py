"""A climb as a run of TensorBoard, in a folder below `runs`, where PyTorch's own writer puts them, too."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from rung.errors import UsageError
from rung.integrations.trackers import Tracked

try:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
except ImportError:
    raise UsageError("--log-to tensorboard needs TensorBoard: pip install tensorboard.") from None

FOLDER = Path("runs")


def log(climb: Tracked) -> str:
    """TensorBoard has no files of a run: they lie beside its own."""
    folder = FOLDER / climb.name
    writer = EventFileWriter(str(folder))
    try:
        for name, value in climb.metrics.items():
            writer.add_event(_event(Summary.Value(tag=name, simple_value=value)))
        for series in climb.series:
            for step, value in series.points:
                writer.add_event(_event(Summary.Value(tag=series.name, simple_value=value), step))
        writer.add_event(_event(_text("parameters", ("name", "value"), list(climb.parameters.items()))))
        writer.add_event(_event(_text("attempts", climb.heads, climb.table)))
    finally:
        writer.close()
    for path, name in climb.files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / name)
    return f"{folder}; `tensorboard --logdir {FOLDER}` shows it"


def _event(value: Any, step: int = 0) -> Any:
    return Event(wall_time=time.time(), step=step, summary=Summary(value=[value]))


def _text(name: str, heads: Any, rows: Any) -> Any:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    text = "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)
    about = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode("utf-8")], tensor_shape=shape)
    return Summary.Value(tag=name, metadata=about, tensor=tensor)


def _cell(value: object) -> str:
    shown = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return shown.replace("\\", "\\\\").replace("|", "\\|")
