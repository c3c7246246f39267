"""Ranks that meet: what they leave behind when they end."""

import os
import socket
import subprocess
import sys

RANK = """
import atexit, os
import torch.distributed as dist
from rung.hardware.ranks import Ranks

atexit.register(lambda: print("joined at the end:", dist.is_initialized()))
ranks = Ranks(int(os.environ["RANK"]), 2, int(os.environ["RANK"]))
ranks.join(on_gpu=False)
assert ranks.most([float(ranks.rank)]) == [1.0]
print("joined:", dist.is_initialized())
"""


def test_ranks_leave_their_group_before_python_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env={**os.environ, "RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    try:
        said = [rank.communicate(timeout=120)[0].splitlines() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert said == [["joined: True", "joined at the end: False"]] * 2
