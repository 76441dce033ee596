"""Tables of metrics and the pages that are made from them, for figures that are read again with every scrape.

A page holds what is there now: what is gone has no series, and nothing must be forgotten by hand.

    FAMILIES = (Family(name="plimsoll_node_up", kind="gauge", text="1 while …", labels=("node",)),)
    page = Page(FAMILIES)
    page.add("plimsoll_node_up", 1.0, "gpu-01")
    page.text()
"""

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from agents.base.addresses import joined

log = logging.getLogger(__name__)

Read = Callable[[], bytes]
Kind: TypeAlias = Literal["gauge", "counter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric: its name with its unit, `_total` where it is a counter, and the names of its labels."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    kind: Kind = "gauge"


class ScrapePage(Collector):
    """One answer to a scrape."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._metrics = {family.name: _metric(family) for family in families}

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """One series of a family; without a value there is none."""
        if value is not None:
            self._metrics[name].add_metric(labels, value)

    def collect(self) -> Iterator[Metric]:
        """What there is; families without a series are left out."""
        return (metric for metric in self._metrics.values() if metric.samples)

    def text(self) -> bytes:
        """The page in Prometheus' text format."""
        # A registry for this page alone; `auto_describe` would collect everything once more when it is registered.
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)


def _metric(family: Family) -> GaugeMetricFamily | CounterMetricFamily:
    make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    return make(family.name, family.text, labels=family.labels)


@contextlib.asynccontextmanager
async def metrics_port(host: str, port: int, read: Read) -> AsyncIterator[None]:
    """Answers `GET /metrics`; port 0: not at all. Raises OSError, with the option's name, where the port is taken.

    It has no token: it is off unless asked for, and on this machine alone unless another address is given.
    """
    if not port:
        yield
        return
    # Late: a caller that only makes pages has a server of its own.
    from aiohttp import web

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=read(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", answer)
    # No access log: a line for every scrape would bury the others.
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise OSError(
                f"cannot give metrics at {host}, port {port}: {reason}; give another --metrics-port"
            ) from error
        log.info("metrics are at http://%s/metrics", joined(host, port))
        yield
    finally:
        await runner.cleanup()


def times(value: float | None, factor: float) -> float | None:
    """The value in another unit; None where it is not known, and then shown by no series."""
    return None if value is None else value * factor
