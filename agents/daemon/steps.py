"""Steps that an agent takes again and again, none of which ends it.

    await steps.take("governing", agent.govern)   -> whether it went well; `.problems` says what did not
    problem_of("governing", error)                -> what an operator should know of such an error

An exception that no code foresaw would end the agent, whose next start would meet it again: workers run code that is
not ours, and what they answer may lead to one. It costs the step that it came from, and nothing else.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from agents.base.clock import Clock
from agents.base.device import DeviceError
from agents.base.waits import first
from agents.processes.logs import plain
from agents.sync.transport import TransportError

log = logging.getLogger(__name__)

LOG_PERIOD_S = 60.0
"""Between two log lines of one step that fails each second; what changes meanwhile shows in `problems`."""
FORESEEN = (DeviceError, TransportError)
"""Errors that say themselves what an operator should know."""


class Steps:
    """The steps of one agent."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[str, str] = {}
        self._logged_s: dict[str, float] = {}

    @property
    def problems(self) -> tuple[str, ...]:
        """Why each step that failed last did, once where several failed alike."""
        return tuple(dict.fromkeys(self._found.values()))

    async def take(self, name: str, step: Callable[[], Awaitable[None]]) -> bool:
        """Whether the step went well; what it raised is kept in `problems` until it does."""
        try:
            await step()
        except Exception as error:
            self._note(name, error)
            return False
        self._found.pop(name, None)
        return True

    def _note(self, name: str, error: Exception) -> None:
        self._found[name] = reason = problem_of(name, error)
        now_s = self._clock.now_s()
        logged_s = self._logged_s.get(name, -math.inf)
        if now_s >= logged_s + LOG_PERIOD_S:
            self._logged_s[name] = now_s
            cause = None if isinstance(error, FORESEEN) else error
            log.error("%s", reason, exc_info=cause)


async def sleep_unless(happened: asyncio.Event, clock: Clock, seconds: float) -> None:
    """Sleep so long by the clock, or until it happens, which is then forgotten."""

    async def sleep() -> bool:
        await clock.sleep(max(0.0, seconds))
        return True

    await first(happened.wait(), sleep())
    happened.clear()


def problem_of(name: str, error: Exception) -> str:
    """What an operator should know of a step that raised."""
    if isinstance(error, FORESEEN):
        return str(error)
    # With its type: the text of a KeyError is a key, and some errors have none.
    said = f"{type(error).__name__}: {plain(str(error))}"
    return f"{name} failed unexpectedly: {said}"
