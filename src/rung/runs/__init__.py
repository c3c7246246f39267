"""What is kept: run directories, and the history of runs (`history.py`); and temporary folders, which are not."""

from rung.runs.store import Run, data_directory, runs_below, to_json, write_whole
from rung.runs.temporary import keep, temporary_folder

__all__ = ["Run", "data_directory", "keep", "runs_below", "temporary_folder", "to_json", "write_whole"]
