"""The program of a replica: answers every request at once, and notes where it runs twice.

    python -I worker.py PORT DIRECTORY

It starts in the replica's own directory, whose name is the replica's. While it lives it holds a lock by that name in
DIRECTORY, the node's; where another process holds it, the replica is doubled, and the node's journal says so. Only
what a bare socket needs is imported, because thousands of starts must cost little.
"""

import fcntl
import json
import os
import socket
import sys
import threading
import time

_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
)
_LIMIT_S = 60.0
"""For the next request of a connection."""


def main(port: int, node: str) -> None:
    """Serve until killed."""
    replica = os.path.basename(os.getcwd())  # noqa: PTH109, PTH119  pathlib takes longer to import than all the rest
    lock = os.open(os.path.join(node, f"{replica}.lock"), os.O_CREAT | os.O_RDWR, 0o600)  # noqa: PTH118
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _note(node, kind="doubled", at_s=time.monotonic(), detail=replica)
    with socket.create_server(("127.0.0.1", port), backlog=128) as listening:
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=_serve, args=(connection,), daemon=True).start()


def _note(node: str, **entry: object) -> None:
    """A line as `bench.campaign.deployment.journal` writes it."""
    journal = os.open(os.path.join(node, "journal"), os.O_WRONLY | os.O_APPEND)  # noqa: PTH118
    os.write(journal, json.dumps(entry).encode() + b"\n")
    os.close(journal)


def _serve(connection: socket.socket) -> None:
    """Answer every request of one connection, whatever it asks."""
    connection.settimeout(_LIMIT_S)
    with connection, connection.makefile("rb") as requests:
        try:
            while requests.readline():
                _skip(requests.readline, requests.read)
                connection.sendall(_ANSWER)
        except OSError:
            return


def _skip(readline, read) -> None:  # type: ignore[no-untyped-def]  # typing takes long to import
    """The rest of a request's head, and its body."""
    length = 0
    while (line := readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    read(length)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
