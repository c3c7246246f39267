"""Runs of thousands of ranks: each trace is reduced to a small Parquet file, its partial, and the partials are merged."""
