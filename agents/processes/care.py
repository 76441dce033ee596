"""What the processes of replicas and of tasks need alike.

await end_unrecorded(mark, known, terminate)   what carries this directory's mark and has no record
await end_for_good(process, ending, tell)      returns when all of it is gone, and not before
await keep_tidy(records, ids)                  keeps every log short and old folders few, for ever
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial

from agents.processes.logs import rotate_all
from agents.processes.process import Ending, WorkerProcess, end_left_over
from agents.processes.process import TerminateOnGpu as Terminate
from agents.processes.procfs import marks
from agents.processes.records import R, Records

LOOK_S = 2.0
UNKILLABLE_S = 5.0
"""Between two attempts to end what does not end."""

log = logging.getLogger(__name__)


async def end_unrecorded(
    mark: str, known: Collection[str], terminate: Terminate
) -> None:
    """End what carries this directory's mark and has no record: a child whose agent died while it was being started and
    that is about to leave, or a process whose record was damaged."""
    for each in sorted(marks(f"{mark}.") - set(known)):
        # Processes of another agent on this machine have another mark.
        log.warning("processes without a record are ended, by their mark %s", each)
        await end_left_over(each, Ending(grace_s=0.0, terminate=partial(terminate, -1)))


async def end_for_good(
    process: WorkerProcess, ending: Ending, tell: Callable[[str], None]
) -> None:
    """Return when all its processes are gone, and not before: until then they hold memory of the GPU. `tell` is given
    words for it when some do not go."""
    while not await process.end(ending):
        tell(
            f"processes {process.members()} did not end after SIGKILL; the GPU may need a reset"
        )
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
