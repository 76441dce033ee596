"""Pages and streams take their turn among people's connections, as reads of the API do."""

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import pytest
from fastapi import FastAPI

from app.api.http.fairness import FairSeats, SeatRules
from tests.integration.api_harness import Api, Prepared, service

pytestmark = pytest.mark.integration

ONE_SEAT = SeatRules(
    what="database transactions", seats=1, per_token=1, waiting=1, wait_s=0.2
)


@pytest.fixture(scope="module")
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        running.put("services/chat", service())
        running.tick()
        yield running


@pytest.mark.parametrize(
    "path",
    ["/fleet", "/services", "/services/chat", "/gpus/n1/gpu-0", "/nodes", "/simulate"],
)
def test_a_page_waits_for_a_seat_and_is_refused_where_none_gets_free(
    api: Api, path: str
) -> None:
    state, portal = cast(FastAPI, api.client.app).state, api.client.portal
    assert portal is not None
    seats = FairSeats(ONE_SEAT)
    state.parts = replace(state.parts, readers=seats)
    with portal.wrap_async_context_manager(seats.taken("another")):
        assert api.call("GET", path, token="viewer").status_code == 429
    # One is enough for all that a page loads, and it is free again afterwards.
    assert api.call("GET", path, token="viewer").status_code == 200
    assert api.call("GET", "services", token="viewer").status_code == 200


def test_whether_a_stream_has_anything_to_follow_is_asked_with_a_seat(
    api: Api,
) -> None:
    state, portal = cast(FastAPI, api.client.app).state, api.client.portal
    assert portal is not None
    seats = FairSeats(ONE_SEAT)
    state.parts = replace(state.parts, readers=seats)
    for topic in ("service/made-up", "gpu/made-up"):
        with portal.wrap_async_context_manager(seats.taken("another")):
            refused = api.call("GET", f"/live?topic={topic}", token="viewer")
        assert refused.status_code == 429
        missing = api.call("GET", f"/live?topic={topic}", token="viewer")
        assert missing.status_code == 404
