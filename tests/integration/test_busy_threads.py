"""Threads that callers keep busy: probes are answered all the same, and one token takes few of them."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from threading import Event
from typing import cast

import pytest
from fastapi import FastAPI

from app.api.http.fairness import FairSeats
from app.api.http.parts import YAML_RULES
from tests.integration.api_harness import Api, Prepared

pytestmark = pytest.mark.integration

THREADS = 64
"""Python's own pool has 32 at most."""


@pytest.fixture(scope="module")
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        yield running


def test_a_probe_is_answered_while_callers_keep_all_threads_busy(api: Api) -> None:
    assert api.client.portal is not None
    over = Event()

    async def fill() -> list["asyncio.Future[bool]"]:
        return [
            asyncio.ensure_future(asyncio.to_thread(over.wait, 60.0))
            for _ in range(THREADS)
        ]

    async def empty(busy: list["asyncio.Future[bool]"]) -> None:
        over.set()
        await asyncio.gather(*busy)

    busy = api.client.portal.call(fill)
    try:
        answer = api.client.get("/readyz?verbose")
        assert (answer.status_code, answer.json()["checks"]["schema"]) == (200, "ok")
    finally:
        api.client.portal.call(empty, busy)


def test_texts_of_yaml_wait_for_their_turn(api: Api) -> None:
    assert api.client.portal is not None
    state = cast(FastAPI, api.client.app).state
    seats = FairSeats(replace(YAML_RULES, wait_s=0.1))
    state.parts = replace(state.parts, yaml_turn=seats)
    turn = api.client.portal.wrap_async_context_manager
    headers = {"Authorization": f"Bearer {api.secrets['viewer']}"}
    with turn(seats.taken("a")), turn(seats.taken("b")):
        refused = api.client.post("/new-service/yaml", content="a: 1", headers=headers)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
    taken = api.client.post("/new-service/yaml", content="a: 1", headers=headers)
    assert taken.json()["documents"][0]["value"] == {"a": 1}
