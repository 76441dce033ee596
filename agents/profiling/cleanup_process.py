"""The cleanup process, which outlives the profiler and sees to what it leaves, however it ends.

    async with keeping(Duties(...)):      entered before anything is started that must be ended

It waits for the end of its standard input, which the kernel closes when the profiler is gone, also by SIGKILL. Then:
benches end (they saw the same end; what stays is taken off the GPU by MPS and killed), the MPS daemon stops, locked
clocks are put back, the profile's directory goes. The profiler itself ends no daemon: this is the one way, so it is
tried at every run.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from agents.base.device import DeviceError, LaunchFailed
from agents.gpu.mps.daemon import Mps
from agents.processes.process import Ending, end_left_over
from agents.processes.procfs import marks
from agents.processes.trees import remove

BENCHES_S = 20.0
"""For benches to end by themselves."""
FINISH_S = 120.0
LOOK_S = 0.05

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Duties:
    """What is to be seen to."""

    mark: str
    """Beginning of the mark of the profile's processes."""
    directory: str
    """The profile's own; removed at the end."""
    gpu_uuid: str
    mps_dir: str
    """Where the GPU's daemon has its files, within `directory`."""
    knobs_dir: str = ""
    """Where the journal of turned knobs is; empty = none are turned."""


@contextlib.asynccontextmanager
async def keeping(
    duties: Duties, environment: Mapping[str, str]
) -> AsyncIterator[None]:
    """A cleanup process while it lasts; afterwards everything of the profile has ended, and its directory is gone.

    Raises LaunchFailed or DeviceError.
    """
    try:
        process = await _start(duties, environment)
    except BaseException:
        # Without a cleanup process nothing else removes it.
        remove(Path(duties.directory))
        raise
    try:
        yield
    finally:
        assert process.stdin is not None
        # The end of its input is its signal: the same path as after a crash, so that every run exercises it.
        process.stdin.close()
        async with asyncio.timeout(FINISH_S):
            code = await process.wait()
    if code != 0:
        raise DeviceError(
            f"the cleanup process ended with {code}: something of the profile may be left, see the lines above"
        )


async def _start(duties: Duties, environment: Mapping[str, str]) -> Process:
    try:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "agents.profiling.cleanup_process",
            msgspec.json.encode(duties).decode(),
            stdin=asyncio.subprocess.PIPE,
            env=dict(environment),
            # Ctrl-C at a terminal reaches the whole group: this process must outlive the profiler that it ends.
            start_new_session=True,
        )
    except OSError as error:
        raise LaunchFailed(f"the cleanup process cannot be started: {error}") from error


async def keep(duties: Duties) -> bool:
    """See to everything; whether all of it is well."""
    mps = Mps(duties.gpu_uuid, Path(duties.mps_dir))

    async def terminate_clients(pids: tuple[int, ...]) -> bool:
        # Without a daemon nothing is a client any more; killing the process is enough then.
        if not await mps.is_alive():
            return True
        clients = set(pids).intersection(await mps.client_pids())
        return all([await mps.terminate(pid) for pid in sorted(clients)])

    ending = Ending(grace_s=0.0, terminate=terminate_clients)
    until_s = time.monotonic() + BENCHES_S
    while (left := _benches(duties)) and time.monotonic() < until_s:  # noqa: ASYNC110  no child of ours tells its end
        await asyncio.sleep(LOOK_S)
    are_gone = all([await end_left_over(mark, ending) for mark in sorted(left)])
    # After the benches: a daemon that stops takes running clients down in the middle of a batch.
    is_stopped = await _stop(mps)
    return all(
        (
            are_gone,
            is_stopped,
            _restore(duties.knobs_dir),
            # Last: whatever of the daemon and its servers is left after it was told to stop.
            await end_left_over(_daemon(duties), ending),
        )
    )


def daemon_mark(mark: str) -> str:
    """The mark of the MPS daemon and its server."""
    return f"{mark}.mps"


def _daemon(duties: Duties) -> str:
    return daemon_mark(duties.mark)


def _benches(duties: Duties) -> frozenset[str]:
    return marks(f"{duties.mark}.") - {_daemon(duties)}


async def _stop(mps: Mps) -> bool:
    """Only a daemon of this profile can live in its directory."""
    if not (mps.directory.pipe / "control").exists():
        return True
    try:
        await mps.stop(0.0)
    except DeviceError as error:
        log.error("%s", error)
        return False
    return True


def _restore(directory: str) -> bool:
    if not directory:
        return True
    # Imported here because most profiles lock no clock and do not need it.
    from agents.gpu.knobs.restore import restore

    try:
        lines, is_over = restore(Path(directory))
    except (DeviceError, OSError) as error:
        lines = (f"clocks cannot be put back: {error}",)
        is_over = False
    if not is_over:
        log.error("%s", "; ".join(lines))
    return is_over


def main(arguments: list[str]) -> int:
    """Wait for the end of standard input, then see to everything; the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR, format="%(message)s")
    duties = msgspec.json.decode(arguments[0], type=Duties)
    # A signal that ends a whole group of processes must not end this one: its work begins then.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    is_well = asyncio.run(keep(duties))
    remove(Path(duties.directory))
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
