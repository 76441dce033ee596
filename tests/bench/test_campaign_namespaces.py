"""A host of the campaign's own vanishes in silence, comes back, and leaves nothing behind."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bench.campaign.deployment import namespaces
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.skipif(
    not namespaces.may_make(), reason="this user may make no network namespace"
)
CONNECT = (
    "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1.0)"
)


def _told(*command: str) -> str:
    """The last line of what a program said when it failed; empty: it did not fail."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    return done.stderr.strip().rpartition("\n")[2]


def test_a_host_and_the_way_to_the_database_are_lost_in_silence_and_nothing_is_left() -> (
    None
):
    with pytest.raises(ZeroDivisionError), namespaces.other_host() as host:
        with (
            socket.create_server((host.here, 0)) as here,
            socket.create_server((host.database, 0)) as database,
        ):

            def connect(to: socket.socket) -> str:
                address, port = to.getsockname()
                words = (sys.executable, "-c", CONNECT, address, str(port))
                return _told(*host.command, *words)

            assert (connect(database), connect(here)) == ("", "")
            host.cut_database()
            # Not "no route to host", as when an interface is down.
            lost = "TimeoutError: timed out"
            assert (connect(database), connect(here)) == (lost, "")
            host.heal()
            host.cut()
            assert connect(here) == lost
            host.heal()
            assert (connect(database), connect(here)) == ("", "")
        # The end after a failure is the same.
        raise ZeroDivisionError
    left = {name for _, name in socket.if_nameindex()}
    assert host.name not in left
    assert not Path("/run/netns", host.name).exists()
