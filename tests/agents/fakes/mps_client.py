"""What a process under MPS does, fake: it joins the server, and sees as many SMs as its share allows.

A fake worker calls `join(total_sms)` once at its start and keeps what it gets for its life:

    client = join(132)          # environment: CUDA_MPS_PIPE_DIRECTORY, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE, ...
    client.sms                  # 52 of 132 at 40 % in steps of 2; all 132 where no daemon answers: MPS fails open
    client.error()              # 0, or CUDA's sticky error: 810 terminated, 719 the GPU broke

As a program, `python mps_client.py 132 [step]`, it prints that as one line of JSON, goes on until its standard input
ends, and prints another line when it gets an error. `break_gpu` makes the fake GPU fail.
"""

import json
import math
import os
import select
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class MpsError(Exception):
    """CUDA's error of a process that may not join; the code is its argument: 807 not ready, 808 too many clients."""


@dataclass(eq=False)
class MpsClient:
    """This process as it joined; `connection` None = it runs outside MPS."""

    sms: int
    limit: str
    connection: socket.socket | None
    _error: int = field(default=0)

    def error(self, wait_s: float = 0.0) -> int:
        """The sticky error, 0 while there is none."""
        if (
            self.connection
            and not self._error
            and select.select([self.connection], [], [], wait_s)[0]
        ):
            packet = self.connection.recv(65536)
            self._error = int(json.loads(packet)["error"]) if packet else 805
        return self._error


def join(
    total_sms: int, *, step_sms: int = 2, environment: Mapping[str, str] = os.environ
) -> MpsClient:
    """Join the server of this environment. Waits while it starts or serves another user. Raises MpsError."""
    limit = environment.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(
            environment.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps") + "/control"
        )
    except OSError:
        connection.close()
        return MpsClient(total_sms, limit, None)
    wish = {
        "pid": os.getpid(),
        "uid": int(environment.get("FAKE_MPS_UID", os.getuid())),
        "percent": environment.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100"),
        "limit": limit,
        "priority": environment.get("CUDA_MPS_CLIENT_PRIORITY", "0"),
    }
    connection.send(json.dumps({"client": wish}).encode())
    packet = connection.recv(65536)
    answer = json.loads(packet) if packet else {"error": 805}
    if "error" in answer:
        connection.close()
        raise MpsError(answer["error"])
    # 1e-9: 44 / 132 as a percentage of six digits must give 44 again.
    steps = math.floor(total_sms * answer["percent"] / 100.0 / step_sms + 1e-9)
    return MpsClient(min(total_sms, max(1, steps) * step_sms), limit, connection)


def break_gpu(pipe_directory: str, *, stays: bool = False) -> None:
    """Let the GPU fail as after a client's fatal fault; `stays`: it does not come back when all clients have gone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(f"{pipe_directory}/control")
        connection.send(json.dumps({"lab": "fault", "stays": stays}).encode())
        connection.recv(65536)


def say(message: dict[str, Any]) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main(total_sms: int, step_sms: int) -> None:
    try:
        client = join(total_sms, step_sms=step_sms)
    except MpsError as error:
        say({"error": error.args[0]})
        return
    is_under_mps = client.connection is not None
    say({"sms": client.sms, "limit": client.limit, "is_under_mps": is_under_mps})
    watched = [sys.stdin, *([client.connection] if client.connection else [])]
    while sys.stdin not in select.select(watched, [], [])[0]:
        say({"error": client.error()})
        watched = [sys.stdin]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2)
