"""Workloads and functions under the clock: fresh processes, alternating blocks, one measurement or sides against each other."""
