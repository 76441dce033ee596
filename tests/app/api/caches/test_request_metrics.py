"""The API's own metrics: what holds its event loop is seen."""

import asyncio
import time

from prometheus_client import CollectorRegistry

from app.api.caches.request_metrics import LAG_PERIOD_S, ApiMetrics


def test_a_step_that_holds_the_event_loop_is_in_its_lag() -> None:
    registry = CollectorRegistry()

    async def hold(seconds: float) -> None:
        watching = asyncio.create_task(ApiMetrics(registry).watch_loop())
        await asyncio.sleep(0)
        time.sleep(seconds)  # noqa: ASYNC251  what must not be done is what is measured
        await asyncio.sleep(2.0 * LAG_PERIOD_S)
        watching.cancel()

    asyncio.run(hold(0.2))
    lag_s = registry.get_sample_value("plimsoll_event_loop_lag_seconds_sum")
    assert lag_s is not None and lag_s >= 0.2 - LAG_PERIOD_S - 0.01
