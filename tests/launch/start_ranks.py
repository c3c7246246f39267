"""A launcher for tests: `python start_ranks.py COUNT WORLD WORDS...` starts the first COUNT of WORLD ranks, which all run the words."""

import os
import subprocess
import sys

count, world, *words = sys.argv[1:]
ranks = [
    subprocess.Popen(
        words,
        env={
            **os.environ,
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": world,
            "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        },
    )
    for rank in range(int(count))
]
sys.exit(max(rank.wait() != 0 for rank in ranks))
