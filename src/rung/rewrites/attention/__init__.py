"""Hand-written attention, found in its graph and given to the kernels that are made for it."""
