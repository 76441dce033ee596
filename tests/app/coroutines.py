"""What tests of coroutines share."""

import asyncio
from collections.abc import Awaitable, Callable


def run(body: Callable[[], Awaitable[None]]) -> None:
    """Run a test's coroutine, for half a minute at most."""

    async def limited() -> None:
        async with asyncio.timeout(30):
            await body()

    asyncio.run(limited())


async def let_others_run() -> None:
    """Give every other task several turns."""
    for _ in range(5):
        await asyncio.sleep(0)
