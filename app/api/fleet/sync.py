"""Sync: an agent's observation up, its newest command down; one request per window and node.

The answer comes after the observation is durable. With `wait_s` the request stays open until a newer command is
there. A replayed or reordered observation changes nothing and is acknowledged like a new one.
"""

import re
from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import Query, Request
from msgspec import UNSET, UnsetType, structs
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from agents.base.protocol import (
    TIME_HEADER,
    LogRequest,
    NodeCommand,
    Observation,
    SyncReply,
)
from agents.base.version import READING_FIELDS, TAKES_HEADER, taken, takes
from app.api.fleet.observations import MAX_OBSERVATION_BYTES, decode_observation
from app.api.http.answers import problems
from app.api.http.auth import AGENT, Agent
from app.api.http.body import read_body, resource_router, wire_body
from app.api.http.errors import MalformedBody
from app.api.http.known_names import check_gpu_types
from app.api.http.parts import Context
from app.base.errors import InvalidRequest, NotFound, Unavailable
from app.db.base.transaction import Connection, lock_object, translated
from app.db.fleet import acquittals, nodes
from app.db.operations import events
from app.db.reports.endpoints import (
    load_carriers,
    load_resting,
    services_ready_elsewhere,
)
from app.manifests.parts import Name
from app.store.store import AuditEvent

router = resource_router("nodes", prefix="/nodes")

MAX_WAIT_S = 30.0
CLOCK_SKEW_LIMIT_S = 60.0
"""An agent whose windows end so far from now has a wrong clock, or sends what it kept while it was cut off."""

SLOWEST_REQUEST_S = 15.0
"""Agents give a request up after ten seconds: one that says it is older, or not sent yet, has another clock."""
_TIME = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")

SKEW_HEADER = "Plimsoll-Clock-Skew-Seconds"

_encoder = msgspec.json.Encoder()

_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The observation is durable",
        "content": {
            "application/json": {
                "schema": {"$ref": f"#/components/schemas/{SyncReply.__name__}"}
            }
        },
        "headers": {
            TAKES_HEADER: {
                "description": "Fields of a service's reading that earlier control planes refused",
                "schema": {"type": "string"},
            },
            SKEW_HEADER: {
                "description": "Set when the window's end is far from now; positive: the agent's clock is ahead",
                "schema": {"type": "number"},
            },
        },
    }
}


@router.post(
    "/{name}/sync",
    response_class=Response,
    openapi_extra=wire_body(Observation),
    responses=problems(400, 404, 413) | _ANSWER,
)
async def sync_node(
    context: Agent,
    name: Name,
    request: Request,
    wait_s: Annotated[
        float,
        Query(
            ge=0,
            le=MAX_WAIT_S,
            allow_inf_nan=False,
            description="Seconds to wait for a newer command",
        ),
    ] = 0.0,
) -> Response:
    """Report one window of a node and get its newest command. A node that is not known yet registers itself."""
    return await _answer(context, request, name, wait_s)


class QuickSync(Route):
    """Takes the syncs of well-behaved agents before any other route is tried; all others go to `sync_node`.

    A thousand agents a second all come here, and FastAPI's routing and dependencies cost more than the answer.
    """

    def __init__(self, prefix: str) -> None:
        super().__init__(f"{prefix}/nodes/{{name}}/sync", _quick_sync, methods=["POST"])
        # The same rule as `Name`: what it lets through needs no further check.
        self._path = re.compile(
            rf"{re.escape(prefix)}/nodes/([a-z0-9](?:[-a-z0-9]{{0,61}}[a-z0-9])?)/sync"
        )

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether it is a POST with a valid name and no query but a plain `wait_s`."""
        if scope["type"] != "http" or scope["method"] != "POST":
            return Match.NONE, {}
        path = self._path.fullmatch(scope["path"])
        query = _QUICK_QUERY.fullmatch(scope["query_string"])
        # Anything unusual goes to `sync`, which explains what is wrong with it.
        if path is None or query is None or float(query[1] or 0.0) > MAX_WAIT_S:
            return Match.NONE, {}
        # Where FastAPI would put them, so that one endpoint serves both ways.
        params = {"name": path[1], "wait_s": float(query[1] or 0.0)}
        return Match.FULL, {
            "endpoint": self.endpoint,
            "path_params": params,
            "route": self,
        }


_TAKES = {TAKES_HEADER: takes(READING_FIELDS)}
_QUICK_QUERY = re.compile(rb"(?:wait_s=([0-9]{1,3}(?:\.[0-9]{1,9})?))?")


async def _quick_sync(request: Request) -> Response:
    # The dependency that checks it for `sync` does not run here.
    context = AGENT.check(request)
    params = request.scope["path_params"]
    return await _answer(context, request, params["name"], params["wait_s"])


async def _answer(
    context: Context, request: Request, name: str, wait_s: float
) -> Response:
    context.require_node(name)
    body = await read_body(request, MAX_OBSERVATION_BYTES)
    try:
        observation = decode_observation(body, name)
    except (InvalidRequest, MalformedBody):
        context.parts.metrics.observations.labels("refused").inc()
        raise
    off_s = _off_s(request, context)
    # Moved to this clock before it is stored: all that reads windows compares them with `now`.
    observation = structs.replace(
        observation, window_start_s=max(0.0, observation.window_start_s - off_s)
    )
    skew_s = await _note_clock(context, observation, off_s)
    # Durable before the answer: the agent drops from its outbox what is acknowledged.
    acknowledged = await _ingest(context, observation)
    await context.parts.agent_addresses.note(
        context.parts.sync_engine, observation.node, request
    )
    command = await _command(context, observation, wait_s)
    ready_elsewhere = await _ready_elsewhere(context, observation)
    carriers = await _carriers(context, request, observation, ready_elsewhere)
    reply = SyncReply(
        boot=observation.boot,
        acknowledged=acknowledged,
        server_time_s=context.now().timestamp(),
        command=command,
        lease=context.parts.lease,
        ready_elsewhere=ready_elsewhere,
        carriers=carriers,
        logs=await _asked_logs(context, request, observation) or UNSET,
        acquitted=await _acquitted(context, request, observation) or UNSET,
    )
    if command is not None:
        context.parts.metrics.commands.inc()
    headers = dict(_TAKES)
    if skew_s is not None:
        headers[SKEW_HEADER] = f"{skew_s:.1f}"
    return Response(
        _encoder.encode(reply), media_type="application/json", headers=headers
    )


async def _ingest(context: Context, observation: Observation) -> int:
    """The acknowledged sequence number. Registers a node that was unknown. Raises Unavailable, InvalidRequest."""
    results = context.parts.metrics.observations
    try:
        try:
            acknowledged = await context.parts.ingest.add(observation)
        # Looked up only when it fails: of thousands of reports one is a node's first.
        except NotFound:
            await _register(context, observation)
            acknowledged = await context.parts.ingest.add(observation)
    except Unavailable:
        # The agent keeps the observation and sends it again, so that it is late and not lost.
        results.labels("deferred").inc()
        raise
    except InvalidRequest:
        # The agent drops it: it could not be kept.
        results.labels("refused").inc()
        raise
    results.labels("durable").inc()
    return acknowledged


async def _command(
    context: Context, observation: Observation, wait_s: float
) -> NodeCommand | None:
    commands, clock = context.parts.commands, context.parts.clock
    with translated():
        # Without a wait there is nothing to register among those that wait.
        if wait_s == 0.0:
            return await commands.command_for(observation.node, observation.generation)
        return await commands.wait_for(
            observation.node, observation.generation, lambda: clock.sleep(wait_s)
        )


async def _ready_elsewhere(
    context: Context, observation: Observation
) -> tuple[str, ...] | UnsetType:
    """Which of the services that the node serves on need it no longer."""
    # Left out otherwise: agents of the version before refuse a field that they do not know.
    if not observation.awaited:
        return UNSET
    with translated():
        async with context.transaction() as connection:
            return await services_ready_elsewhere(
                connection, observation, context.now()
            )


async def _carriers(
    context: Context,
    request: Request,
    observation: Observation,
    services: tuple[str, ...] | UnsetType,
) -> dict[str, tuple[str, ...]] | UnsetType:
    """Where other nodes take the requests of services that are ready there, for those that wait at this one.

    A service at rest is left out: what waits for it starts it. One that is gone has no address."""
    if not services or not _takes("carriers", request):
        return UNSET
    with translated():
        async with context.transaction() as connection:
            rows = await load_carriers(connection, services, context.now())
            resting = await load_resting(connection, services, rows)
    return {
        service: tuple(
            row.router_url
            for row in rows
            if row.service == service
            and row.ready
            and row.router_url
            and row.node != observation.node
        )
        for service in services
        if service not in resting
    }


async def _asked_logs(
    context: Context, request: Request, observation: Observation
) -> tuple[LogRequest, ...]:
    """The logs that the node is asked for; an agent that knows none gets none, and who waits is told."""
    node, logs = observation.node, context.parts.logs
    asked = logs.asked_of(node)
    if asked and not _takes("logs", request):
        version = observation.agent_version or "its version is not known"
        await logs.refuse(
            node,
            f"the agent of node {node!r} ({version}) is older than logs: upgrade it",
        )
        return ()
    return asked


async def _acquitted(
    context: Context, request: Request, observation: Observation
) -> tuple[tuple[int, int], ...]:
    """The GPUs that an operator has acquitted and the agent does not report healthy yet."""
    # Asked only where one is ill, which is rare.
    is_ill = any(not gpu.healthy for gpu in observation.gpus)
    if not is_ill or not _takes("acquitted", request):
        return ()
    with translated():
        async with context.transaction() as connection:
            return await acquittals.load_acquitted(connection, observation.node)


def _takes(field: str, request: Request) -> bool:
    """Whether the agent that asks takes a reply with this field."""
    return field in taken(request.headers.get(TAKES_HEADER))


async def _register(context: Context, observation: Observation) -> None:
    """Add the node with the GPUs that its agent found. Raises NotFound without any, InvalidRequest for odd ones."""
    gpus = sorted(observation.gpus, key=lambda gpu: gpu.index)
    if not gpus:
        why = "; ".join(observation.problems[:3]) or "it says no problem"
        raise NotFound(
            f"node {observation.node!r} is not registered and reports no GPU ({why}); apply a Node manifest first"
        )
    types = {gpu.index: gpu.gpu_type for gpu in gpus}
    async with context.transaction() as connection:
        # A node's first reports may come through several processes of the API at once.
        await lock_object(connection, "Node", observation.node)
        # Another process may have registered it while this one waited for the lock.
        if await _is_known(connection, observation.node, context.now()):
            return
        await check_gpu_types(context, connection, list(types.values()), field="gpus")
        await nodes.save(connection, observation.node, types, at=context.now())
        subject = f"node/{observation.node}"
        reason = "its agent reported for the first time"
        if await events.was_noted(connection, "NodeDeleted", subject):
            reason = "its agent reports again after the node was deleted; stop the agent before you delete its node"
        await context.audit(
            connection,
            "NodeRegistered",
            subject,
            reason=reason,
            after={"gpus": list(types.values())},
        )
    context.parts.commands.forget()


async def _is_known(connection: Connection, name: str, now: datetime) -> bool:
    try:
        await nodes.get(connection, name, now)
    except NotFound:
        return False
    return True


def _off_s(request: Request, context: Context) -> float:
    """Seconds by which the agent's clock is ahead, where no slow network explains it; 0 also where it does not say."""
    said = request.headers.get(TIME_HEADER, "")
    # An agent need not say its time; its windows are then taken as they are.
    if not _TIME.fullmatch(said):
        return 0.0
    off_s = float(said) - context.now().timestamp()
    # A smaller difference may be the way of the request, and must not move windows back and forth.
    return off_s if abs(off_s) > SLOWEST_REQUEST_S else 0.0


async def _note_clock(
    context: Context, observation: Observation, off_s: float
) -> float | None:
    """Seconds by which the window's end is off, where that is too much; the audit hears of it once per episode.

    `off_s`: by which the observation was already moved.
    """
    skew_s = (
        observation.window_start_s
        + observation.window_s
        + off_s
        - context.now().timestamp()
    )
    skewed = context.parts.skewed_nodes
    if abs(skew_s) <= CLOCK_SKEW_LIMIT_S:
        skewed.discard(observation.node)
        return None
    # Once per episode: an agent reports every few seconds, and the audit is read by people.
    if observation.node not in skewed:
        skewed.add(observation.node)
        context.parts.metrics.clock_skew.inc()
        line = _skew_event(context, observation.node, skew_s)
        with (
            context.parts.event_limits.transaction(context.now()) as limited,
            translated(),
        ):
            await context.parts.store.add_events(
                *limited.passing([line]), *limited.summary
            )
    return skew_s


def _skew_event(context: Context, node: str, skew_s: float) -> AuditEvent:
    cause = (
        "its clock is ahead"
        if skew_s > 0
        else "its clock is behind, or it is sending windows that it kept while it was disconnected"
    )
    return AuditEvent(
        at=context.now(),
        actor=context.actor,
        kind="NodeClockSkewed",
        subject=f"node/{node}",
        reason=f"its window ended {abs(skew_s):.0f} s {'after' if skew_s > 0 else 'before'} now: {cause}",
        request_id=context.request_id,
    )
