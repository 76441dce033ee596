"""Where HAProxy sends the requests of a service that has no ready replica: to this node's own router, which holds them.

HAProxy refuses at once what no server of a backend can take. Each backend has a backup server for that, which is this:
the agent's router at a port of the node's loopback address. It hands them to the first replica that is ready; what
comes from then on HAProxy sends to the replica itself. HAProxy counts all of them, so nothing is counted here.
"""

import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Middleware

from agents.base.device import ServerTraits, ServiceRoute
from agents.router.access import ASKS_FOR_KEYS
from agents.router.haproxy.config import SECRET_HEADER
from agents.router.haproxy.state import Address, BackendServer
from agents.router.router import Router
from agents.serving.http_problems import problem
from agents.serving.request_bodies import IS_RAW

_END_S = 0.1
"""For an agent that ends: what waits here has no replica to wait for any more."""


class WaitingRoom:
    """The router and its port. `open` comes first."""

    def __init__(self, *, queue_limit: int, asks_for_keys: bool) -> None:
        self._asks_for_keys = asks_for_keys
        self._router = Router(queue_limit=queue_limit)
        self._router.on_wait = lambda: self.on_wait()
        self.on_wait: Callable[[], None] = lambda: None
        self._runner: web.AppRunner | None = None
        self.address: Address = ("127.0.0.1", 1)
        self.secret = secrets.token_hex(16)
        """What shows that a request came by HAProxy."""

    async def open(self) -> None:
        """Take requests. Raises OSError."""
        app = self._router.make_app()
        app[ASKS_FOR_KEYS] = self._asks_for_keys
        app[IS_RAW] = True
        app.middlewares.append(_admit(self.secret))
        # A caller who leaves gives his place up.
        runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            auto_decompress=False,
            shutdown_timeout=_END_S,
        )
        await runner.setup()
        self._runner = runner
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port, *_ = runner.addresses[0]
        self.address = (host, port)

    async def close(self) -> None:
        """Take no more."""
        if self._runner is not None:
            await self._runner.cleanup()

    def switch(
        self,
        routes: tuple[ServiceRoute, ...],
        addresses: Mapping[str, str],
        traits: Mapping[str, ServerTraits],
    ) -> None:
        """As `Router.switch`: who waits for a replica that is there now gets it."""
        self._router.switch(routes, addresses, traits)
        # HAProxy counted them; here they would add up for ever.
        self._router.read()

    @property
    def stranded(self) -> tuple[str, ...]:
        """As of `agents.router.request_router`."""
        return self._router.stranded

    def pass_on(self, service: str, urls: Sequence[str]) -> None:
        """As of `agents.router.request_router`."""
        self._router.pass_on(service, urls)

    def in_flight(self, replica_id: str) -> int:
        """Requests that waited here and that a replica has not answered."""
        return self._router.in_flight(replica_id)


def _admit(secret: str) -> Middleware:
    """Refuse what did not come by HAProxy, which has asked for keys; the secret goes no further."""

    @web.middleware
    async def admit(
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        shown = request.headers.getall(SECRET_HEADER, [])
        if not any(map(secrets.compare_digest, shown, (secret,))):
            return problem(
                HTTPStatus.FORBIDDEN, "only this node's HAProxy sends requests here"
            )
        headers = request.headers.copy()
        del headers[SECRET_HEADER]
        return await handler(request.clone(headers=headers))

    return admit


def fill_places(
    places: Mapping[str, Sequence[BackendServer]],
    wanted: Mapping[str, Sequence[Address]],
) -> Iterator[str]:
    """Commands for the backup places of each backend: each has its address of the list, or none."""
    for backend, mine in places.items():
        addresses = wanted.get(backend, ())
        for number, place in enumerate(mine):
            address = addresses[number] if number < len(addresses) else None
            yield from _place(place, address)


def _place(place: BackendServer, address: Address | None) -> Iterator[str]:
    server = f"set server {place.backend}/{place.name}"
    # In maintenance while its address changes: no request may go to the old one under the new name.
    if address is None:
        if place.is_ready:
            yield f"{server} state maint"
    elif not place.is_ready or place.address != address:
        yield f"{server} state maint"
        yield f"{server} addr {address[0]} port {address[1]}"
        yield f"{server} state ready"
