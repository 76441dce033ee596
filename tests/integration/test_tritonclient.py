"""NVIDIA's client of the Open Inference Protocol against nodes: both routers, with the fake worker and the real one.

    client ──▶ agents.router, or HAProxy ──▶ agents.fake.worker (as of `plimsoll up`), or `plimsoll worker`

Nothing is told to the client but the address: binary tensors, paths with versions and errors are as it wants them.
"""

import asyncio
import itertools
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from agents.base.clock import ScaledClock
from agents.base.protocol import ServiceReading
from agents.fake.worker import FakeWorker
from agents.router.haproxy.config import HaProxySettings
from agents.router.haproxy.router import HaProxyRouter, open_haproxy
from agents.router.haproxy.supervised import PLACES
from agents.router.router import MAX_BODY, Router
from tests.agents.harness import client_of, ready, worker
from tests.agents.router.conftest import patient_haproxy as patient_haproxy
from tests.agents.router_harness import a_route, read_all, served
from tests.ports import a_free_port
from tests.waiting import run

pytestmark = pytest.mark.integration

MIB = 1024 * 1024
HAS_HAPROXY = (
    shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:{PLACES}") is not None
)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Which router stands before which worker."""

    router: str
    worker: str


BY_DAY = (("own", "fake"), ("haproxy", "real"))
"""Each router and each worker once."""

KINDS = [
    pytest.param(
        Kind(router=router, worker=worker_kind),
        id=f"{router}-{worker_kind}",
        marks=[
            pytest.mark.skipif(
                router == "haproxy" and not HAS_HAPROXY,
                reason="haproxy is not installed",
            ),
            *[pytest.mark.thorough] * ((router, worker_kind) not in BY_DAY),
        ],
    )
    for router in ("own", "haproxy")
    for worker_kind in ("fake", "real")
]
on_each_kind = pytest.mark.parametrize("kind", KINDS)


@asynccontextmanager
async def a_worker(kind: str) -> AsyncIterator[str]:
    """The address of a replica of `chat` that answers each row with its sum."""
    if kind == "fake":
        fake = FakeWorker(
            "chat", batch=8, execution_s=lambda _: 0.001, clock=ScaledClock()
        )
        async with served(fake.make_app()) as url:
            yield url
        return
    with worker("--times-ms", "1:1", "--batch", "8") as process:
        async with client_of(process.url) as client:
            await ready(client)
        yield process.url


@asynccontextmanager
async def a_router(
    kind: str, folder: Path
) -> AsyncIterator[tuple[Router | HaProxyRouter, str]]:
    if kind == "own":
        router = Router()
        async with served(router.make_app()) as url:
            yield router, url
        return
    port = a_free_port()
    settings = HaProxySettings(port=port, folder=folder / "h", services=3, replicas=2)
    haproxy = await open_haproxy(settings)
    try:
        yield haproxy, f"http://127.0.0.1:{port}"
    finally:
        await haproxy.close(keep=False)


Scenario = Callable[[triton.InferenceServerClient], None]


def on_node(kind: Kind, folder: Path, scenario: Scenario) -> list[ServiceReading]:
    """Run it against a node with a replica of `chat` and none of `idle`; what its router counted."""

    def with_client(url: str) -> None:
        # In one thread from its making to its end, as its pool of connections asks for.
        with triton.InferenceServerClient(url.removeprefix("http://")) as client:
            scenario(client)

    async def work() -> list[ServiceReading]:
        async with AsyncExitStack() as stack:
            replica_url = await stack.enter_async_context(a_worker(kind.worker))
            router, url = await stack.enter_async_context(a_router(kind.router, folder))
            routes = (a_route(("a", 1.0)), a_route(service="idle"))
            await router.switch_routes(routes, {"a": replica_url})
            await asyncio.to_thread(with_client, url)
            return await read_all(router)

    return run(work())


def an_input(
    values: NDArray[np.generic], *, datatype: str = "FP32", is_binary: bool = True
) -> triton.InferInput:
    tensor = triton.InferInput("x", list(values.shape), datatype)
    tensor.set_data_from_numpy(values, binary_data=is_binary)
    return tensor


def rows(count: int, length: int) -> NDArray[np.float32]:
    """Small integers, so that sums of any length are exact."""
    numbers = np.arange(count * length, dtype=np.float32) % 4.0
    return numbers.reshape(count, length)


@on_each_kind
def test_health_and_metadata(kind: Kind, tmp_path: Path) -> None:
    def scenario(client: triton.InferenceServerClient) -> None:
        assert client.is_server_live()
        assert client.is_server_ready()
        server = client.get_server_metadata()
        assert server["name"] == "plimsoll-router"
        assert "binary_tensor_data" in server["extensions"]
        assert client.is_model_ready("chat")
        assert client.is_model_ready("chat", "1")
        assert not client.is_model_ready("chat", "2")
        assert not client.is_model_ready("idle")
        assert not client.is_model_ready("nobody")
        network = client.get_model_metadata("chat")
        assert (network["name"], network["versions"]) == ("chat", ["1"])
        assert client.get_model_metadata("chat", "1") == network

    chat, idle = on_node(kind, tmp_path, scenario)
    # A client that only asks is no demand.
    assert (chat.arrivals, idle.arrivals) == (0, 0)


@on_each_kind
def test_inference_in_each_form_and_compressed(kind: Kind, tmp_path: Path) -> None:
    def scenario(client: triton.InferenceServerClient) -> None:
        values = rows(2, 3)
        for version, is_binary_input, is_binary_output in itertools.product(
            ("", "1"), (True, False), (True, False)
        ):
            wanted = triton.InferRequestedOutput("x", binary_data=is_binary_output)
            answer = client.infer(
                "chat",
                [an_input(values, is_binary=is_binary_input)],
                model_version=version,
                outputs=[wanted],
                request_id="mine",
            )
            np.testing.assert_array_equal(answer.as_numpy("x"), values.sum(axis=1))
            assert answer.get_response()["id"] == "mine"
        many = rows(1, 5000)
        for algorithm in ("gzip", "deflate"):
            answer = client.infer(
                "chat",
                [an_input(many)],
                request_compression_algorithm=algorithm,
                response_compression_algorithm=algorithm,
            )
            np.testing.assert_array_equal(answer.as_numpy("x"), many.sum(axis=1))

    chat, _ = on_node(kind, tmp_path, scenario)
    assert (chat.arrivals, chat.served, chat.in_slo) == (10, 10, 10)


@on_each_kind
def test_large_requests_and_those_that_are_too_large(
    kind: Kind, tmp_path: Path
) -> None:
    def scenario(client: triton.InferenceServerClient) -> None:
        values = rows(2, MIB)
        assert values.nbytes == 8 * MIB
        answer = client.infer("chat", [an_input(values)])
        np.testing.assert_array_equal(answer.as_numpy("x"), values.sum(axis=1))
        too_large = np.zeros((1, MAX_BODY // 4), dtype=np.float32)
        with pytest.raises(
            InferenceServerException, match="at most 67108864 bytes"
        ) as told:
            client.infer("chat", [an_input(too_large)])
        assert told.value.status() == "413"
        # It is the request that was refused, not the client.
        client.infer("chat", [an_input(rows(1, 1))])

    on_node(kind, tmp_path, scenario)


@on_each_kind
def test_what_cannot_be_served_raises_what_the_node_said(
    kind: Kind, tmp_path: Path
) -> None:
    def refusal(ask: Callable[[], object]) -> tuple[str, str]:
        with pytest.raises(InferenceServerException) as told:
            ask()
        return told.value.status(), told.value.message()

    def scenario(client: triton.InferenceServerClient) -> None:
        good = [an_input(rows(1, 3))]
        status, text = refusal(lambda: client.infer("nobody", good))
        assert (status, "this node has no" in text) == ("404", True)
        status, text = refusal(lambda: client.infer("chat", good, model_version="7"))
        assert (status, "chat has no version 7" in text) == ("404", True)
        status, text = refusal(lambda: client.get_model_metadata("chat", "7"))
        assert (status, "chat has no version 7" in text) == ("404", True)
        status, text = refusal(lambda: client.get_model_metadata("idle"))
        assert (status, "has no ready replica" in text) == ("503", True)
        status, text = refusal(lambda: client.get_model_config("chat"))
        assert (status, "GET /v2/models/chat/config" in text) == ("404", True)
        status, text = refusal(client.get_model_repository_index)
        assert status == "404" and "an exception occurred" not in text
        words = np.array([["a"]], dtype=np.object_)
        strings = [an_input(words, datatype="BYTES")]
        status, text = refusal(lambda: client.infer("chat", strings))
        assert (status, "datatype 'BYTES' is not served" in text) == ("400", True)
        # Its own check is passed by; the bytes are those of another shape.
        good[0].set_shape([1, 4])
        status, text = refusal(lambda: client.infer("chat", good))
        assert (status, "shape [1, 4] of FP32 needs 16" in text) == ("400", True)

    on_node(kind, tmp_path, scenario)
