"""How each kind of model server is asked: is it ready, take another batch, take no requests, sleep, how much was done.

    make_adapters(session) -> {"worker": …, "triton": …, "vllm": …, "mlserver": …}

One HTTP session serves all of them; every call has a time limit and every answer a size limit. What the servers'
makers document is the only thing relied on:

    worker    PUT /batch, which takes effect between two batches
    triton    GET /v2/models/S/config, changed, goes to POST /v2/repository/models/S/load (needs explicit mode)
    vllm      --max-num-seqs is fixed for life: needs a restart; POST /sleep and /wake_up, GET /is_sleeping with
              --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1
    mlserver  max_batch_size in model-settings.json of the replica's directory, then POST …/models/S/unload and load
"""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import aiohttp

from agents.base.device import ServerTraits
from agents.processes.templates import Server, WarmUp
from agents.processes.user import read_file, write_file
from agents.replicas.answers import (
    Json,
    ServerRefused,
    ServerUnanswered,
    read_amount,
    read_count,
    read_object,
    reading,
)
from agents.replicas.http_calls import Http
from agents.replicas.server_metrics import read_page, read_server
from agents.replicas.server_names import ServerKind

BatchOutcome: TypeAlias = Literal["applied_live", "reloading", "needs_restart"]

WARM_UP_S = 120.0
"""For one of the first requests, for which libraries compile and tune."""
RELOAD_S = 300.0
"""For a server that answers when it has loaded the network again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where one replica's server is, and as what it knows what it serves."""

    url: str
    served_as: str
    metrics_url: str = ""
    """Empty: it has no metrics that anybody may read."""
    readiness_path: str = ""
    """Empty: the server's own."""
    directory: Path = Path()
    """The replica's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaCounts:
    """Counts since the server's start; None = the server does not tell."""

    requests: int | None = None
    """Finished."""
    failures: int | None = None
    batches: int | None = None
    busy_s: float | None = None
    """In which batches ran."""
    queued: int | None = None
    """Now: that wait."""
    prompt_tokens: int | None = None
    found_tokens: int | None = None
    """The part of them that its cache of prefixes had."""
    answer_tokens: int | None = None
    preemptions: int | None = None
    """How often a request had to give its part of the cache back."""


class Adapter(Protocol):
    """One kind of server. Every method raises ServerUnanswered where the server does not answer as documented."""

    def traits(self, endpoint: Endpoint) -> ServerTraits:
        """What routers need to know of it."""
        ...

    async def is_ready(self, endpoint: Endpoint) -> bool:
        """Whether it takes requests; a server that cannot be reached does not."""
        ...

    async def is_alive(self, endpoint: Endpoint, *, limit_s: float) -> bool:
        """Whether the question for readiness is answered at all, with a no as well, within so long."""
        ...

    async def sm_count(self, endpoint: Endpoint) -> int | None:
        """SMs that its process sees, which under MPS are those it may use; None = it does not tell."""
        ...

    async def apply_batch(self, endpoint: Endpoint, batch: int) -> BatchOutcome:
        """Give it another largest batch. `reloading`: ask for readiness again; `needs_restart`: nothing was changed."""
        ...

    async def drain(self, endpoint: Endpoint) -> None:
        """Tell it to take nothing more; nothing where it knows no such thing."""
        ...

    async def sleep(self, endpoint: Endpoint) -> None:
        """Have it move its weights to the host's memory, and give the GPU's back."""
        ...

    async def wake(self, endpoint: Endpoint) -> None:
        """Have it move them back; it is ready as soon as it says so."""
        ...

    async def is_asleep(self, endpoint: Endpoint) -> bool | None:
        """Whether it has, and has not; None = no answer, as while it does the one or the other."""
        ...

    async def metrics(self, endpoint: Endpoint) -> ReplicaCounts:
        """What it did since its start."""
        ...


def make_adapters(session: aiohttp.ClientSession) -> dict[Server, Adapter]:
    """An adapter for each kind of server."""
    http = Http(session)
    return {
        "worker": WorkerAdapter(http),
        "triton": TritonAdapter(http),
        "vllm": VllmAdapter(http),
        "mlserver": MlserverAdapter(http),
    }


async def warm_up(session: aiohttp.ClientSession, url: str, requests: WarmUp) -> None:
    """Send a replica its first requests, one after the other. Raises ServerUnanswered when one is not answered well."""
    http = Http(session)
    for _ in range(requests.requests):
        await http.demand(
            "POST", url + requests.path, text=requests.body.encode(), limit_s=WARM_UP_S
        )


class _Server:
    """What all servers have in common: one path says whether they take requests, and most tell nothing of SMs."""

    own_path = "/v2/health/ready"
    """Where readiness is asked for unless the template says otherwise; `{served_as}` is filled in."""
    is_binary = True
    """Whether it has the protocol's extension of binary tensors."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def traits(self, endpoint: Endpoint) -> ServerTraits:
        own = self.own_path.replace("{served_as}", endpoint.served_as)
        return ServerTraits(
            ready_path=endpoint.readiness_path or own, is_binary=self.is_binary
        )

    async def is_ready(self, endpoint: Endpoint) -> bool:
        return await self._http.is_fine(self._readiness_url(endpoint))

    async def is_alive(self, endpoint: Endpoint, *, limit_s: float) -> bool:
        return await self._http.is_answered(
            self._readiness_url(endpoint), limit_s=limit_s
        )

    async def sm_count(self, endpoint: Endpoint) -> int | None:  # noqa: ARG002
        return None

    async def sleep(self, endpoint: Endpoint) -> None:
        raise ServerUnanswered(f"{endpoint.served_as} is of a kind that cannot sleep")

    async def wake(self, endpoint: Endpoint) -> None:
        """Nothing: it never sleeps."""

    async def is_asleep(self, endpoint: Endpoint) -> bool | None:  # noqa: ARG002
        return False

    def _readiness_url(self, endpoint: Endpoint) -> str:
        return endpoint.url + self.traits(endpoint).ready_path


class WorkerAdapter(_Server):
    """Our own worker: the batch changes while it runs, and it says how many SMs it sees."""

    async def sm_count(self, endpoint: Endpoint) -> int | None:
        return read_count((await self._status(endpoint)).get("sm_count")) or None

    async def apply_batch(self, endpoint: Endpoint, batch: int) -> BatchOutcome:
        await self._http.demand("PUT", f"{endpoint.url}/batch", body={"batch": batch})
        return "applied_live"

    async def drain(self, endpoint: Endpoint) -> None:
        await self._http.demand("PUT", f"{endpoint.url}/drain")

    async def metrics(self, endpoint: Endpoint) -> ReplicaCounts:
        status = await self._status(endpoint)
        return ReplicaCounts(
            requests=read_count(status.get("requests")),
            batches=read_count(status.get("batches")),
            busy_s=read_amount(status.get("execution_s")),
            queued=read_count(status.get("waiting")),
        )

    async def _status(self, endpoint: Endpoint) -> dict[str, Json]:
        url = f"{endpoint.url}/status"
        return read_object(await self._http.demand("GET", url), url)


class TritonAdapter(_Server):
    """NVIDIA Triton in explicit mode: another batch is another configuration, with which it loads again."""

    own_path = "/v2/models/{served_as}/ready"

    async def apply_batch(self, endpoint: Endpoint, batch: int) -> BatchOutcome:
        url = f"{endpoint.url}/v2/models/{endpoint.served_as}/config"
        config = read_object(await self._http.demand("GET", url), url)
        now = config.get("max_batch_size")
        # A reload takes seconds, in which the replica does not answer.
        if now == batch:
            return "applied_live"
        if not isinstance(now, int) or now < 1:
            raise ServerUnanswered(
                f"{endpoint.served_as} was made without batches: its max_batch_size is no number above 0"
            )
        # What was just shallow enough to be read may be too deep to be written.
        with reading(url):
            changed = json.dumps(_with_batch(config, batch))
        # Triton wants the configuration as a string within its JSON.
        body: Json = {"parameters": {"config": changed}}
        load = f"{endpoint.url}/v2/repository/models/{endpoint.served_as}/load"
        await self._http.demand("POST", load, body=body, limit_s=RELOAD_S)
        return "reloading"

    async def drain(self, endpoint: Endpoint) -> None:
        """Unload: Triton finishes what it has taken and refuses what comes."""
        await self._http.demand(
            "POST",
            f"{endpoint.url}/v2/repository/models/{endpoint.served_as}/unload",
            body={},
        )

    async def metrics(self, endpoint: Endpoint) -> ReplicaCounts:
        return await _counts(self._http, endpoint, "triton")


class VllmAdapter(_Server):
    """vLLM: what a batch may hold is fixed when it starts."""

    own_path = "/health"

    async def apply_batch(self, endpoint: Endpoint, batch: int) -> BatchOutcome:  # noqa: ARG002
        return "needs_restart"

    async def drain(self, endpoint: Endpoint) -> None:
        """Nothing: it finishes what it has when it is asked to stop."""

    async def sleep(self, endpoint: Endpoint) -> None:
        # At level 1 the weights stay in the host's memory; at 2 they would have to be loaded again.
        url = f"{endpoint.url}/sleep?level=1"
        await self._http.demand("POST", url, limit_s=RELOAD_S)

    async def wake(self, endpoint: Endpoint) -> None:
        url = f"{endpoint.url}/wake_up"
        await self._http.demand("POST", url, limit_s=RELOAD_S)

    async def is_asleep(self, endpoint: Endpoint) -> bool | None:
        url = f"{endpoint.url}/is_sleeping"
        try:
            answered = read_object(await self._http.demand("GET", url), url)
        except ServerRefused:
            # One that was started without sleep has no such page.
            return False
        except ServerUnanswered:
            return None
        return answered.get("is_sleeping") is True

    async def metrics(self, endpoint: Endpoint) -> ReplicaCounts:
        return await _counts(self._http, endpoint, "vllm")


class MlserverAdapter(_Server):
    """MLServer: reads its settings again when it is told to load."""

    own_path = "/v2/models/{served_as}/ready"
    # MLServer 1.7.1 lists no extensions, and answers 422 to binary tensors.
    is_binary = False

    async def apply_batch(self, endpoint: Endpoint, batch: int) -> BatchOutcome:
        path = endpoint.directory / "model-settings.json"
        try:
            settings = read_object(read_file(path), str(path))
        except OSError as error:
            raise ServerUnanswered(
                f"{path} cannot be read: the template must write model-settings.json and serve {{directory}}: {error}"
            ) from error
        if settings.get("max_batch_size") == batch:
            return "applied_live"
        # Written first: the server reads the file when it loads.
        with reading(str(path)):
            changed = json.dumps({**settings, "max_batch_size": batch}, indent=2)
        _replace(path, changed)
        # MLServer 1.7.1 makes no batches at all of what is loaded over something loaded.
        for step in ("unload", "load"):
            url = f"{endpoint.url}/v2/repository/models/{endpoint.served_as}/{step}"
            await self._http.demand("POST", url, body={}, limit_s=RELOAD_S)
        return "reloading"

    async def drain(self, endpoint: Endpoint) -> None:
        """Nothing: it finishes what it has when it is asked to stop."""

    async def metrics(self, endpoint: Endpoint) -> ReplicaCounts:
        return await _counts(self._http, endpoint, "mlserver")


async def _counts(http: Http, endpoint: Endpoint, kind: ServerKind) -> ReplicaCounts:
    """What a server's own Prometheus metrics say of what it serves there. Raises ServerUnanswered."""
    answered = await http.demand("GET", endpoint.metrics_url)
    text = answered.decode("utf-8", errors="replace")
    with reading(endpoint.metrics_url):
        # In a thread: a page as long as MAX_ANSWER takes seconds, and requests wait for this loop.
        page = await asyncio.to_thread(read_page, text)
        found = read_server(page, kind, endpoint.served_as)
    return ReplicaCounts(
        requests=read_count(found.served),
        failures=read_count(found.failed),
        batches=read_count(found.batches),
        busy_s=read_amount(found.busy_s),
        queued=read_count(found.waiting),
        prompt_tokens=read_count(found.prompt_tokens),
        found_tokens=read_count(found.found_tokens),
        answer_tokens=read_count(found.generated_tokens),
        preemptions=read_count(found.preemptions),
    )


def _with_batch(config: dict[str, Json], batch: int) -> dict[str, Json]:
    """Triton's configuration with another largest batch; it refuses preferred batches above it."""
    changed = {**config, "max_batch_size": batch}
    dynamic = config.get("dynamic_batching")
    if isinstance(dynamic, dict) and isinstance(
        preferred := dynamic.get("preferred_batch_size"), list
    ):
        fitting: list[Json] = [
            size for size in preferred if isinstance(size, int) and size <= batch
        ]
        changed["dynamic_batching"] = {**dynamic, "preferred_batch_size": fitting}
    return changed


def _replace(path: Path, text: str) -> None:
    """At once, so that a server that reads meanwhile sees the old or the new."""
    try:
        write_file(path, text.encode())
    except OSError as error:
        raise ServerUnanswered(f"{path} cannot be written: {error}") from error
