"""NVIDIA's `cuda-checkpoint`: moving the GPU memory of a process that knows nothing of it to the host, and back.

    await offload(pids)     lock, then checkpoint each process that uses CUDA; raises DeviceError
    await resume(pids)      restore, then unlock

Both go on from whatever state an earlier call, perhaps of an agent that was killed, left each process in.

Whether it works is found out on the very process, by `--get-state --pid`, each time: it depends on the driver (550 or
newer), on rights, and on what the process uses (no UVM, no NCCL). Of clients of MPS nothing is documented, so that it
is not tried on them; who calls sees to that.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Mapping

from agents.device import DeviceError, NotSupported

PROGRAM = "cuda-checkpoint"
LOCK_MS = 10_000
"""For the work that the process has begun."""
CALL_LIMIT_S = 120.0
"""Of one call; gigabytes go to the host."""


class CudaCheckpoint:
    """The program in some environment's PATH."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    async def offload(self, pids: tuple[int, ...]) -> None:
        """Raises NotSupported where the processes run on, and DeviceError where they may be broken."""
        states = {pid: await self._state(pid) for pid in pids}
        using = [pid for pid in pids if states[pid] in ("running", "locked")]
        if not using:
            raise NotSupported(f"{PROGRAM} finds CUDA running in none of the processes {pids}")
        for pid in (each for each in using if states[each] == "running"):
            try:
                await self._call("--action", "lock", "--pid", str(pid), "--timeout", str(LOCK_MS))
            except DeviceError as error:
                for each in using:
                    with contextlib.suppress(DeviceError):
                        await self._call("--action", "unlock", "--pid", str(each))
                if "checkpointed" in states.values():
                    raise DeviceError(f"some of the processes are away already: {error}") from error
                raise NotSupported(str(error)) from error
        for pid in using:
            await self._call("--action", "checkpoint", "--pid", str(pid))

    async def resume(self, pids: tuple[int, ...]) -> None:
        """Raises DeviceError; then the process may be broken."""
        for pid in pids:
            if await self._state(pid) == "checkpointed":
                await self._call("--action", "restore", "--pid", str(pid))
        for pid in pids:
            if await self._state(pid) == "locked":
                await self._call("--action", "unlock", "--pid", str(pid))
        states = {pid: await self._state(pid) for pid in pids}
        if "running" not in states.values():
            raise DeviceError(f"{PROGRAM} finds CUDA running in none of the processes {pids} after they were restored")

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

    async def _call(self, *words: str) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                PROGRAM,
                *words,
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
                raise DeviceError(f"{PROGRAM} {' '.join(words)} took more than {CALL_LIMIT_S:g} s") from error
            raise
        text = said.decode(errors="replace").strip()
        if process.returncode != 0:
            raise DeviceError(f"{PROGRAM} {' '.join(words)} failed with {process.returncode}: {text[:300]}")
        return text
