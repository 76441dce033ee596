"""`port-forward`: bytes go both ways between a port of this machine and where the API says that requests go."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest

from tests.app.cli.fake_api import FakeApi, Json
from tests.app.cli.served_api import served
from tests.app.runner import cli, interruptible
from tests.waiting import PATIENCE_S

INFER = "v2/models/chat/infer"
PROGRAM = f"""
from app.cli.main import main
from app.cli.objects import port_forward

port_forward.CONNECT_S = {PATIENCE_S}
main()
"""
"""Where the machine stands still, a connection takes as long as tests wait."""


def endpoints(url: str | None) -> Json:
    return {"service": "chat", "url": url, "gateway": None, "nodes": []}


@contextmanager
def forwarding(control_plane: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The running command, and the address that it says requests go to."""
    with interruptible():
        process = subprocess.Popen(
            [
                *(sys.executable, "-c", PROGRAM),
                *("port-forward", "service/chat", "0"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PLIMSOLL_URL": control_plane,
                "PLIMSOLL_TOKEN": "plim_x",
            },
        )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith("Forwarding from 127.0.0.1:")
        yield process, process.stdout.readline().split()[-1]
    finally:
        process.kill()
        process.communicate()


def test_requests_to_the_port_come_to_the_node_until_it_is_interrupted() -> None:
    node = FakeApi(answers={f"POST /{INFER}": {"outputs": ["x" * 200_000]}})
    with served(node) as router:
        api = FakeApi(
            answers={"GET services/chat/endpoints": endpoints(f"{router}/{INFER}")}
        )
        with served(api) as url, forwarding(url) as (process, address):
            assert address.endswith(f"/{INFER}")
            body = {"inputs": ["y" * 300_000]}
            with httpx2.Client(timeout=PATIENCE_S, trust_env=False) as client:
                for _ in range(3):
                    answer = client.post(address, json=body)
                    assert answer.json() == {"outputs": ["x" * 200_000]}
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
    assert node.sent("POST") == [body] * 3


def test_a_node_that_is_not_there_ends_the_connection_and_not_the_command() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    where = endpoints(f"http://127.0.0.1:{port}/{INFER}")
    api = FakeApi(answers={"GET services/chat/endpoints": where})
    with served(api) as url, forwarding(url) as (process, address):
        for _ in range(2):
            with pytest.raises(httpx2.TransportError):
                httpx2.post(address, json={}, timeout=PATIENCE_S, trust_env=False)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "a connection was not forwarded: " in err


def test_a_service_that_nobody_serves_says_what_to_look_at() -> None:
    api = FakeApi(answers={"GET services/chat/endpoints": endpoints(None)})
    result = cli("port-forward service/chat 0", api=api)
    assert (result.code, result.out) == (1, "")
    assert "no node takes the requests of service/chat" in result.err
    assert "plimsoll rollout status service/chat" in result.err


@pytest.mark.parametrize(
    "arguments", [("node/n1",), ("chat",), ("service/chat", "70000")]
)
def test_wrong_usage_asks_nobody(arguments: tuple[str, ...]) -> None:
    api = FakeApi()
    assert cli("port-forward", *arguments, api=api).code == 2
    assert api.requests == []


def test_a_port_that_is_taken_is_said() -> None:
    where = endpoints(f"https://gateway.example.com/{INFER}")
    api = FakeApi(answers={"GET services/chat/endpoints": where})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = cli("port-forward service/chat", port, api=api)
    assert (result.code, result.out) == (1, "")
    assert f"cannot listen on 127.0.0.1:{port}: " in result.err
    assert "0 for any free one" in result.err
