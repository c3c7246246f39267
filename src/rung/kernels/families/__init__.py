"""One family of kernels a file: the Triton code, its launch, and the operator with its gradient."""
