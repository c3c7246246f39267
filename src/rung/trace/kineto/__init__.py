"""torch.profiler's Chrome traces."""
