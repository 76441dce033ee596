"""Exports that are given up, that the disk has no room for, and whose clients are slow."""

import asyncio
import io
import threading
from collections.abc import AsyncGenerator, MutableMapping
from types import SimpleNamespace
from typing import Any

import pytest

from app.api.http.fairness import FairSeats
from app.api.http.parts import EXPORT_RULES, EXPORT_TURN_RULES
from app.api.reports.export import (
    CHUNK_BYTES,
    MEMORY_BYTES,
    DownloadLimits,
    ExportResponse,
    send_file,
    write_csv,
)
from app.base.errors import Unavailable
from app.db.reports.reports import Cell
from tests.app.disks import small_files
from tests.waiting import PATIENCE_S, in_loop

Message = MutableMapping[str, Any]


class Export:
    """One request for a report of which every row is a piece of a file, and what became of it."""

    def __init__(self, *, rows: int) -> None:
        self._rows_there = rows
        self.is_reading = asyncio.Event()
        self.is_closed = False
        self.has_gone = asyncio.Event()
        self.seats = FairSeats(EXPORT_RULES)
        self.sent: list[Message] = []

    async def _rows(self) -> AsyncGenerator[tuple[Cell, ...]]:
        try:
            for _ in range(self._rows_there):
                yield ("x" * CHUNK_BYTES,)
            self.is_reading.set()
            await asyncio.Event().wait()
        finally:
            self.is_closed = True

    async def serve(self) -> None:
        """The response, as the server calls it."""
        parts = SimpleNamespace(
            exports=self.seats, export_turn=FairSeats(EXPORT_TURN_RULES)
        )
        context = SimpleNamespace(parts=parts, caller=SimpleNamespace(root="viewer"))
        response = ExportResponse(self._rows, "csv", name="report")
        await response({"plimsoll.context": context}, self._receive, self._send)

    async def _receive(self) -> Message:
        await self.has_gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    async def free_seats(self) -> bool:
        """Whether the token can take all of its seats."""
        for _ in range(EXPORT_RULES.per_token):
            await self.seats.taken("viewer").__aenter__()
        return True


@in_loop
async def test_a_client_that_disconnects_ends_its_export_and_closes_its_query() -> None:
    export = Export(rows=0)
    serving = asyncio.create_task(export.serve())
    await export.is_reading.wait()
    export.has_gone.set()
    await serving
    assert (export.is_closed, export.sent) == (True, [])
    assert await export.free_seats()


@in_loop
async def test_a_full_disk_is_said_before_the_answer_begins_and_closes_the_query() -> (
    None
):
    export = Export(rows=10_000)
    with (
        small_files(2 * MEMORY_BYTES),
        pytest.raises(Unavailable, match="has no space for the file"),
    ):
        await export.serve()
    assert (export.is_closed, export.sent) == (True, [])
    assert await export.free_seats()


@in_loop
async def test_a_disk_that_is_busy_holds_up_no_other_request() -> None:
    other_request = threading.Event()
    was_served: list[bool] = []

    class BusyDisk(io.BytesIO):
        def write(self, data: Any, /) -> int:
            was_served.append(other_request.wait(PATIENCE_S))
            return super().write(data)

    async def rows() -> AsyncGenerator[tuple[Cell, ...]]:
        yield ("column",)

    asyncio.get_running_loop().call_soon(other_request.set)
    await write_csv(rows(), BusyDisk())
    assert was_served == [True]


@in_loop
async def test_a_client_that_always_takes_a_little_is_ended_at_the_deadline_of_the_whole_file() -> (
    None
):
    pieces = 200
    taken: list[Message] = []

    async def trickle(message: Message) -> None:
        await asyncio.sleep(0.01)
        taken.append(message)

    limits = DownloadLimits(grace_s=0.1, min_bytes_per_s=1e12)
    size = pieces * CHUNK_BYTES
    await send_file(io.BytesIO(bytes(size)), trickle, size_bytes=size, limits=limits)
    # The end of the body is never sent: it would tell the client that the file is complete.
    assert all(message["more_body"] for message in taken)
