"""Adapters against servers that answer as the real ones document, over HTTP."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from agents.processes.templates import Server
from agents.replicas.adapters import (
    Adapter,
    Endpoint,
    ReplicaCounts,
    make_adapters,
)
from agents.replicas.answers import ServerUnanswered
from agents.replicas.http_calls import MAX_ANSWER
from tests.agents.fakes.answers import always
from tests.agents.fakes.answers import served as application
from tests.agents.fakes.replicas import in_loop

pytestmark = pytest.mark.integration

TRITON_METRICS = """\
nv_inference_request_success{model="chat",version="1"} 40
nv_inference_request_success{model="other",version="1"} 1000
nv_inference_request_failure{model="chat",reason="REJECTED",version="1"} 2
nv_inference_request_failure{model="chat",reason="BACKEND",version="1"} 1
nv_inference_exec_count{model="chat",version="1"} 10
nv_inference_pending_request_count{model="chat",version="1"} 3
nv_inference_compute_infer_duration_us{model="chat",version="1"} 1500000
"""

VLLM_METRICS = """\
vllm:num_requests_waiting{engine="0",model_name="chat"} 5.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="chat"} 7.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="chat"} 4.0
"""

MLSERVER_METRICS = """\
model_infer_request_success_total{model="chat",version=""} 12.0
model_infer_request_failure_total{model="chat",version=""} 1.0
"""


@dataclass(slots=True, kw_only=True)
class Fake:
    """A server that keeps what it was asked; `batch` is what it works with."""

    metrics: str = ""
    is_ready: bool = True
    batch: int = 4
    config: dict[str, object] = field(default_factory=dict)
    directory: Path = Path()
    control: str = "explicit"
    asked: list[str] = field(default_factory=list)

    def make_app(self) -> web.Application:
        app = web.Application()
        for path in {*SERVERS.values(), "/own/path"}:
            app.router.add_get(path, self._note(self.ready))
        app.router.add_get("/status", self._note(self.status))
        app.router.add_get("/metrics", self._note(self.metrics_page))
        app.router.add_put("/batch", self._note(self.set_batch))
        app.router.add_put("/drain", self._note(self.fine))
        app.router.add_get("/v2/models/chat/config", self._note(self.get_config))
        app.router.add_post("/v2/repository/models/chat/load", self._note(self.load))
        app.router.add_post("/v2/repository/models/chat/unload", self._note(self.fine))
        app.router.add_post("/warm", self._note(self.fine))
        return app

    def _note(
        self, handler: Callable[[web.Request], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def noted(request: web.Request) -> web.Response:
            self.asked.append(f"{request.method} {request.path}")
            return await handler(request)

        return noted

    async def fine(self, _: web.Request) -> web.Response:
        return web.Response()

    async def ready(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_ready else 400)

    async def metrics_page(self, _: web.Request) -> web.Response:
        return web.Response(text=self.metrics)

    async def status(self, _: web.Request) -> web.Response:
        counts = {"requests": 40, "batches": 10, "execution_s": 1.5, "waiting": 3}
        return web.json_response({"sm_count": 66, "batch": self.batch, **counts})

    async def set_batch(self, request: web.Request) -> web.Response:
        self.batch = (await request.json())["batch"]
        if self.batch > 1024:
            return web.Response(status=409, text="above 1024")
        return web.json_response({"batch": self.batch})

    async def get_config(self, _: web.Request) -> web.Response:
        return web.json_response(self.config)

    async def load(self, request: web.Request) -> web.Response:
        """Triton with a configuration in the body, MLServer with one on disk."""
        if self.control != "explicit":
            return web.Response(
                text="explicit load is not allowed if polling", status=503
            )
        body = await request.json()
        if "parameters" in body:
            self.config = json.loads(body["parameters"]["config"])
            dynamic = self.config.get("dynamic_batching", {})
            assert isinstance(dynamic, dict)
            sizes = dynamic.get("preferred_batch_size", [])
            if any(size > self.config["max_batch_size"] for size in sizes):
                return web.Response(text="preferred batch size too large", status=400)
        else:
            settings = json.loads((self.directory / "model-settings.json").read_text())
            self.batch = settings["max_batch_size"]
        return web.Response()


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@asynccontextmanager
async def served(
    fake: Fake, server: Server, *, readiness_path: str = "", directory: Path = Path()
) -> AsyncIterator[tuple[Adapter, Endpoint]]:
    async with application(fake.make_app()) as url, aiohttp.ClientSession() as session:
        yield (
            make_adapters(session)[server],
            Endpoint(
                url=url,
                served_as="chat",
                metrics_url=f"{url}/metrics",
                readiness_path=readiness_path,
                directory=directory,
            ),
        )


SERVERS: dict[Server, str] = {
    "worker": "/v2/health/ready",
    "triton": "/v2/models/chat/ready",
    "vllm": "/health",
    "mlserver": "/v2/models/chat/ready",
}
"""Where each tells that it is ready."""


@pytest.mark.parametrize("server", SERVERS)
@in_loop
async def test_each_server_is_asked_for_readiness_where_it_tells(
    server: Server,
) -> None:
    fake = Fake()
    async with served(fake, server) as (adapter, endpoint):
        assert await adapter.is_ready(endpoint)
        fake.is_ready = False
        assert not await adapter.is_ready(endpoint)
        assert fake.asked == [f"GET {SERVERS[server]}"] * 2
        # Routers ask at the same place.
        traits = adapter.traits(endpoint)
        assert traits.ready_path == SERVERS[server]
        assert traits.is_binary == (server != "mlserver")
        # Only our own tells its SMs.
        assert await adapter.sm_count(endpoint) == (66 if server == "worker" else None)
    # One that is not there is not ready.
    async with aiohttp.ClientSession() as session:
        adapter = make_adapters(session)[server]
        assert not await adapter.is_ready(endpoint)
        with pytest.raises(ServerUnanswered, match="has no answer"):
            await adapter.metrics(endpoint)
    # A template may name another place.
    fake = Fake()
    async with served(fake, server, readiness_path="/own/path") as (adapter, endpoint):
        assert await adapter.is_ready(endpoint)
    assert fake.asked == ["GET /own/path"]


@pytest.mark.parametrize(
    ("server", "page", "expected"),
    [
        ("worker", "", ReplicaCounts(requests=40, batches=10, busy_s=1.5, queued=3)),
        # Failures 2 + 1; 1,500,000 µs = 1.5 s; the other network's 1000 requests are not counted.
        (
            "triton",
            TRITON_METRICS,
            ReplicaCounts(requests=40, failures=3, batches=10, busy_s=1.5, queued=3),
        ),
        ("vllm", VLLM_METRICS, ReplicaCounts(requests=11, queued=5)),
        ("mlserver", MLSERVER_METRICS, ReplicaCounts(requests=12, failures=1)),
        ("triton", "", ReplicaCounts()),
    ],
)
@in_loop
async def test_metrics_are_read_and_what_is_not_told_is_none(
    server: Server, page: str, expected: ReplicaCounts
) -> None:
    async with served(Fake(metrics=page), server) as (adapter, endpoint):
        assert await adapter.metrics(endpoint) == expected


@pytest.mark.parametrize("page", ["}{ 5", "a" * (MAX_ANSWER + 10)])
@in_loop
async def test_metrics_that_are_none_are_refused(page: str) -> None:
    async with served(Fake(metrics=page), "vllm") as (adapter, endpoint):
        with pytest.raises(ServerUnanswered, match="holds no Prometheus metrics"):
            await adapter.metrics(endpoint)


@in_loop
async def test_triton_loads_with_nothing_but_the_batch_changed() -> None:
    dynamic = {"preferred_batch_size": [4, 8, 16], "max_queue_delay_microseconds": 100}
    before = {
        "name": "chat",
        "platform": "tensorrt_plan",
        "max_batch_size": 16,
        "dynamic_batching": dynamic,
        "instance_group": [{"count": 1, "kind": "KIND_GPU"}],
    }
    fake = Fake(config=dict(before))
    async with served(fake, "triton") as (adapter, endpoint):
        assert await adapter.apply_batch(endpoint, 8) == "reloading"
        # Of the preferred sizes 16 does not fit into 8; Triton would refuse it.
        changed = {**dynamic, "preferred_batch_size": [4, 8]}
        after = {**before, "max_batch_size": 8, "dynamic_batching": changed}
        assert fake.config == after
        # It has it already.
        assert await adapter.apply_batch(endpoint, 8) == "applied_live"
        assert fake.asked.count("POST /v2/repository/models/chat/load") == 1
        await adapter.drain(endpoint)
    assert fake.asked[-1] == "POST /v2/repository/models/chat/unload"


@pytest.mark.parametrize(
    ("fake", "words"),
    [
        (Fake(config={"max_batch_size": 16}, control="poll"), "503: .*not allowed if"),
        (Fake(config={"max_batch_size": 0}), "made without batches"),
        (Fake(), "made without batches"),
    ],
)
@in_loop
async def test_triton_that_takes_no_batch_says_so(fake: Fake, words: str) -> None:
    async with served(fake, "triton") as (adapter, endpoint):
        with pytest.raises(ServerUnanswered, match=words):
            await adapter.apply_batch(endpoint, 8)


@in_loop
async def test_mlserver_reads_its_changed_settings(tmp_path: Path) -> None:
    settings = {"name": "chat", "implementation": "x.Y", "max_batch_size": 4}
    path = tmp_path / "model-settings.json"
    path.write_text(json.dumps(settings))
    fake = Fake(directory=tmp_path)
    async with served(fake, "mlserver", directory=tmp_path) as (adapter, endpoint):
        assert await adapter.apply_batch(endpoint, 16) == "reloading"
        assert fake.batch == 16
        # What is loaded over something loaded, MLServer 1.7.1 serves without batches.
        assert [each.rpartition("/")[2] for each in fake.asked] == ["unload", "load"]
        assert json.loads(path.read_text()) == {**settings, "max_batch_size": 16}
        assert await adapter.apply_batch(endpoint, 16) == "applied_live"
    assert names(tmp_path) == ["model-settings.json"], "nothing else is left there"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "must write model-settings.json"),
        ("[", "is not JSON"),
        ("[]", "is no JSON object"),
    ],
)
@in_loop
async def test_mlserver_without_readable_settings_says_so(
    tmp_path: Path, text: str | None, words: str
) -> None:
    if text is not None:
        (tmp_path / "model-settings.json").write_text(text)
    async with served(Fake(), "mlserver", directory=tmp_path) as (adapter, endpoint):
        with pytest.raises(ServerUnanswered, match=words):
            await adapter.apply_batch(endpoint, 16)


@in_loop
async def test_no_answer_does_not_say_that_a_server_is_awake() -> None:
    async with served(Fake(), "vllm") as (adapter, endpoint):
        assert await adapter.is_asleep(endpoint) is False, "it has no such page"
    async with aiohttp.ClientSession() as session:
        assert await make_adapters(session)["vllm"].is_asleep(endpoint) is None


@in_loop
async def test_redirects_lead_nowhere() -> None:
    """A worker is on this machine; what it says must not send the agent elsewhere."""
    fake = Fake()
    async with (
        served(fake, "vllm") as (adapter, there),
        always(b"", 302, {"Location": f"{there.url}/health"}) as url,
    ):
        endpoint = Endpoint(url=url, served_as="chat", readiness_path="/moved")
        assert not await adapter.is_ready(endpoint)
    assert fake.asked == []
