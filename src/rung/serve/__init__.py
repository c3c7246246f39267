"""`rung serve`: the history and the pages of its runs, for a browser (docs/internals/history.md)."""
