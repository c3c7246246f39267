"""How far the clock of each rank is ahead of rank 0's: messages there and back, of which the quickest says most (as NTP has it)."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence

import msgspec

from rung.hardware.ranks import Ranks
from rung.trace.clocks import Clocks, Compared, OfRank

EXCHANGES = 40  # the quickest of so many is taken
NAME_BYTES = 64


def quickest(exchanges: Sequence[tuple[int, int, int]]) -> Compared:
    """What an exchange says whose messages took least together. exchanges: own clock before, the other's meanwhile, own clock after.

    The other's clock was read at some moment between the two, so the offset cannot be off by more than half of the time between them.
    """
    before, theirs, after = min(exchanges, key=lambda one: one[2] - one[0])
    middle = before + (after - before) // 2
    return Compared(at_ns=middle, offset_ns=middle - theirs, error_ns=(after - before + 1) // 2)


def compared(now: Callable[[], int] = time.time_ns) -> Compared | None:
    """This rank's clock against rank 0's, one rank after the other; every rank has to ask. None where the ranks have no process group."""
    import torch
    import torch.distributed as dist

    here = Ranks.here
    if here.world == 1 or not (dist.is_available() and dist.is_initialized()):
        return None
    if here.rank == 0:
        for rank in range(1, here.world):
            word = torch.zeros(1, dtype=torch.int64)
            for _ in range(EXCHANGES):
                dist.recv(word, src=rank)
                dist.send(torch.tensor([now()]), dst=rank)
        return Compared(at_ns=now(), offset_ns=0, error_ns=0)
    exchanges = []
    answer = torch.zeros(1, dtype=torch.int64)
    for _ in range(EXCHANGES):
        before = now()
        dist.send(torch.zeros(1, dtype=torch.int64), dst=0)
        dist.recv(answer, src=0)
        exchanges.append((before, int(answer), now()))
    return quickest(exchanges)


def document(seen: Sequence[Compared]) -> bytes | None:
    """What all ranks saw, as the content of `clocks.json`, on rank 0; None on the others. Every rank has to ask, with as many."""
    import torch
    import torch.distributed as dist

    here = Ranks.here
    numbers = torch.tensor([[one.at_ns, one.offset_ns, one.error_ns] for one in seen], dtype=torch.int64)
    name = socket.gethostname().encode()[:NAME_BYTES].ljust(NAME_BYTES, b"\0")
    host = torch.tensor(list(name), dtype=torch.int64)
    everywhere = [torch.empty_like(numbers) for _ in range(here.world)]
    hosts = [torch.empty_like(host) for _ in range(here.world)]
    dist.all_gather(everywhere, numbers)
    dist.all_gather(hosts, host)
    if here.rank:
        return None
    ranks = [
        OfRank(
            rank=rank,
            host=bytes(of_host.tolist()).rstrip(b"\0").decode(errors="replace"),
            seen=[Compared(at_ns=at, offset_ns=offset, error_ns=error) for at, offset, error in of_rank.tolist()],
        )
        for rank, (of_rank, of_host) in enumerate(zip(everywhere, hosts, strict=True))
    ]
    return msgspec.json.encode(Clocks(ranks=ranks))
