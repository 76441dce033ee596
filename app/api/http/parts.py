"""What the API works with, wired by `app.serve.api_process`, and the context of one request."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime

from starlette.types import Scope as AsgiScope

from agents.base.protocol import LeaseTerms
from app.api.caches.agent_addresses import AgentAddresses
from app.api.caches.cluster_metrics import ClusterPage
from app.api.caches.commands import CommandBoard
from app.api.caches.log_board import LogBoard
from app.api.caches.noted_accesses import NotedAccesses
from app.api.caches.readiness import Check, Readiness
from app.api.caches.request_metrics import ApiMetrics
from app.api.caches.shared_snapshots import SharedSnapshots
from app.api.caches.token_news import TokenNews
from app.api.http.fairness import FairSeats, Pace, SeatRules
from app.api.http.guesses import Guesses, address_of, named_address
from app.base.clock import ControlClock
from app.base.errors import Forbidden
from app.db.base.transaction import Connection, Engine, transaction
from app.db.maintenance import Retention
from app.db.operations import events
from app.db.operations.tokens import TokenRow
from app.solver.process import PreviewSolver
from app.store.event_limits import EventLimits
from app.store.ingest_queue import IngestQueue
from app.store.store import AuditEvent, Snapshot, Store
from solvers.types.state import Json

SOLVER_RULES = SeatRules(
    what="previews, comparisons and thorough explanations",
    # Each occupies a core for as long as its budget, which is a minute at most.
    seats=1,
    per_token=1,
    waiting=1,
    # With half a minute of its own still within the 75 seconds for which the command-line client waits.
    wait_s=30.0,
    retry_after_s=10.0,
)
FIT_RULES = SeatRules(
    # Each occupies a core. Refused, not queued: a caller who waits a minute for a core takes it for a fault.
    what="fits",
    seats=1,
    per_token=1,
    retry_after_s=10.0,
)
EXPORT_RULES = SeatRules(
    # Each is a file on disk until it is downloaded; see `app.api.reports.export.FILE_BYTES`.
    what="exports that are made or downloaded",
    seats=8,
    per_token=2,
    retry_after_s=30.0,
)
EXPORT_TURN_RULES = SeatRules(
    # Each holds a connection to the database for as long as its file is written.
    what="exports that are made",
    seats=2,
    per_token=1,
    waiting=1,
    wait_s=30.0,
    retry_after_s=30.0,
)
SNAPSHOT_RULES = SeatRules(
    # They share one load, which takes none of their seats among the connections; each is a request in memory.
    what="requests waiting for the state of the cluster",
    seats=1000,
    per_token=100,
)
LOOK_UP_RULES = SeatRules(
    # Each holds a connection to the database for a millisecond or two. One for an address, however many it sends.
    what="look-ups of tokens that are not known yet",
    seats=2,
    per_token=1,
    holder="address",
    # Of a fleet behind one address, after this process was started again.
    waiting=1000,
    wait_s=5.0,
)
YAML_RULES = SeatRules(
    # Each takes a thread for up to a second. Two, so that no one waits behind a single long one; more would only share
    # the interpreter.
    what="texts of YAML that are read",
    seats=2,
    per_token=1,
    # The page sends the text a moment after each change of it.
    waiting=4,
    wait_s=10.0,
)
LOG_RULES = SeatRules(
    # Each holds no connection, but a seat among what its node and PostgreSQL are asked for, for seconds.
    what="requests for logs",
    seats=64,
    per_token=8,
    waiting=8,
    wait_s=10.0,
)
CLUSTER = "kubernetes"
"""Who calls where the cluster's own objects change something here; no token's id is like this."""
CHANGES_PER_S, CHANGES_AT_ONCE = 0.2, 300.0
"""A change of a service makes the plan that is being made too old to push, everybody's: this rate of a project's leaves
time between them for a plan. A project that is set up may have hundreds of services at once."""

LOGINS_PER_S, LOGINS_AT_ONCE = 0.5, 60.0
"""Each writes a row that lasts for half a day; a whole office may come in the morning from one address."""


def reader_rules(connections: int) -> SeatRules:
    """How people share a pool of this number of connections; where it has enough, some are left for log-ins."""
    seats = max(1, connections - 2)
    return SeatRules(
        what="database transactions",
        seats=seats,
        # More than half: one token alone may use most of what is free, and another one finds a seat all the same.
        per_token=seats // 2 + 1,
        waiting=64,
        wait_s=10.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiParts:
    """Everything behind the routes."""

    engine: Engine
    """For people's requests and for pages."""
    sync_engine: Engine
    """For agents', so that they never wait for a connection behind people's."""
    readers: FairSeats
    """The connections of `engine` that people's requests may hold."""
    store: Store
    snapshots: SharedSnapshots
    clock: ControlClock
    ingest: IngestQueue
    commands: CommandBoard
    logs: LogBoard
    solver: PreviewSolver
    """For previews and thorough explanations; the control loop has its own."""
    guesses: Guesses
    accesses: NotedAccesses
    token_news: TokenNews
    look_ups: FairSeats = field(default_factory=lambda: FairSeats(LOOK_UP_RULES))
    """Look-ups of tokens that this process does not know, by the address that they come from."""
    snapshot_waits: FairSeats = field(default_factory=lambda: FairSeats(SNAPSHOT_RULES))
    solver_turn: FairSeats = field(default_factory=lambda: FairSeats(SOLVER_RULES))
    exports: FairSeats = field(default_factory=lambda: FairSeats(EXPORT_RULES))
    export_turn: FairSeats = field(default_factory=lambda: FairSeats(EXPORT_TURN_RULES))
    fit_turn: FairSeats = field(default_factory=lambda: FairSeats(FIT_RULES))
    log_turn: FairSeats = field(default_factory=lambda: FairSeats(LOG_RULES))
    yaml_turn: FairSeats = field(default_factory=lambda: FairSeats(YAML_RULES))
    service_changes: Pace = field(
        default_factory=lambda: Pace(
            rate=CHANGES_PER_S,
            burst=CHANGES_AT_ONCE,
            wait_s=0.0,
            what="changes per second of a project's services are the limit; send fewer",
        )
    )
    """By project."""
    logins: Pace = field(
        default_factory=lambda: Pace(
            rate=LOGINS_PER_S,
            burst=LOGINS_AT_ONCE,
            wait_s=5.0,
            what="logins per second from one address are the limit; wait a moment",
        )
    )
    """By address."""
    metrics: ApiMetrics
    simulations: object
    """Checks what is to be simulated; somebody else runs it."""
    lease: LeaseTerms | None = None
    """How long commands hold while the control plane is silent; None = for ever."""
    retention: Retention = field(default_factory=Retention)
    """How far back there are rows to answer from."""
    node_of_pod: Callable[[str], Awaitable[str | None]]
    """The node of the agent whose service account's token it is; None: nothing vouches for it. Raises Unavailable."""
    is_in_cluster: bool = False
    """Whether objects of a Kubernetes cluster are written here."""
    gateway_url: str | None = None
    """Base URL of the gateway; None: callers go to the nodes."""
    compiling: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while the solver of the controller next to this API compiles kernels: nothing is planned until then."""
    event_limits: EventLimits = field(default_factory=EventLimits)
    """Limits on the lines of the audit that nodes cause."""
    skewed_nodes: set[str] = field(default_factory=set)
    """Nodes whose windows end far from now; each was noted in the audit."""
    agent_addresses: AgentAddresses = field(default_factory=AgentAddresses)
    cluster_page: ClusterPage = field(default_factory=ClusterPage)
    """The newest page of the cluster's metrics."""
    checks: dict[str, Check] = field(default_factory=dict)
    """What `/readyz` asks, by name."""
    readiness: Readiness = field(default_factory=Readiness)

    async def note_denial(
        self, scope: AsgiScope, reason: str, *, person: str | None = None
    ) -> None:
        """Append to the audit that a caller without a valid token was denied: a person, or an address."""
        address = named_address(address_of(scope))
        denial = AuditEvent(
            at=self.clock.now(),
            actor=address if person is None else f"person/{person}",
            kind="AccessDenied",
            subject=address,
            reason=reason,
            request_id=str(scope["plimsoll.request_id"]),
        )
        await self.accesses.note(person, denial)

    @asynccontextmanager
    async def transaction(self, token: str) -> AsyncIterator[Connection]:
        """One transaction, in that token family's turn. Raises TooMany where its others occupy the database."""
        async with self.readers.taken(token), transaction(self.engine) as connection:
            yield connection

    async def snapshot(self, token: str) -> Snapshot:
        """Everything that a tick would see now. Raises TooMany where too many of that token family wait for it."""
        async with self.snapshot_waits.taken(token):
            return await self.snapshots.load()


@dataclass(slots=True, kw_only=True)
class WriteBatch:
    """Writes of several objects by one request, in one transaction: all of them or none."""

    connection: Connection
    load_snapshot: Callable[[], Awaitable[Snapshot]]
    """The cluster with what was written before: no one outside the transaction sees that."""
    objections: Mapping[str, str | None]
    """To services' SLOs, as far as they could be judged before the transaction, by name."""
    snapshot: Snapshot | None = None
    """Loaded once: services, which are judged by it, are written after all that it is judged by."""
    changed_projects: set[str] = field(default_factory=set)
    """Projects whose services it changes; counted against the pace together, as none may come of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One request of a known caller."""

    parts: ApiParts
    caller: TokenRow
    request_id: str
    batch: WriteBatch | None = None
    """What this write is a part of; None: each write is a transaction of its own."""

    @property
    def actor(self) -> str:
        """The caller as the audit names it."""
        person = self.caller.person
        return f"token/{self.caller.name}" if person is None else f"person/{person}"

    def now(self) -> datetime:
        """The control plane's time."""
        return self.parts.clock.now()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        """One transaction, or the batch's. Raises TooMany where the caller's others occupy the database."""
        if self.batch is not None:
            yield self.batch.connection
            return
        if self.caller.scope == "agent":
            async with transaction(self.parts.sync_engine) as connection:
                yield connection
            return
        async with self.parts.transaction(self.caller.root) as connection:
            yield connection

    async def snapshot(self) -> Snapshot:
        """Everything that a tick would see now, or would after the batch so far."""
        batch = self.batch
        if batch is None:
            return await self.parts.snapshot(self.caller.root)
        if batch.snapshot is None:
            batch.snapshot = await batch.load_snapshot()
        return batch.snapshot

    def count_service_change(self, project: str) -> None:
        """Raise TooMany, which takes the change back, where the project's services change too often."""
        if self.batch is not None:
            self.batch.changed_projects.add(project)
            return
        self.parts.service_changes.take(project, 1.0, time.monotonic())

    def sees(self, project: str) -> bool:
        """Whether the caller's token reaches that project."""
        return self.caller.projects is None or project in self.caller.projects

    def projects_seen(self, project: str | None) -> tuple[str, ...] | None:
        """The projects whose objects a list may show: all where `project` is None, else that one; None: no limit."""
        if project is None:
            return self.caller.projects
        # A project out of reach shows an empty list, not an error that would say that it exists.
        return (project,) if self.sees(project) else ()

    def require_project(self, project: str) -> None:
        """Raise Forbidden unless the caller's token reaches that project."""
        if not self.sees(project):
            raise Forbidden(
                f"this token is bound to {', '.join(self.caller.projects or ())}, not to {project!r}"
            )

    def require_node(self, node: str) -> None:
        """Raise Forbidden unless the caller is that node's agent."""
        if self.caller.node != node:
            raise Forbidden(
                f"this token belongs to node {self.caller.node!r}, not to {node!r}"
            )

    async def audit(
        self,
        connection: Connection,
        kind: str,
        subject: str,
        *,
        before: Json = None,
        after: Json = None,
        plan_id: int | None = None,
        reason: str = "",
    ) -> None:
        """Append to the audit what the caller did, in the transaction that does it."""
        # In the same transaction: what was not done is not in the audit, and what was is.
        await events.add(
            connection,
            AuditEvent(
                at=self.now(),
                actor=self.actor,
                kind=kind,
                subject=subject,
                reason=reason,
                plan_id=plan_id,
                request_id=self.request_id,
                before=before,
                after=after,
            ),
        )

    async def note_access(self, kind: str, *, subject: str, reason: str = "") -> None:
        """Append to the audit what the caller saw or was denied: once in a while, and never while it has a
        transaction open, since this is one of its own."""
        access = AuditEvent(
            at=self.now(),
            actor=self.actor,
            kind=kind,
            subject=subject,
            reason=reason,
            request_id=self.request_id,
        )
        await self.parts.accesses.note(self.caller.root, access)
