"""The documents that commands print with --json, one struct each: what a field means, what it may hold, what may be missing."""
