"""Supervisors to be killed: for each line "DIRECTORY SEED FIRST_PORT [CLUSTER]" on stdin a process that starts, changes
and stops replicas at random until somebody kills it; its process id is printed. CLUSTER: a file with the address and
the settings of a cluster in which they are Pods.

They are forked from one process that has imported everything, so that each is at work at once.
"""

import asyncio
import os
import pickle
import random
import signal
import sys
import time
from pathlib import Path

from agents.base.device import DeviceError
from agents.base.protocol import ReplicaCommand
from agents.kubernetes.api import KubernetesApi
from agents.kubernetes.launcher import PodLauncher
from agents.processes.launch import Launch
from agents.processes.launcher import PROCESSES, Launcher
from agents.processes.templates import Template, Templates
from agents.replicas.replicas import Workers, WorkersSettings
from tests.waiting import PATIENCE_S

WORKER = Path(__file__).with_name("http_worker.py")
LIFE_S = 60.0


def make_templates() -> Templates:
    template = Template(
        name="fake",
        command=(sys.executable, "-I", "-S", str(WORKER), "--port", "{port}"),
        start_limit_s=PATIENCE_S,
        drain_limit_s=5.0,
    )
    return Templates(by_name={"fake": template}, default="fake")


async def supervise(
    directory: Path, seed: int, first_port: int, *cluster_file: str
) -> None:
    choice = random.Random(seed)
    settings = WorkersSettings(
        directory=directory, first_port=first_port, port_count=50
    )
    launcher = find_launcher(*cluster_file)
    await launcher.open()
    workers = Workers(settings, templates=make_templates(), launcher=launcher)
    await workers.open()
    until_s = time.monotonic() + LIFE_S
    while time.monotonic() < until_s:
        there = {each.id: each for each in workers.replicas()}
        replica_id = f"r{choice.randrange(3)}"
        try:
            if replica_id not in there:
                await workers.start(Launch(replica=command(replica_id), gpu_index=0))
            elif there[replica_id].state == "ready" and choice.random() < 0.5:
                await workers.set_batch(replica_id, choice.randint(1, 64))
            elif choice.random() < 0.5:
                await workers.stop(replica_id)
        except DeviceError as error:  # a crash loop, perhaps; only a person looks at it
            sys.stderr.write(f"{error}\n")
        await asyncio.sleep(choice.uniform(0.0, 0.03))


def find_launcher(*cluster_file: str) -> Launcher:
    if not cluster_file:
        return PROCESSES
    address, settings = pickle.loads(Path(*cluster_file).read_bytes())
    return PodLauncher(KubernetesApi(address), settings)


def command(replica_id: str) -> ReplicaCommand:
    return ReplicaCommand(
        id=replica_id,
        service="chat",
        network="resnet50",
        sm_percent=25.0,
        batch=4,
        memory_mib=1000.0,
        arrival_rate_rps=10.0,
    )


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    signal.signal(
        signal.SIGCHLD, signal.SIG_IGN
    )  # what is killed needs no one to wait for it
    tell("there")
    for line in sys.stdin:
        directory, seed, first_port, *cluster_file = line.split()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            asyncio.run(
                supervise(Path(directory), int(seed), int(first_port), *cluster_file)
            )
            os._exit(0)
        tell(str(pid))


if __name__ == "__main__":
    main()
