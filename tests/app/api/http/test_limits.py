"""What counts as a sync, as cheap and as expensive, and what becomes of too many."""

import asyncio
from datetime import UTC, datetime
from typing import cast

import pytest
from starlette.types import Message, Receive, Scope, Send

from app.api.application import PREFIX
from app.api.http import limits
from app.api.http.limits import BURST_S, SYNCS_AT_ONCE, WAIT_S, LimitMiddleware
from app.api.http.parts import ApiParts, Context
from app.db.operations.tokens import TokenRow
from tests.app.coroutines import let_others_run, let_time_stand_still
from tests.waiting import in_loop

RATE = 50.0
NO_PARTS = cast(ApiParts, None)
"""Limits need nothing of the control plane."""


class Waiting:
    """An application that answers when it is told to."""

    def __init__(self) -> None:
        self.began = 0
        self.go = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.began += 1
        await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def scope_of(what: str, token: str = "tok-a", root: str = "") -> Scope:
    method, path = what.split(" ", 1)
    caller = TokenRow(
        id=token,
        root=root or token,
        name=token,
        scope="viewer",
        projects=None,
        created_at=datetime(2026, 3, 1, tzinfo=UTC),
        expires_at=None,
    )
    context = Context(parts=NO_PARTS, caller=caller, request_id="r")
    return {
        "type": "http",
        "method": method,
        "path": path,
        "plimsoll.context": context,
        "plimsoll.request_id": "r",
    }


def scope_without_token(path: str, address: str) -> Scope:
    """A request without a token."""
    return {
        "type": "http",
        "method": "GET",
        "path": path,
        "client": (address, 40000),
        "plimsoll.request_id": "r",
    }


async def status(
    app: LimitMiddleware, what: str, token: str = "tok-a", root: str = ""
) -> int:
    return await status_of(app, scope_of(what, token, root))


async def status_of(app: LimitMiddleware, scope: Scope) -> int:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("limits read no body")

    await app(scope, receive, send)
    if sent[0]["status"] == 429:
        assert int(dict(sent[0]["headers"])[b"retry-after"]) >= 1
    return int(sent[0]["status"])


@in_loop
async def test_a_third_sync_of_a_node_at_a_time_is_told_to_come_again() -> None:
    inner = Waiting()
    app = LimitMiddleware(inner, prefix=PREFIX, token_rate=RATE, pause_s=0.0)
    sync = f"POST {PREFIX}/nodes/n1/sync"
    first = [asyncio.create_task(status(app, sync)) for _ in range(SYNCS_AT_ONCE)]
    await let_others_run()
    assert await status(app, sync) == 429
    # Its agent's next token is of the same family.
    assert await status(app, sync, "tok-a2", "tok-a") == 429
    other = asyncio.create_task(status(app, sync, "tok-b"))
    await let_others_run()
    assert inner.began == SYNCS_AT_ONCE + 1
    inner.go.set()
    assert await asyncio.gather(*first, other) == [200] * (SYNCS_AT_ONCE + 1)
    assert await status(app, sync) == 200


@in_loop
async def test_without_a_token_an_address_has_a_budget_for_what_is_made_for_everybody() -> (
    None
):
    let_time_stand_still()
    inner = Waiting()
    inner.go.set()
    app = LimitMiddleware(inner, prefix=PREFIX, token_rate=1.0, pause_s=0.0)

    async def ask(path: str, address: str = "192.0.2.1") -> int:
        return await status_of(app, scope_without_token(path, address))

    assert [await ask("/metrics") for _ in range(int(BURST_S))] == [200] * 4
    waiting = [asyncio.create_task(ask("/openapi.json")) for _ in range(int(WAIT_S))]
    await let_others_run()
    assert await ask("/metrics") == 429
    assert await ask("/metrics", "192.0.2.2") == 200
    # A client that floods must not have the process taken for dead, nor an office's pages without their styles.
    assert [await ask("/livez"), await ask("/static/page.css")] == [200, 200]
    for task in waiting:
        task.cancel()


@in_loop
async def test_a_refusal_comes_after_a_pause_as_long_as_few_wait_for_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a client that is refused asks again at once, a thousand times a second."""
    monkeypatch.setattr(limits, "MAX_PAUSING", 1)

    app = LimitMiddleware(Waiting(), prefix=PREFIX, token_rate=RATE, pause_s=3600.0)
    sync = f"POST {PREFIX}/nodes/n1/sync"
    served = [asyncio.create_task(status(app, sync)) for _ in range(SYNCS_AT_ONCE)]
    await let_others_run()
    refused = asyncio.create_task(status(app, sync))
    await let_others_run()
    assert not refused.done()
    assert await status(app, sync) == 429
    assert not refused.done()
    for task in (*served, refused):
        task.cancel()


@pytest.mark.parametrize(
    ("what", "cost"),
    [
        (f"GET {PREFIX}/services", 1),
        (f"POST {PREFIX}/plans/3/approve", 1),
        (f"GET {PREFIX}/simulations", 1),
        (f"GET {PREFIX}/reports", 1),
        ("GET /live", 1),
        (f"GET {PREFIX}/reports/bill_hour", 10),
        (f"GET {PREFIX}/reports/bill_hour/export", 10),
        (f"GET {PREFIX}/plans/3/explain", 10),
        (f"GET {PREFIX}/plans/3.0/explain", 10),
        (f"POST {PREFIX}/plans/preview", 10),
        (f"POST {PREFIX}/plans/compare", 10),
        (f"POST {PREFIX}/simulations", 10),
        (f"GET {PREFIX}/simulations/7/report.json", 10),
        ("GET /fleet", 10),
        ("HEAD /fleet", 10),
        ("GET /services/a\n", 10),
        ("POST /new-service/yaml", 10),
    ],
)
@in_loop
async def test_a_token_has_a_budget_and_what_takes_long_costs_more(
    what: str, cost: int
) -> None:
    # On a busy machine, what is earned meanwhile would be served too.
    let_time_stand_still()
    inner = Waiting()
    inner.go.set()
    app = LimitMiddleware(inner, prefix=PREFIX, token_rate=RATE)
    allowed = int(BURST_S * RATE) // cost
    tasks = [asyncio.create_task(status(app, what)) for _ in range(2 * allowed)]
    await let_others_run()
    # The rest waits until it is earned, and another token does not wait with it.
    assert inner.began == allowed
    assert await status(app, what, "tok-b") == 200
    again = asyncio.create_task(status(app, what, "tok-a2", "tok-a"))
    began = inner.began
    await let_others_run()
    assert inner.began == began
    again.cancel()
    for task in tasks:
        task.cancel()
