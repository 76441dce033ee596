"""The port of a controller that runs alone."""

import asyncio
import socket
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry

from app.base.errors import PlimsollError
from app.base.settings import Settings
from app.serve.controller_process import controller_metrics
from app.serve.loop_metrics import LoopMetrics
from tests.ports import own_ports

FIRST_PORT = own_ports()


def test_it_shows_the_figures_of_the_loop() -> None:
    async def read() -> str:
        registry, port = CollectorRegistry(), FIRST_PORT
        LoopMetrics(registry)
        async with controller_metrics(Settings(controller_metrics_port=port), registry):
            page = await asyncio.to_thread(
                lambda: urlopen(f"http://127.0.0.1:{port}/metrics").read()
            )
            return str(page, "utf-8")

    assert "# TYPE plimsoll_last_tick_timestamp_seconds gauge" in asyncio.run(read())


def test_a_port_that_is_taken_is_said() -> None:
    async def start(port: int) -> None:
        async with controller_metrics(
            Settings(controller_metrics_port=port), CollectorRegistry()
        ):
            raise AssertionError("it started")

    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(PlimsollError, match="cannot be at"),
    ):
        asyncio.run(start(taken.getsockname()[1]))
