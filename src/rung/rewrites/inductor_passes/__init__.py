"""Passes on the graphs of ATen operations, forward and backward, that AOTAutograd hands to Inductor."""
