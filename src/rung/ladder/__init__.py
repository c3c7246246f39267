"""The climb, what its workers serve, and `rung profile`."""
