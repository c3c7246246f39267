"""Perfetto protobuf traces."""
