"""One token that takes all it can get: agents and other people's tokens are answered as if it were not there.

Fifty connections at once: row `greedy` of `bench.campaign`, of which a slice runs in
`tests/bench/test_campaign_floods.py`.
"""

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import psycopg
import pytest
from fastapi import FastAPI

from app.api.http.parts import EXPORT_RULES
from app.db.base.listen import conninfo
from tests.app.disks import small_files
from tests.browser.dashboards import running_dashboard
from tests.integration.api_harness import V1, Api, Prepared, service
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

REPORT_BYTES = 8_000_000
"""More than the buffers of both sides of a connection hold together."""
DOWNLOAD = f"{V1}/reports/plan_history/export"


@pytest.fixture(scope="module")
def api(small_fleet: Prepared) -> Iterator[Api]:
    """Listening on a socket, with one plan whose reason makes a long report."""
    with running_dashboard(small_fleet) as running:
        running.put("services/chat", service())
        assert running.sync().status_code == 200
        running.tick()
        with psycopg.connect(conninfo(running.url)) as connection:
            connection.execute(
                "UPDATE plan SET reason = repeat('x', %s) WHERE id = 1", (REPORT_BYTES,)
            )
        for name in ("greedy", *(f"reader-{number}" for number in range(5))):
            running.add_token(name, "viewer")
        yield running


class UnreadDownload:
    """A client that asks for a file, reads the first line of the answer, and then nothing."""

    def __init__(self, api: Api, token: str) -> None:
        address = urlsplit(str(api.client.base_url))
        self._socket = socket.socket()
        # Before it connects: the window that it offers follows from it.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect((address.hostname, address.port))
        self._socket.sendall(
            f"GET {DOWNLOAD} HTTP/1.1\r\nHost: plimsoll\r\n"
            f"Authorization: Bearer {api.secrets[token]}\r\n\r\n".encode()
        )

    def status(self) -> int:
        return int(self._socket.recv(len("HTTP/1.1 200"))[-3:])

    def __enter__(self) -> "UnreadDownload":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def test_ten_downloads_that_nobody_reads_hold_no_connection_to_the_database(
    api: Api,
) -> None:
    with ExitStack() as stack:
        downloads = [
            stack.enter_context(UnreadDownload(api, f"reader-{number % 5}"))
            for number in range(10)
        ]
        answered = Counter(download.status() for download in downloads)
        assert set(answered) <= {200, 429} and answered[200] >= 2
        held = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%'"
        with psycopg.connect(conninfo(api.url)) as connection:
            assert connection.execute(held).fetchone() == (0,)
        assert api.sync(sequence=2).status_code == 200
        assert api.call("GET", "services", token="viewer").status_code == 200


def test_a_token_has_a_few_downloads_at_a_time_and_is_told_the_limit(api: Api) -> None:
    with ExitStack() as stack:
        for _ in range(EXPORT_RULES.per_token):
            download = stack.enter_context(UnreadDownload(api, "greedy"))
            assert download.status() == 200
        refused = api.call("GET", DOWNLOAD, token="greedy")
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "30")
        assert f"{EXPORT_RULES.per_token} at a time" in refused.json()["detail"]
        with UnreadDownload(api, "viewer") as other:
            assert other.status() == 200


def test_an_export_for_which_the_disk_has_no_room_is_answered_503_and_leaves_nothing(
    api: Api,
) -> None:
    before = _temporary_files()
    # More than once, since a seat or a file that stays would be missed only later.
    for _ in range(EXPORT_RULES.per_token + 1):
        with small_files(REPORT_BYTES // 2):
            refused = api.call("GET", DOWNLOAD, token="viewer")
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert "no space for the file" in refused.json()["detail"]
        assert _temporary_files() <= before
    assert len(api.call("GET", DOWNLOAD, token="viewer").content) > REPORT_BYTES


def _temporary_files() -> set[str]:
    """Files without a name that this process has open, which hold room on the disk until they are closed."""
    opened = [
        str(path.readlink())
        for path in Path("/proc/self/fd").iterdir()
        if path.is_symlink()
    ]
    return {name for name in opened if name.endswith("(deleted)")}


def test_thorough_explanations_and_fits_have_turns_and_who_is_refused_is_told_when_to_come_again(
    small_fleet: Prepared,
) -> None:
    path = "plans/1/explain?thorough=true"
    with small_fleet.running_api() as api, ThreadPoolExecutor(2) as threads:
        api.put("services/chat", service())
        assert api.sync().status_code == 200
        api.tick()
        parts, portal = cast(FastAPI, api.client.app).state.parts, api.client.portal
        assert portal is not None
        with portal.wrap_async_context_manager(parts.solver_turn.taken("another")):
            both = [threads.submit(api.call, "GET", path, token="viewer") for _ in "12"]
            refused = next(as_completed(both)).result()
            waiting = next(each for each in both if not each.done())
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "10")
        assert "thorough explanations: 1 at a time" in refused.json()["detail"]
        assert waiting.result().status_code == 200
        with portal.wrap_async_context_manager(parts.fit_turn.taken("another")):
            refused = api.call("POST", "networks/resnet50/fit")
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "10")
        assert refused.json()["detail"].startswith("fits: 1 at a time")


def test_agents_do_not_wait_for_a_connection_behind_people(api: Api) -> None:
    answered: list[int] = []

    def read(token: str) -> None:
        answered.append(api.call("GET", "plans", token=token).status_code)

    readers = [
        threading.Thread(target=read, args=(token,))
        for token in ("viewer", "operator", "admin", "greedy") * 5
    ]
    waiting = "SELECT count(*) >= 5 FROM pg_locks WHERE NOT granted"
    with psycopg.connect(conninfo(api.url)) as connection:
        connection.execute("LOCK TABLE plan IN ACCESS EXCLUSIVE MODE")
        for reader in readers:
            reader.start()
        while connection.execute(waiting).fetchone() != (True,):
            assert not answered
        assert api.sync(sequence=50).status_code == 200
        # Twenty requests for the pool's ten connections: none had left when the agent was answered.
        assert answered == []
    for reader in readers:
        reader.join()
    assert len(answered) == len(readers)
