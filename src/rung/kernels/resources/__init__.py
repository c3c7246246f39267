"""What a Triton kernel takes of a GPU: registers, spills, local memory, occupancy. Compiled or read, never run."""
