"""The API's own metrics: what holds its event loop is seen."""

import asyncio
import time

from prometheus_client import CollectorRegistry

from app.api.caches.request_metrics import LAG_PERIOD_S, ApiMetrics
from tests.waiting import eventually, run


def test_a_step_that_holds_the_event_loop_is_in_its_lag() -> None:
    registry = CollectorRegistry()

    async def hold(seconds: float) -> None:
        watching = asyncio.create_task(ApiMetrics(registry).watch_loop())
        await asyncio.sleep(0)
        time.sleep(seconds)  # noqa: ASYNC251  what must not be done is what is measured
        await eventually(lambda: lag_s() >= seconds - LAG_PERIOD_S - 0.01)
        watching.cancel()

    def lag_s() -> float:
        name = "plimsoll_event_loop_lag_seconds_sum"
        return registry.get_sample_value(name) or 0.0

    run(hold(0.2))
