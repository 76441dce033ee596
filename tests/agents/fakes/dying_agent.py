"""The agent, which is killed by itself where its device is told something: right before, or right after it was done.

    python dying_agent.py before|after METHOD REPLICA [the agent's arguments ...]

Only a call that names the replica counts, so that it dies in the switch that the test is about.
"""

import os
import signal
import sys
from typing import Any

from agents.gpu.node.device import GpuDevice
from agents.main import main


def die_at(when: str, method: str, replica: str) -> None:
    """Let the device end the process at that call."""
    real = getattr(GpuDevice, method)

    async def dying(device: GpuDevice, *given: Any) -> None:
        is_meant = f"'{replica}'" in repr(given)
        if is_meant and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        await real(device, *given)
        if is_meant:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(GpuDevice, method, dying)


if __name__ == "__main__":
    die_at(*sys.argv[1:4])
    sys.exit(main(sys.argv[4:]))
