"""Moving a task's memory: by its program's own hook, or where it has none by `cuda-checkpoint`."""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Callable, Mapping
from typing import Literal

from agents.base.device import DeviceError, NotSupported
from agents.tasks.hook import HookClient
from agents.tasks.task import TaskProcess

log = logging.getLogger(__name__)


class CudaCheckpoint:
    """The program in some environment's PATH."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    async def offload(self, pids: tuple[int, ...]) -> None:
        """Raises NotSupported where the processes run on, and DeviceError where they may be broken."""
        states = {pid: await self._state(pid) for pid in pids}
        using = [pid for pid in pids if states[pid] in ("running", "locked")]
        if not using:
            raise NotSupported(
                f"{PROGRAM} finds CUDA running in none of the processes {pids}"
            )
        # All are locked before the first is moved: up to then every step can be taken back.
        for pid in (each for each in using if states[each] == "running"):
            try:
                await self._call(
                    "--action", "lock", "--pid", str(pid), "--timeout", str(LOCK_MS)
                )
            except DeviceError as error:
                # Those that were locked go on: the task must run untouched where there is no way.
                await self._unlock(using)
                if "checkpointed" in states.values():
                    raise DeviceError(
                        f"some of the processes are swapped out already: {error}"
                    ) from error
                raise NotSupported(str(error)) from error
        for pid in using:
            await self._call("--action", "checkpoint", "--pid", str(pid))

    async def resume(self, pids: tuple[int, ...]) -> None:
        """Raises DeviceError; then the process may be broken."""
        # All are restored before the first is unlocked, so that none runs while another is still swapped out.
        for pid in pids:
            if await self._state(pid) == "checkpointed":
                await self._call("--action", "restore", "--pid", str(pid))
        for pid in pids:
            if await self._state(pid) == "locked":
                await self._call("--action", "unlock", "--pid", str(pid))
        states = {pid: await self._state(pid) for pid in pids}
        if "running" not in states.values():
            raise DeviceError(
                f"{PROGRAM} finds CUDA running in none of the processes {pids} after they were restored"
            )

    async def _unlock(self, pids: list[int]) -> None:
        for pid in pids:
            with contextlib.suppress(DeviceError):
                await self._call("--action", "unlock", "--pid", str(pid))

    async def is_away(self, pids: tuple[int, ...]) -> bool:
        """Whether all of the processes that use CUDA are checkpointed, as an earlier agent may have left them."""
        with contextlib.suppress(DeviceError):
            return {await self._state(pid) for pid in pids} - {""} == {"checkpointed"}
        return False

    async def _state(self, pid: int) -> str:
        """running, locked, checkpointed or failed; empty where the process does not use CUDA."""
        if shutil.which(PROGRAM, path=self._environment.get("PATH")) is None:
            raise NotSupported(f"{PROGRAM} is not in PATH")
        with contextlib.suppress(DeviceError):
            return await self._call("--get-state", "--pid", str(pid))
        return ""

    async def _call(self, *arguments: str) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                PROGRAM,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=dict(self._environment),
            )
        except OSError as error:
            raise NotSupported(f"{PROGRAM} cannot be run: {error}") from error
        try:
            async with asyncio.timeout(CALL_LIMIT_S):
                said, _ = await process.communicate()
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            if isinstance(error, TimeoutError):
                raise DeviceError(
                    f"{PROGRAM} {' '.join(arguments)} took more than {CALL_LIMIT_S:g} s"
                ) from error
            raise
        text = said.decode(errors="replace").strip()
        if process.returncode != 0:
            raise DeviceError(
                f"{PROGRAM} {' '.join(arguments)} failed with {process.returncode}: {text[:300]}"
            )
        return text


class Mover:
    """Moves the memory of tasks."""

    def __init__(
        self,
        hook: HookClient,
        checkpoint: CudaCheckpoint,
        *,
        why_no_checkpoint: Callable[[int], str],
    ) -> None:
        """`why_no_checkpoint`: by GPU; empty = it may be tried."""
        self._hook, self._checkpoint, self._why_no_checkpoint = (
            hook,
            checkpoint,
            why_no_checkpoint,
        )

    async def move(self, each: TaskProcess, way: Literal["out", "in"]) -> None:
        """Return when it is there; may be called again for a task that is there, or on its way, already.

        Raises NotSupported where the task runs on untouched and there is no way, another DeviceError where it may be
        broken.
        """
        if each.url:
            while not await self._hook.move(
                each.url, "offloaded" if way == "out" else "running"
            ):
                log.info("task %s comes to no boundary yet", each.record.id)
            return
        assert each.process is not None
        pids = await asyncio.to_thread(each.process.members)
        if way == "in":
            await self._checkpoint.resume(pids)
        # An earlier agent may have moved it and died before that was recorded.
        elif not await self._checkpoint.is_away(pids):
            if why := self._why_no_checkpoint(each.record.gpu_index):
                raise NotSupported(why)
            await self._checkpoint.offload(pids)


PROGRAM = "cuda-checkpoint"
LOCK_MS = 10_000
"""For the work that the process has begun."""
CALL_LIMIT_S = 120.0
"""The limit of one call; gigabytes go to the host."""
