"""Annotations that Rung itself makes in a recording."""

END_OF_STEP = "rung: end of step"  # around the synchronization with which `rung profile` ends each step
