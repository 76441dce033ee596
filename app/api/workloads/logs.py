"""Logs of replicas and tasks: each is asked of its node, which answers within a second or two."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal
from uuid import uuid4

from fastapi import Depends, Query
from pydantic import AwareDatetime, Field

from agents.base.protocol import LogAnswer, LogRequest
from app.api.http.answers import READ
from app.api.http.auth import Viewer
from app.api.http.body import resource_router
from app.api.http.parts import Context
from app.api.http.views import View
from app.api.workloads.services import visible_service
from app.api.workloads.tasks import visible_task
from app.base.errors import NotFound
from app.db.fleet.logged_parts import (
    find_task_node,
    load_logged_replicas,
)
from app.manifests.parts import Name

router = resource_router("logs")

ANSWER_S = 10.0
"""Agents are asked when they sync, which they do every second or two; one that takes longer is away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    """Which part of a log."""

    tail: Annotated[
        int | None,
        Query(ge=1, le=100_000, description="Maximum number of lines, the last ones"),
    ] = None
    since: Annotated[
        AwareDatetime | None,
        Query(description="Only what was written after it, to a few seconds"),
    ] = None
    after: Annotated[
        int | None,
        Query(
            ge=0,
            le=2**53,
            description="Only what comes after this position, the `end` of an earlier answer",
        ),
    ] = None

    def ask(
        self, kind: Literal["replica", "task"], name: str, now: datetime
    ) -> LogRequest:
        """What the node is asked for."""
        since = self.since
        return LogRequest(
            id=uuid4().hex,
            kind=kind,
            name=name,
            lines=self.tail,
            # As an age: the node's clock may be another one.
            age_s=None if since is None else max(0.0, (now - since).total_seconds()),
            after=self.after,
        )


LogPart = Annotated[LogQuery, Depends()]


class LogView(View):
    """A part of a log, 64 KiB at most."""

    node: str
    text: str = Field(
        description="As it was written, but for bytes that are no UTF-8: control characters and all"
    )
    start: int = Field(
        description="Position of the text; beyond `after`: what lies between was too much"
    )
    end: int = Field(description="Ask for what comes next with this as `after`")
    problem: str | None = Field(
        description="Why nothing could be read: the node does not answer, or has no such log"
    )


class LoggedReplicaView(View):
    """A replica whose log can be asked for."""

    replica: str
    node: str
    state: str | None = Field(
        description="As its agent said last; null: it says nothing of it"
    )
    is_planned: bool = Field(description="False: it has ended, or is about to")


class ServiceLog(LogView):
    """A part of the log of one of a service's replicas."""

    replica: str
    replicas: list[LoggedReplicaView] = Field(
        description="The service's replicas of the last hour, those that fail first"
    )


@router.get("/services/{name}/logs", responses=READ)
async def get_service_log(
    context: Viewer,
    name: Name,
    part: LogPart,
    replica: Annotated[
        Name | None, Query(description="Without it, the first of `replicas`")
    ] = None,
) -> ServiceLog:
    """The end of what a replica wrote, also after its own end; the node has ten seconds to answer."""
    async with context.transaction() as connection:
        await visible_service(context, connection, name)
        listed = await load_logged_replicas(connection, name, context.now())
        found = [each for each in listed if replica in (None, each.replica)]
        # One that ended hours ago is not listed, and found by its name.
        if replica is not None and not found:
            found += await load_logged_replicas(
                connection, name, context.now(), replica=replica
            )
    if not found:
        raise NotFound(_without_replica(name, replica))
    chosen = found[0]
    asked = part.ask("replica", chosen.replica, context.now())
    log = await _fetch(context, chosen.node, asked)
    return ServiceLog(
        **log.model_dump(),
        replica=chosen.replica,
        replicas=[LoggedReplicaView.model_validate(each) for each in listed],
    )


@router.get("/tasks/{name}/logs", responses=READ)
async def get_task_log(context: Viewer, name: Name, part: LogPart) -> LogView:
    """The end of what a task wrote, also after its own end; the node has ten seconds to answer."""
    async with context.transaction() as connection:
        row = await visible_task(context, connection, name)
        task_id = row.record.task.name
        node = await find_task_node(connection, task_id, context.now())
    if node is None:
        raise NotFound(f"task {name!r} has run on no node within the last day")
    return await _fetch(context, node, part.ask("task", task_id, context.now()))


async def _fetch(context: Context, node: str, asked: LogRequest) -> LogView:
    """What the node answers, or why there is nothing."""
    async with context.parts.log_turn.taken(context.caller.root):
        answer = await context.parts.logs.wait_for(node, asked, limit_s=ANSWER_S)
    if answer is None:
        answer = LogAnswer(
            end=asked.after or 0,
            problem=f"node {node!r} has not answered for {ANSWER_S:g} s: `plimsoll get node/{node}` says whether its "
            "agent is heard",
        )
    return LogView(
        node=node,
        text=answer.text,
        start=answer.start,
        end=answer.end,
        problem=answer.problem or None,
    )


def _without_replica(service: str, replica: str | None) -> str:
    if replica is None:
        return f"service {service!r} had no replica within the last hour: its conditions say why none is planned"
    had_none = f"service {service!r} had no replica {replica!r} within the last day"
    return f"{had_none}; without `replica` the answer lists those of the last hour"
