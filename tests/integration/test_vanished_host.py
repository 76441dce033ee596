"""A machine that loses its power says no goodbye: PostgreSQL has to give up its sessions by itself."""

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from app.postgres import server as postgres
from bench.campaign.deployment import namespaces
from tests.waiting import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        not namespaces.may_make(), reason="this user may make no network namespace"
    ),
]
SESSIONS = "SELECT application_name FROM pg_stat_activity WHERE client_addr = %s::inet"
PROGRAM = """
import asyncio, sys
from app.db.base.engine import make_engine
from app.db.base.listen import Listener

async def main(url):
    async with make_engine(url, application="leader").connect():
        async for _ in Listener(url, "plimsoll_wake").listen():
            print("connected", flush=True)

asyncio.run(main(sys.argv[1]))
"""


def test_every_session_of_a_vanished_host_ends_by_itself(
    tmp_path: Path,
) -> None:
    with namespaces.other_host() as host:
        programs = host.postgres_programs(tmp_path / "programs", None)
        server = postgres.start(tmp_path / "data", bin_dir=programs)
        command = [*host.command, sys.executable, "-c", PROGRAM]
        process = subprocess.Popen(
            [*command, host.to_database(server.url)], stdout=subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"connected\n"
            with psycopg.connect(server.conninfo, autocommit=True) as connection:

                def sessions() -> list[tuple[str]]:
                    return connection.execute(SESSIONS, (host.there,)).fetchall()

                assert len(sessions()) == 2
                host.cut()
                # Left to itself the system waits for two hours.
                until(lambda: not sessions(), "a session goes on")
        finally:
            process.kill()
            process.communicate()
            postgres.stop(tmp_path / "data")
