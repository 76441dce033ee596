"""What the parts of this process say of themselves, asked once a second at most: anybody may ask, without a token."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

from app.api.caches import shared_tasks

Check: TypeAlias = Callable[[], Coroutine[Any, Any, str | None]]
"""None when a part is well; else what is wrong with it."""

KEPT_S = 1.0
"""Probes come every few seconds: to each of them the answer is new, and a flood costs one set of checks per second."""
CHECK_LIMIT_S = 3.0


class Readiness:
    """The newest answer of every part."""

    def __init__(self) -> None:
        self._asking: asyncio.Task[Mapping[str, str | None]] | None = None
        self._until_s = 0.0

    async def load(self, checks: Mapping[str, Check]) -> Mapping[str, str | None]:
        """What is wrong with each part, by name, as it was within KEPT_S; None: nothing."""
        now_s = asyncio.get_running_loop().time()
        # Never two sets of checks at once, however long one takes: each holds two connections to the database.
        if self._asking is None or (self._asking.done() and now_s >= self._until_s):
            self._asking = shared_tasks.begin(_ask_all(checks), "readiness")
            self._until_s = now_s + KEPT_S
        # Shielded: others wait for the same answer, even if this probe is given up.
        return await asyncio.shield(self._asking)


async def _ask_all(checks: Mapping[str, Check]) -> Mapping[str, str | None]:
    # At once: probes give up after a few seconds, which one slow part must not use up for the others.
    answers = await asyncio.gather(*(_ask(check) for check in checks.values()))
    return dict(zip(checks, answers, strict=True))


async def _ask(check: Check) -> str | None:
    """What a part says of itself; one that hangs must not hang the probe, nor may its cancellation."""
    asking = shared_tasks.begin(check(), "check")
    done, _ = await asyncio.wait((asking,), timeout=CHECK_LIMIT_S)
    if done:
        return asking.result()
    # Not awaited: a check that ignores its cancellation would hang the probe after all.
    asking.cancel()
    return f"no answer within {CHECK_LIMIT_S:g} s"
