"""A launcher for tests of many ranks: `python start_many.py WORLD` is all of them in one process, which answers each call with the rank."""

import json
import os
import resource
import selectors
import socket
import sys

world = int(sys.argv[1])
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
host, port, token = os.environ["RUNG_TEAM"].split(" ")


def connected(rank: int, serves: bool) -> socket.socket:
    connection = socket.create_connection((host, int(port)))
    hello = {"token": token, "rank": rank, "world": world, "host": "h", "serves": serves, "address": host, "port": 1}
    connection.sendall(json.dumps(hello).encode() + b"\n")
    return connection


waiting = selectors.DefaultSelector()
for rank in range(world):
    for serves in (True, False):
        waiting.register(connected(rank, serves), selectors.EVENT_READ, (rank, serves))
while waiting.get_map():
    for key, _ in waiting.select():
        connection, (rank, serves) = key.fileobj, key.data
        assert isinstance(connection, socket.socket)
        said = connection.recv(1 << 16)
        if b"method" in said:
            connection.sendall(json.dumps({"value": rank}).encode() + b"\n")
        elif b"end" in said:
            connection.sendall(json.dumps({"status": None, "output": ""}).encode() + b"\n")
        elif not said:
            waiting.unregister(connection)
            connection.close()
