"""The control program of one GPU's MPS daemon: one process per question. Nothing else runs nvidia-cuda-mps-control.

control = Control(CONTROL, environment, directory)
    why_missing()            why it cannot be run here; empty = it can
    await ask(command)       the lines of the answer; raises NoDaemon, NotPermitted, NotSupported or DeviceError
    await run(*options)      what a call without a command says
"""

import asyncio
import shutil
import time
from collections.abc import Mapping

from agents.base.device import DeviceError, NotSupported
from agents.gpu.mps import answers
from agents.gpu.mps.directory import MpsDirectory

CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"
ANSWER_S = 10.0
BUSY_S = 0.02
LOG_LIMIT_MIB = 8.0


class Control:
    """Runs the control program of one daemon."""

    def __init__(
        self,
        program: str,
        environment: Mapping[str, str],
        directory: MpsDirectory,
        *,
        answer_s: float = ANSWER_S,
        log_limit_mib: float = LOG_LIMIT_MIB,
    ) -> None:
        """`environment`: of the program, and so of the daemon; the rest as in `agents.gpu.mps.daemon.MpsSettings`."""
        self._program, self._directory = program, directory
        self._answer_s, self._log_limit_mib = answer_s, log_limit_mib
        self._environment = {
            # A setting of the agent's own environment, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE above all, would
            # bind every client.
            **{
                name: value
                for name, value in environment.items()
                if not name.startswith("CUDA_MPS_")
            },
            "CUDA_VISIBLE_DEVICES": directory.gpu_uuid,
            "CUDA_MPS_PIPE_DIRECTORY": str(directory.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(directory.log),
        }
        self._turn = asyncio.Lock()
        """The daemon takes one question at a time."""

    def why_missing(self) -> str:
        """Why the programs of MPS cannot be run; empty = they can."""
        # The daemon finds its server by this PATH, not by the agent's.
        path = self._environment.get("PATH")
        for program in (self._program, SERVER):
            if shutil.which(program, path=path) is None:
                return f"{program} is not in PATH ({path}); install NVIDIA's MPS (Debian: nvidia-cuda-mps)"
        return ""

    async def ask(self, command: str, *, more_s: float = 0.0) -> tuple[str, ...]:
        """The answer to one command; one per call, since silent answers leave no line. `more_s`: see `run`."""
        async with self._turn:
            said, complaint = await self.run(command=command, more_s=more_s)
            ends_s = time.monotonic() + self._answer_s
            # Another process asks at this moment: the profiler, an operator. Its question takes milliseconds.
            while answers.IS_BUSY in complaint and time.monotonic() < ends_s:
                await asyncio.sleep(BUSY_S)
                said, complaint = await self.run(command=command, more_s=more_s)
        # Each command writes to the logs, so this is the moment at which they grow.
        self._directory.cut_logs(self._log_limit_mib)
        return answers.lines_of(command, said, complaint)

    async def run(
        self, *options: str, command: str = "", more_s: float = 0.0
    ) -> tuple[str, str]:
        """Standard output and error of one call; its exit status says nothing. `more_s`: beyond the usual limit.

        Standard input is never the agent's: with an option that it does not know the program waits for commands.
        """
        # A daemon that hangs would otherwise hold the agent for ever.
        limit_s = self._answer_s + more_s
        try:
            process = await asyncio.create_subprocess_exec(
                self._program,
                *options,
                stdin=asyncio.subprocess.PIPE
                if command
                else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environment,
                # Ctrl-C at the agent's terminal must reach neither the program nor a daemon that it starts.
                start_new_session=True,
            )
        except OSError as error:
            raise NotSupported(f"{self._program} cannot be run: {error}") from error
        given = f"{command}\n".encode() if command else None
        try:
            async with asyncio.timeout(limit_s):
                said, complaint = await process.communicate(given)
        except TimeoutError as error:
            raise DeviceError(
                f"{self._program} gave no answer to {command or options[0]!r} in {limit_s:g} s; the MPS daemon of GPU "
                f"{self._directory.gpu_uuid} hangs: see {self._directory.log}/control.log"
            ) from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return said.decode(errors="replace"), complaint.decode(errors="replace")
