"""A process that can take no more connections says so, and not a thousand times."""

import asyncio
import errno

import pytest

from agents.base.addresses import FULL_ERRORS, report_full_process
from tests.waiting import in_loop


@pytest.mark.parametrize("number", FULL_ERRORS)
@in_loop
async def test_each_period_says_once_that_no_connection_can_be_taken(
    caplog: pytest.LogCaptureFixture, number: int
) -> None:
    loop = asyncio.get_running_loop()
    tried = {
        "message": "socket.accept() out of system resource",
        "exception": OSError(number, "the table is full"),
    }
    report_full_process(loop)
    for _ in range(500):
        loop.call_exception_handler(tried)
    assert [(each.name, each.levelname) for each in caplog.records] == [
        ("agents.base.addresses", "ERROR")
    ]
    assert "the table is full; raise the limit of open files" in caplog.text

    # A period that is over says it again.
    report_full_process(loop, period_s=0.0)
    loop.call_exception_handler(tried)
    loop.call_exception_handler(tried)
    assert len(caplog.records) == 3


@pytest.mark.parametrize(
    "error", [OSError(errno.EPIPE, "gone"), ValueError("odd"), None]
)
@in_loop
async def test_every_other_fault_is_reported_as_ever(
    caplog: pytest.LogCaptureFixture, error: Exception | None
) -> None:
    loop = asyncio.get_running_loop()
    report_full_process(loop)
    context = {"message": "something broke"} | ({"exception": error} if error else {})
    for _ in range(2):
        loop.call_exception_handler(context)
    assert [each.name for each in caplog.records] == ["asyncio", "asyncio"]
