"""What tests of the worker share: an engine that waits for the test, a replica behind real HTTP, and real processes."""

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import (
    AsyncIterator,
    Iterator,
    Sequence,
)
from dataclasses import dataclass, field, replace
from typing import TypeVar

import aiohttp
import msgspec
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from agents.serving.batching import BatchLimits
from agents.serving.engines.engine import DeviceFacts, Signature
from agents.serving.engines.errors import EngineFailed
from agents.serving.engines.tensors import Tensor, Tensors, pack_numbers
from agents.serving.metrics import WorkerMetrics
from agents.serving.replica import ServedReplica, WorkerSettings
from agents.serving.server import MAX_HELD, make_app
from tests.waiting import PATIENCE_S, eventually

T = TypeVar("T")
FOR_EVER_MS = 1000.0 * 100.0 * PATIENCE_S
"""A delay that no test lives to see."""


@dataclass(slots=True)
class GatedEngine:
    """Gives its inputs back; each batch waits until the test lets it go."""

    platform: str = "gated"
    batches: list[int] = field(default_factory=list)
    """Rows of every batch that began."""
    calls: list[str] = field(default_factory=list)
    failure: Exception | None = None
    signature: Signature = field(default_factory=Signature)
    is_open: bool = False
    outputs_rows: int | None = None
    """Rows of the outputs, where a test wants a wrong number."""
    _gate: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def load(self) -> Signature:
        self.calls.append("load")
        return self.signature

    def warm_up(self, batch: int) -> None:
        self.calls.append(f"warm up {batch}")

    def run(self, inputs: Tensors) -> Tensors:
        self.batches.append(inputs[0].rows)
        if not self.is_open and not self._gate.acquire(timeout=PATIENCE_S):
            raise AssertionError("the test never let this batch go")
        if self.failure is not None:
            raise self.failure
        if self.calls[-1:] == ["offload"]:
            raise EngineFailed("a batch came after the memory had gone")
        if self.outputs_rows is not None:
            return tuple(
                replace(each, shape=(self.outputs_rows, *each.shape[1:]))
                for each in inputs
            )
        return inputs

    def facts(self) -> DeviceFacts:
        return DeviceFacts(device="gated:0", sm_count=66, memory_mib=10.0)

    def offload(self) -> None:
        self.calls.append("offload")
        if self.failure is not None:
            raise self.failure

    def resume(self) -> None:
        self.calls.append("resume")

    def release(self, batches: int = 1) -> None:
        """Let `batches` batches end."""
        self._gate.release(batches)

    def open(self) -> None:
        """Let all batches end from now on."""
        self.is_open = True
        self._gate.release(1)


def fp32(*numbers: float, name: str = "x") -> Tensor:
    """One row for each number."""
    data = pack_numbers("FP32", list(numbers))
    return Tensor(name=name, datatype="FP32", shape=(len(numbers),), data=data)


def body(*numbers: float) -> dict[str, object]:
    """A request of one row for each number."""
    return {
        "inputs": [
            {
                "name": "x",
                "shape": [len(numbers)],
                "datatype": "FP32",
                "data": list(numbers),
            }
        ]
    }


@dataclass(slots=True, kw_only=True)
class Reply:
    """One answer over HTTP."""

    status: int
    headers: "dict[str, str]"
    raw: bytes

    @property
    def json(self) -> dict[str, object]:
        return msgspec.json.decode(self.raw, type=dict[str, object])

    @property
    def numbers(self) -> list[float]:
        """The data of the only output."""
        (output,) = self.decoded.outputs
        return output.data

    @property
    def decoded(self) -> "InferReply":
        return msgspec.json.decode(self.raw, type=InferReply)

    @property
    def batch(self) -> int:
        return self.decoded.parameters["batch"]

    @property
    def batch_number(self) -> int:
        return self.decoded.parameters["batch_number"]


class OutputReply(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    data: list[float] = []
    parameters: dict[str, int] = {}


class InferReply(msgspec.Struct):
    model_name: str
    outputs: list[OutputReply]
    id: str = ""
    parameters: dict[str, int] = {}


@dataclass(slots=True)
class Client:
    """Talks to one worker."""

    url: str
    session: aiohttp.ClientSession

    async def call(
        self,
        method: str,
        path: str,
        json: object = None,
        *,
        data: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> Reply:
        sent = data if json is None else msgspec.json.encode(json)
        async with self.session.request(
            method, self.url + path, data=sent, headers=headers
        ) as answer:
            return Reply(
                status=answer.status,
                headers=dict(answer.headers),
                raw=await answer.read(),
            )

    async def infer(self, *numbers: float, deadline_ms: float | None = None) -> Reply:
        headers = (
            {} if deadline_ms is None else {"Plimsoll-Deadline-Ms": f"{deadline_ms:g}"}
        )
        return await self.call(
            "POST", "/v2/models/chat/infer", body(*numbers), headers=headers
        )

    def send(
        self, *numbers: float, deadline_ms: float | None = None
    ) -> "asyncio.Task[Reply]":
        """A request whose answer is waited for later."""
        return asyncio.create_task(self.infer(*numbers, deadline_ms=deadline_ms))

    async def count(self, field_name: str) -> int:
        """A number of the status."""
        found = (await self.call("GET", "/status")).json[field_name]
        assert isinstance(found, int)
        return found

    async def series(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """Every series of /metrics by name and labels."""
        text = (await self.call("GET", "/metrics")).raw.decode()
        families = text_string_to_metric_families(text)
        return {
            (each.name, tuple(sorted(each.labels.items()))): each.value
            for one in families
            for each in one.samples
        }


@contextlib.asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        yield Client(url, session)


@contextlib.asynccontextmanager
async def serving(
    engine: GatedEngine,
    *,
    batch: int = 4,
    delay_ms: float = 0.0,
    queue: int = 64,
    environment: dict[str, str] | None = None,
    largest_held: int = MAX_HELD,
) -> AsyncIterator[Client]:
    """A ready replica of `chat` behind real HTTP, in this process."""
    limits = BatchLimits(batch=batch, delay_ms=delay_ms)
    settings = WorkerSettings(
        service="chat", limits=limits, batch_limit=16, queue_limit=queue
    )
    replica = ServedReplica(
        settings, engine, metrics=WorkerMetrics(), environment=environment or {}
    )
    runner = web.AppRunner(
        make_app(replica, largest_held=largest_held),
        access_log=None,
        shutdown_timeout=1.0,
    )
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    running = asyncio.create_task(replica.run())
    try:
        await eventually(lambda: replica.state != "loading")
        async with client_of(f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
            yield client
    finally:
        running.cancel()
        engine.open()
        await asyncio.wait({running})
        await runner.cleanup()


@dataclass(slots=True)
class Worker:
    """A worker as a process of its own."""

    process: "subprocess.Popen[str]"
    url: str
    pid: int


@contextlib.contextmanager
def worker(
    *arguments: str,
    environment: dict[str, str] | None = None,
    program: tuple[str, ...] = ("-m", "agents.serving"),
) -> Iterator[Worker]:
    """Start `python -m agents.serving`; it listens when this yields, and is killed at the end if it still runs."""
    command = [
        sys.executable,
        *program,
        "--service",
        "chat",
        "--log-level",
        "warning",
        *arguments,
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        line = msgspec.json.decode(process.stdout.readline(), type=dict[str, str | int])
        yield Worker(process, str(line["url"]), int(line["pid"]))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def ready(client: Client) -> Client:
    """The client, when its worker takes requests."""

    async def is_ready() -> bool:
        return (await client.call("GET", "/v2/health/ready")).status == 200

    await eventually(is_ready)
    return client


async def all_of(tasks: "Sequence[asyncio.Task[Reply]]") -> list[Reply]:
    return list(await asyncio.gather(*tasks))
