"""The port for requests: opened by the agent, or handed over by systemd and open while the agent is restarted."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from agents.base.device import DeviceError
from agents.base.exposition import metrics_port
from agents.daemon.request_port import BadSocket, handed_over_socket, open_port
from agents.sync.ledger import Ledger
from tests.agents.factories import a_replica, on_gpu
from tests.agents.gpu_nodes import inputs
from tests.waiting import PATIENCE_S, eventually, run

pytestmark = pytest.mark.integration

_AS_SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "plimsoll-agent.socket"}
os.execv(sys.executable, [sys.executable, "-m", "agents.main", *sys.argv[2:]])
"""


class Unit:
    """An agent with fake GPUs under a fake systemd, which holds its port."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        Ledger(directory / "state").accept(on_gpu(a_replica("r1")))
        (directory / "token").write_text("t")
        self.port = socket.create_server(("127.0.0.1", 0), backlog=1000)
        self.url = f"http://127.0.0.1:{self.port.getsockname()[1]}/v2/models/chat/infer"
        self.agent: subprocess.Popen[bytes]

    def start(self) -> None:
        words = "--url http://127.0.0.1:9 --node n1 --device fake --gpu-type V100-32GB --launch-s 0.2"
        files = (
            f"--state-dir {self.directory}/state --token-file {self.directory}/token"
        )
        port = self.port.fileno()
        given = (str(port), *words.split(), *files.split())
        with (self.directory / "log").open("ab") as log:
            self.agent = subprocess.Popen(
                (sys.executable, "-c", _AS_SYSTEMD, *given),
                pass_fds=(port,),
                stderr=log,
            )

    def stop(self) -> None:
        self.agent.send_signal(signal.SIGTERM)
        assert self.agent.wait(PATIENCE_S) == 0, self.log()

    def log(self) -> str:
        return (self.directory / "log").read_text()


@contextmanager
def a_unit(directory: Path) -> Iterator[Unit]:
    unit = Unit(directory)
    unit.start()
    try:
        yield unit
    finally:
        unit.agent.kill()
        unit.agent.wait()
        unit.port.close()


async def ask(session: aiohttp.ClientSession, url: str) -> str:
    """What came of one request: the status, or how it failed."""
    try:
        async with session.post(url, json=inputs()) as answer:
            await answer.read()
            return str(answer.status)
    except aiohttp.ClientError as error:
        return f"{type(error).__name__} {error}"


async def load(
    url: str, outcomes: Counter[str], stop: asyncio.Event, *, keeps: bool
) -> None:
    """Requests one after the other, each by a new connection unless it keeps its own."""
    connector = aiohttp.TCPConnector(force_close=not keeps)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=PATIENCE_S)
    ) as session:
        while not stop.is_set():
            outcomes[await ask(session, url)] += 1


def test_a_restart_under_load_loses_no_request(tmp_path: Path) -> None:
    async def scenario(unit: Unit) -> Counter[str]:
        outcomes, stop = Counter[str](), asyncio.Event()
        clients = [
            asyncio.create_task(load(unit.url, outcomes, stop, keeps=turn % 2 == 0))
            for turn in range(8)
        ]
        await served(outcomes, 50)
        await asyncio.to_thread(unit.stop)
        unit.start()
        await served(outcomes, 50)
        stop.set()
        await asyncio.gather(*clients)
        return outcomes

    async def served(outcomes: Counter[str], more: int) -> None:
        enough = outcomes["200"] + more

        def is_so() -> bool:
            assert outcomes.keys() <= {"200"}, (outcomes, unit.log())
            return outcomes["200"] >= enough

        await eventually(is_so)

    with a_unit(tmp_path) as unit:
        outcomes = run(scenario(unit))
        assert outcomes.keys() == {"200"}, outcomes
        assert unit.log().count("which stays open") == 2


def test_what_systemd_hands_to_others_is_left() -> None:
    assert handed_over_socket({}) is None
    others = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "x"}
    environment = {**others, "PATH": "/bin"}
    assert handed_over_socket(environment) is None
    assert environment == {"PATH": "/bin"}
    with pytest.raises(BadSocket, match="systemd passes 2 sockets"):
        handed_over_socket({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"})


def test_a_port_that_is_taken_is_named_with_its_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(DeviceError, match=f"port {port}: .*--router-port"):
            open_port("127.0.0.1", port)
        with pytest.raises(OSError, match=f"port {port}: .*--metrics-port"):
            run(_give_metrics(port))


async def _give_metrics(port: int) -> None:
    async with metrics_port("127.0.0.1", port, bytes):
        pass
