"""The real control plane behind a real socket, with data to look at, for tests with a browser."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import httpx2
from anyio.from_thread import start_blocking_portal
from fastapi import FastAPI
from starlette.testclient import TestClient

from app.base.clock import ManualControlClock
from app.base.settings import Settings
from app.db.base.engine import make_engine
from app.serve.api_process import make_server
from app.serve.plane import make_plane
from tests.integration.api_harness import (
    Api,
    Prepared,
    fill,
    node,
    service,
    with_known_routes,
)
from tests.integration.kept_solver import keep_solver
from tests.integration.measured import fit_here, measured
from tests.integration.model_fleet import ready_replicas
from tests.ports import PORTS, own_ports
from tests.waiting import PATIENCE_S

SERVICES = {"chat": 60, "search": 40, "thumbnails": 20}
"""Requests in a window of two seconds, by service."""

_free_ports: list[int] = []
"""Of this process. The lowest is used again and again: a browser keeps by address what it has loaded."""


@contextmanager
def running_dashboard(
    prepared: Prepared, settings: Callable[[str], Settings] = lambda _: Settings()
) -> Iterator[Api]:
    """The application on a copy of that database, listening; `api.client.base_url` is where.

    `settings` of an application that is reached at that address.
    """
    with prepared.copied() as url, _listening(url, prepared, settings) as api:
        yield api


@contextmanager
def _listening(
    url: str, prepared: Prepared, settings: Callable[[str], Settings]
) -> Iterator[Api]:
    clock = ManualControlClock(prepared.at)
    if not _free_ports:
        first = own_ports()
        _free_ports.extend(range(first, first + PORTS))
    port = min(_free_ports)
    _free_ports.remove(port)
    # Who connects before the server is ready waits in the socket's backlog: one answer says that it is.
    listening = socket.create_server(("127.0.0.1", port))
    address = f"http://127.0.0.1:{port}"
    server = make_server(make_plane(settings(address), url, clock))
    app = with_known_routes(cast(FastAPI, server.config.app))
    thread = threading.Thread(
        target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True
    )
    thread.start()
    try:
        with (
            httpx2.Client(base_url=address, timeout=PATIENCE_S) as client,
            start_blocking_portal() as apart,
        ):
            assert client.get("/livez").status_code == 200
            keep_solver(app)
            engine = make_engine(url, pool_size=2)
            try:
                yield Api(
                    client=cast(TestClient, client),
                    clock=clock,
                    url=url,
                    engine=engine,
                    apart=apart,
                    secrets=dict(prepared.secrets),
                )
            finally:
                apart.call(engine.dispose)
    finally:
        server.handle_stop()
        thread.join(timeout=PATIENCE_S)
        listening.close()
        _free_ports.append(port)


def fill_demo(api: Api) -> None:
    """Two nodes, three services under load, a plan in force and followed, ten minutes of it; a fit of samples."""
    fill(api)
    fill_fits(api)
    api.put("nodes/n2", node("n2"))
    for at, name in enumerate(SERVICES):
        api.put(f"services/{name}", service(name, project=("team-a", "team-b")[at % 2]))
    for sequence in range(1, 11):
        report(api, sequence)
        api.tick()
        api.clock.advance(60.0)
    report(api, 11)


def fill_fits(api: Api) -> None:
    """Twenty samples of the network, up to 3 % off a curve, another one next to a neighbour; and the fit of them."""
    off = [
        {
            **each,
            "latency_ms": float(str(each["latency_ms"])) * (0.97, 1.0, 1.03)[at % 3],
        }
        for at, each in enumerate(measured())
    ]
    beside = {
        **off[1],
        "latency_ms": 12.0,
        "neighbours": [{"network": "resnet50", "batch": 4, "sm_percent": 50}],
    }
    answer = api.call(
        "POST",
        "networks/resnet50/samples",
        {"source": "bench", "samples": [*off, beside]},
    )
    assert answer.status_code == 200, answer.text
    fit_here(api)


def report(api: Api, sequence: int, *, one_late_in: int = 20) -> None:
    """Both nodes say what runs, as the plan in force has it, and what came in; one in `one_late_in` is late."""
    plans = api.get("plans?state=target&limit=1")["items"]
    generation = api.get(f"plans/{plans[0]['id']}")["generation"] if plans else 0
    for name in ("n1", "n2"):
        answer = api.sync(
            name,
            sequence=sequence,
            window_start_s=api.clock.now().timestamp() - 2.0,
            generation=generation or 0,
            services=[
                _service(each, arrivals, one_late_in)
                for each, arrivals in SERVICES.items()
            ]
            if name == "n1"
            else [],
            replicas=ready_replicas(api, name),
        )
        assert answer.status_code == 200, answer.text


def _service(name: str, arrivals: int, one_late_in: int) -> dict[str, object]:
    late = arrivals // one_late_in if name == "search" else 0
    return {
        "service": name,
        "arrivals": arrivals,
        "served": arrivals,
        "in_slo": arrivals - late,
        "latency_buckets": [[20, arrivals - late], *([[40, late]] if late else [])],
    }
