"""What replicas and tasks need alike, however they run.

await end_for_good(running, ending, tell)   returns when all of it is gone, and not before
await keep_tidy(records, ids)               keeps every log short and old folders few, for ever
"""

import asyncio
from collections.abc import Callable, Iterable

from agents.processes.launcher import Running
from agents.processes.logs import rotate_all
from agents.processes.process import Ending
from agents.processes.records import R, Records

LOOK_S = 2.0
UNKILLABLE_S = 5.0
"""Between two attempts to end what does not end."""


async def end_for_good(
    running: Running, ending: Ending, tell: Callable[[str], None]
) -> None:
    """Return when all its processes are gone, and not before: until then they hold memory of the GPU. `tell` is given
    words for it when some do not go."""
    while left := await running.end(ending):
        tell(left)
        await asyncio.sleep(UNKILLABLE_S)


async def keep_tidy(
    records: Records[R],
    ids: Callable[[], Iterable[str]],
) -> None:
    """Rotate the logs of those ids, and clear away what removed ones left, for ever."""
    # Side by side: a folder that takes long to remove must not let a log grow meanwhile.
    await asyncio.gather(
        _keep_logs(records, ids),
        _keep_folders(records),
    )


async def _keep_logs(
    records: Records[R],
    ids: Callable[[], Iterable[str]],
) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        logs = tuple(map(records.log, ids()))
        await asyncio.to_thread(rotate_all, logs)


async def _keep_folders(records: Records[R]) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        await records.tidy()
