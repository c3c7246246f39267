"""What is kept: run directories."""

from rung.runs.store import SCHEMA, Run, runs_below, to_json, write_whole

__all__ = ["SCHEMA", "Run", "runs_below", "to_json", "write_whole"]
