"""What a device needs of the program that carries its requests: `router` in this process, or `haproxy`.

Whatever may have to ask another process is waited for, so that nothing else of the agent waits with it.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from agents.base.device import ServerTraits, ServiceRoute
from agents.base.protocol import ServiceReading
from agents.router.counts import Counts

NO_TRAITS: Mapping[str, ServerTraits] = MappingProxyType({})
"""All servers are as the agent's own workers."""
LONGEST_START_S = 3600.0
"""So long requests wait for a first replica that starts: templates' `start_limit_s` is at most this."""


class RequestRouter(Protocol):
    """The router of one node."""

    on_wait: Callable[[], None]
    """Called when the first request of a service waits that no replica is there for."""

    @property
    def routes(self) -> tuple[ServiceRoute, ...]:
        """The table in force."""
        ...

    async def switch_routes(
        self,
        routes: tuple[ServiceRoute, ...],
        addresses: Mapping[str, str],
        traits: Mapping[str, ServerTraits] = NO_TRAITS,
    ) -> None:
        """Put a new table in force. `traits`: of servers that are not as the agent's own workers.

        Raises KeyError for a replica without an address, or DeviceError."""
        ...

    async def look(self) -> None:
        """See what is in flight now. Raises DeviceError."""
        ...

    def in_flight(self, replica_id: str) -> int:
        """Requests that a replica has and has not answered, when it was looked at last."""
        ...

    async def read_services(self) -> tuple[ServiceReading, ...]:
        """Every service's counts since the last reading, by service."""
        ...

    def total(self, service: str) -> Counts:
        """Everything counted since the service came. Raises NotSupported where latencies are not told."""
        ...

    @property
    def stranded(self) -> tuple[str, ...]:
        """Services of which requests wait here and that the table no longer has: they start on other nodes."""
        ...

    def pass_on(self, service: str, urls: Sequence[str]) -> None:
        """Send what waits for one of them to these nodes' routers; without any, it is refused."""
        ...

    async def close(self, *, keep: bool) -> None:
        """Take no more requests; `keep`: replicas go on, and so does a router that can."""
        ...
