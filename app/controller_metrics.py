"""The port at which a controller that runs alone shows its metrics; under `serve` the API shows them."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from prometheus_client import CollectorRegistry, generate_latest

from agents.metrics_port import metrics_port
from app.errors import PlimsollError
from app.settings import Settings


@asynccontextmanager
async def controller_metrics(settings: Settings, registry: CollectorRegistry) -> AsyncIterator[None]:
    """Answers `GET /metrics` where the settings say, if they do. Raises PlimsollError where the port is taken."""
    host, port = settings.controller_metrics_host, settings.controller_metrics_port
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(metrics_port(host, port, partial(generate_latest, registry)))
        except OSError as error:
            raise PlimsollError(
                f"the controller's metrics cannot be at {host}, port {port}: {error.strerror or error}; "
                "choose another port by PLIMSOLL_CONTROLLER_METRICS_PORT (0: none)"
            ) from error
        yield
