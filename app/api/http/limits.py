"""How often somebody may ask: a budget of cost per second for each token, and few syncs at a time for each node.

Without a token the address has that budget, for the few public paths that cost something.

A request beyond the budget waits until it is earned; beyond the longest wait it is answered 429 with `Retry-After`,
after a pause. Waiting slows a client down that sends as fast as it gets answers; a refusal at once would only make it
ask again. What takes long is also limited by seats (`app.api.http.fairness`) where it is done.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.http.errors import TooMany, problem_response
from app.api.http.fairness import Pace
from app.api.http.guesses import address_of
from app.api.http.parts import Context

BURST_S = 4.0
"""Seconds' worth of requests that may come at once: a page of the dashboard asks for ten, a script for hundreds."""
CHEAP, EXPENSIVE = 1.0, 10.0
LIMITED_PUBLIC_PATHS = ("/metrics", "/openapi.json", "/docs")
"""For everybody, and made or sent in milliseconds: an address has a token's budget for them."""

SYNC_RATE = 20.0
"""Syncs per second of one node, which sends one every few seconds, and many in a row after it was cut off."""
SYNC_BURST = 40.0
SYNCS_AT_ONCE = 2
"""One that waits for a command, and one of an agent that was started again meanwhile."""

WAIT_S = 5.0
"""Longest wait for a turn: agents give a request up after ten seconds."""
PAUSE_S = 1.0
"""Before a refusal: fifty connections that were refused at once asked a thousand times a second."""
MAX_PAUSING = 1000
"""Refusals that wait, in one process; more are answered at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One request, as limits see it."""

    flow: str
    cost: float
    is_sync: bool


class LimitMiddleware:
    """Between the layer that knows who calls and the routes."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        prefix: str,
        token_rate: float,
        pause_s: float = PAUSE_S,
    ) -> None:
        """`prefix`: of the API's paths; `token_rate`: cheap requests per second of one token; `pause_s`: before a
        refusal."""
        self._app = app
        start = re.escape(prefix)
        self._sync = re.compile(rf"POST {start}/nodes/[^/]+/sync")
        # What plans, simulates, or makes a table of many rows; and pages, which are HTML with the data within.
        self._expensive = re.compile(
            # Any id, since routes also take `3.0` and `+3` for plan 3.
            rf"GET {start}/(?:costs|reports/[^/]+(?:/export)?|simulations/[^/]+/report(?:\.json)?|plans/[^/]+/explain)"
            rf"|POST {start}/(?:plans/(?:preview|compare)|simulations|networks/[^/]+/fit)"
            r"|POST /new-service/yaml"
            # Starlette makes the whole page for a HEAD, and takes a line end for a letter of a name.
            rf"|(?:GET|HEAD) (?!{start}/|/live$).*",
            re.DOTALL,
        )
        self._people = Pace(rate=token_rate, burst=BURST_S * token_rate, wait_s=WAIT_S)
        self._nodes = Pace(rate=SYNC_RATE, burst=SYNC_BURST, wait_s=WAIT_S)
        self._syncing: Counter[str] = Counter()
        self._pause_s = pause_s
        self._pausing = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        asked = self._asked(scope)
        if asked is None:
            await self._app(scope, receive, send)
            return
        try:
            async with self._turn(asked):
                await self._app(scope, receive, send)
        # Answered here, since this layer lies outside the application's own handlers of errors, which answer its own.
        except TooMany as error:
            await self._pause()
            refusal = problem_response(
                error,
                path=scope["path"],
                request_id=str(scope["plimsoll.request_id"]),
            )
            await refusal(scope, receive, send)

    async def _pause(self) -> None:
        if self._pausing < MAX_PAUSING:
            self._pausing += 1
            try:
                await asyncio.sleep(self._pause_s)
            finally:
                self._pausing -= 1

    def _asked(self, scope: Scope) -> _Asked | None:
        """None: nothing is counted."""
        context: Context | None = scope.get("plimsoll.context")
        if context is None:
            # Not probes, which are nearly free and must be answered; nor the dashboard's files, which a whole office
            # behind one address loads at once. The server's start and end have no path.
            if scope.get("path") not in LIMITED_PUBLIC_PATHS:
                return None
            return _Asked(flow=address_of(scope), cost=CHEAP, is_sync=False)
        what = f"{scope['method']} {scope['path']}"
        return _Asked(
            flow=context.caller.root,
            cost=EXPENSIVE if self._expensive.fullmatch(what) else CHEAP,
            is_sync=self._sync.fullmatch(what) is not None,
        )

    @asynccontextmanager
    async def _turn(self, asked: _Asked) -> AsyncIterator[None]:
        """Wait for the budget, and count the syncs of a node. Raises TooMany."""
        pace = self._nodes if asked.is_sync else self._people
        if asked.is_sync and self._syncing[asked.flow] >= SYNCS_AT_ONCE:
            raise TooMany(
                f"{SYNCS_AT_ONCE} concurrent syncs per node are the limit; check whether its agent is running twice",
                retry_after_s=1.0,
            )
        wait_s = pace.take(asked.flow, asked.cost, asyncio.get_running_loop().time())
        self._syncing[asked.flow] += asked.is_sync
        try:
            if wait_s > 0.0:
                await asyncio.sleep(wait_s)
            yield
        finally:
            self._syncing[asked.flow] -= asked.is_sync
            # Otherwise every name that was ever sent would be kept.
            if not self._syncing[asked.flow]:
                del self._syncing[asked.flow]
