"""Programs as processes of their own, each started again where it ends before it is asked to."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import structlog

from agents.base.backoff import BackOff

STOP_S = 10.0
"""Programs that are asked to end do so within this time, or are killed."""

log = structlog.get_logger(__name__)


@asynccontextmanager
async def kept_processes(programs: Mapping[str, Sequence[str]]) -> AsyncIterator[None]:
    """Run each program, by its name in the log, until the end of the block."""
    kept = [_Kept(name, command) for name, command in programs.items()]
    try:
        for each in kept:
            await each.start()
        keepers = [asyncio.create_task(each.keep()) for each in kept]
        try:
            yield
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
    finally:
        started = [each.process for each in kept if each.process is not None]
        await end_processes(started, STOP_S)


class _Kept:
    """One program."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self._name, self._command = name, command
        self._began_s = 0.0
        self.process: asyncio.subprocess.Process | None = None
        """None: it was not started yet."""

    async def start(self) -> None:
        self._began_s = asyncio.get_running_loop().time()
        self.process = await asyncio.create_subprocess_exec(
            *self._command, start_new_session=True
        )

    async def keep(self) -> None:
        """Start it again, with growing pauses, for ever."""
        back_off = BackOff()
        while self.process is not None:
            code = await self.process.wait()
            ran_s = asyncio.get_running_loop().time() - self._began_s
            pause_s = back_off.after(ran_s)
            log.warning(
                "a process ended", name=self._name, code=code, again_in_s=pause_s
            )
            await asyncio.sleep(pause_s)
            try:
                await self.start()
            except OSError as error:
                # For want of memory or processes: the next try may have them.
                log.error("a process did not start", name=self._name, error=str(error))


async def end_processes(
    processes: Sequence[asyncio.subprocess.Process], limit_s: float
) -> None:
    """Have them end, all at once; kill those that have not within the limit."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
    waits = [asyncio.create_task(process.wait()) for process in processes]
    if not waits:
        return
    # One limit for all of them: one after the other, sixteen that hang would take sixteen limits.
    _, late = await asyncio.wait(waits, timeout=limit_s)
    if late:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await asyncio.wait(late)
