"""A workload under a plan: what is timed, profiled and verified, and what a recipe's model runs."""
