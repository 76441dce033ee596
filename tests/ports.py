"""What a test process gives those that it starts, so that tests run side by side, in one session or in several.

    FIRST_PORT = own_ports()        # PORTS ports that no one else's tests use while this process lives
    with alone("what"): ...         # no other test process does this meanwhile
    port = a_free_port()            # one of this process's that nothing listens at
    env = own_environment()         # this process's variables without settings of ours

A range is held by a socket with an abstract name: names are given out once in a network namespace, as ports are, and
are free again when their process has ended, however it ended.
"""

import atexit
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count

PORTS = 50
_FIRST, _END = 23000, 32700
"""Behind those that an agent gives its workers by default, below those that the kernel takes for connections."""
_PATIENCE_S = 300.0


def own_ports() -> int:
    """The first of PORTS ports that are this process's until it ends."""
    for first in range(_FIRST, _END, PORTS):
        if (holder := _hold(f"ports {first}")) is not None:
            atexit.register(holder.close)
            # What a test process that was killed had started may still listen.
            if all(map(_is_free, range(first, first + PORTS))):
                return first
    raise AssertionError(f"all ports from {_FIRST} to {_END} are held by others")


def _is_free(port: int) -> bool:
    with socket.socket() as asked:
        asked.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            asked.bind(("", port))
        except OSError:
            return False
        return True


def a_free_port() -> int:
    """For a program that may take its time to start: the next PORTS - 1 calls give others."""
    first = _range_of_free_ports()
    ports = (first + next(_given) % PORTS for _ in range(PORTS))
    found = next(filter(_is_free, ports), None)
    assert found is not None, f"others listen at all ports from {first} on"
    return found


_given = count()


@cache
def _range_of_free_ports() -> int:
    return own_ports()


def own_environment(*unwanted: str) -> dict[str, str]:
    """This process's environment without settings of ours, and without variables that begin with `unwanted`."""
    # Programs that are not compiled once and for all would take seconds longer at each start.
    without = ("PLIMSOLL_", "PYTHONDONTWRITEBYTECODE", *unwanted)
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(without)
    }


@contextmanager
def alone(what: str) -> Iterator[None]:
    """Wait until no other test process does that, then keep them from it."""
    end_s = time.monotonic() + _PATIENCE_S
    while (holder := _hold(what)) is None:
        assert time.monotonic() < end_s, (
            f"another test process has kept this for itself for {_PATIENCE_S:.0f} s: {what}"
        )
        time.sleep(0.05)
    with holder:
        yield


def _hold(what: str) -> socket.socket | None:
    """The socket that bears the name, as long as it is open; None while somebody else's does."""
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        holder.bind(f"\0plimsoll tests: {what}")
    except OSError:
        holder.close()
        return None
    return holder
