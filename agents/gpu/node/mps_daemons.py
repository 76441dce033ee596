"""`plimsoll-agent mps`: the MPS daemons of this node's GPUs, kept up apart from the agent.

    plimsoll-agent mps --mps-dir /run/plimsoll-mps [--worker-user NAME]

In a container of its own a daemon outlives the agent's. It starts again what has died, and ends all of them at SIGTERM:
drain the node before. Exit codes: 0 after SIGTERM or SIGINT, 1 where no GPU can be shared by MPS, 2 wrong arguments.
"""

import argparse
import asyncio
import contextlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from agents.base.arguments import add_log_level, add_worker_user
from agents.base.device import DeviceError
from agents.base.waits import stop_event
from agents.gpu.mps.daemon import Mps, MpsSettings
from agents.gpu.mps.gpu_sharing import mps_folder
from agents.gpu.node.devices import Devices
from agents.gpu.nvml.session import Nvml
from agents.processes.user import find_worker_user, uid_of, workers_folders

LOOK_S = 5.0
"""Between two questions whether a daemon lives, each of which starts a process."""
DRAIN_S = 5.0
"""For clients that are just leaving, when the daemons end."""

log = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Keep the daemons up until a signal; the exit code."""
    options = make_parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    try:
        user = find_worker_user(options.worker_user, workers_folders(options.mps_dir))
        settings = MpsSettings(client_uid=uid_of(user))
        with Nvml() as nvml:
            # In the folders where the agent looks for them.
            daemons = [
                Mps(gpu.uuid, options.mps_dir / mps_folder(gpu), settings=settings)
                for gpu in Devices(nvml).gpus()
            ]
        asyncio.run(keep_up(daemons))
    except (DeviceError, OSError) as error:
        log.error("the daemons cannot run: %s", error)
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="plimsoll-agent mps",
        description="Keep the MPS daemons of this node's GPUs up, apart from the agent.",
    )
    parser.add_argument(
        "--mps-dir",
        type=Path,
        required=True,
        metavar="DIR",
        help="of MPS' sockets, a short path; the agent's --mps-dir",
    )
    add_worker_user(parser)
    add_log_level(parser)
    return parser


async def keep_up(daemons: Sequence[Mps]) -> None:
    """Until SIGTERM or SIGINT. Raises DeviceError where one cannot be started at all."""
    # A signal in the middle of a start waits for it: what was started is ended below.
    async with stop_event(0) as stop:
        for each in daemons:
            await each.start()
            log.info("the MPS daemon of GPU %s runs", each.gpu_uuid)
        while not stop.is_set():
            await _until_next_look(stop)
            if not stop.is_set():
                await asyncio.gather(*map(_look, daemons))
    # Clients are terminated first: one that is at work when its server dies may hang the GPU.
    await asyncio.gather(*(each.stop(DRAIN_S) for each in daemons))


async def _until_next_look(stop: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LOOK_S):
            await stop.wait()


async def _look(daemon: Mps) -> None:
    try:
        if not await daemon.is_alive():
            log.warning("the MPS daemon of GPU %s has died", daemon.gpu_uuid)
            await daemon.start()
    except DeviceError as error:
        log.error("GPU %s: %s", daemon.gpu_uuid, error)
