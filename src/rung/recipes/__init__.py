"""The result of a climb as a file: written, asked whether it fits, applied to a user's own model."""
