"""What tests of coroutines share."""

import asyncio


async def let_others_run() -> None:
    """Give every other task several turns."""
    for _ in range(5):
        await asyncio.sleep(0)


def let_time_stand_still() -> None:
    """From now on the running loop's clock says the same, so that nothing is earned and no sleep ends."""
    loop = asyncio.get_running_loop()
    now = loop.time()
    loop.time = lambda: now  # type: ignore[method-assign]
