"""Keeps the cluster's objects and Plimsoll's in step: in one process at a time, by what changes in either.

    sync = ClusterSync(cluster, parts, engine)
    await sync.run()        until cancelled

What runs, runs without it: agents create Pods, and nodes serve, also while no process does this.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping
from http import HTTPStatus

import msgspec
import structlog

from agents.base.arguments import as_node_name
from agents.base.waits import cancel
from agents.kubernetes.api import ApiRefused, KubernetesApi
from agents.kubernetes.manifest import GPUS, MANAGED_BY
from agents.kubernetes.pod import Pod
from app.api.http.parts import CLUSTER, ApiParts, Context
from app.base.errors import PlimsollError
from app.db.base.leader import CLUSTER_LOCK, SessionLock
from app.db.base.transaction import Engine, translated
from app.db.operations.tokens import TokenRow
from app.kubernetes.cluster import Cluster
from app.kubernetes.custom_sync import CustomSync
from app.kubernetes.nodes import change_nodes, lost_nodes, node_changes
from app.kubernetes.objects import (
    GROUP_PATH,
    ClusterNode,
    CustomResource,
    DisruptionBudget,
    Pool,
    Request,
    selector,
)
from app.kubernetes.pools import PART_OF, OwnedPods, pool_requests
from app.kubernetes.watched import Watched
from app.store.store import AuditEvent, Snapshot

PERIOD_S = 5.0
"""Plans change without the cluster's doing."""
GAP_S = 0.5
"""From a round to the next, in which changes come together."""
RETRY_S = 5.0

MAX_REASON = 1000
MAX_NOTED = 5
"""New problems in the audit, of each round: what is wrong with one object is often wrong with all."""

log = structlog.get_logger(__name__)


class _Policy(msgspec.Struct):
    versions: list["_Version"] = []


class _Version(msgspec.Struct, rename="camel"):
    group_version: str


class ClusterSync:
    """See the module's docstring."""

    def __init__(self, cluster: Cluster, parts: ApiParts, engine: Engine) -> None:
        """`engine`: of one connection, which is held while this process does it."""
        self._api = KubernetesApi(cluster.address)
        self._namespace = cluster.namespace
        self._parts = parts
        self._lock = SessionLock(engine, CLUSTER_LOCK)
        self._custom = CustomSync(self._context, self._ask)
        self._problems: set[str] = set()
        """What has been logged and goes on."""
        self._once_seen: set[str] = set()
        """Nodes, as Plimsoll names them."""
        self._refused: set[str] = set()
        """The same of the present round."""

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                try:
                    await self._take_turn()
                # Broad by intent: whatever fails here ends neither this nor the API, next to which it runs.
                except Exception as error:
                    await self._note({f"{type(error).__name__}: {error}"})
                await asyncio.sleep(RETRY_S)
        finally:
            await self._lock.release()
            await self._api.close()

    async def _take_turn(self) -> None:
        """Until another process has it. Raises ApiRefused, ApiAway, PlimsollError."""
        if not await self._acquire():
            return
        seen = _Seen(self._api, self._namespace, await self._budget_version())
        seen.start()
        try:
            while await self._acquire():
                await self._note(await self._round(seen))
                await seen.wait_for_change()
        finally:
            await seen.stop()

    async def _acquire(self) -> bool:
        with translated():
            return await self._lock.acquire()

    async def _budget_version(self) -> str:
        found = msgspec.json.decode(
            await self._api.ask("GET", "/apis/policy"), type=_Policy
        )
        versions = [each.group_version for each in found.versions]
        return "policy/v1" if "policy/v1" in versions else "policy/v1beta1"

    async def _round(self, seen: "_Seen") -> set[str]:
        """Bring everything in step; what keeps it from that. Raises ApiAway, PlimsollError."""
        self._refused.clear()
        problems = {each.problem for each in seen.all if each.problem}
        # Objects that have not been seen yet would be taken for objects that are not there.
        if not all(each.is_known for each in seen.all):
            return problems | self._problems
        snapshot = await self._parts.snapshots.load()
        await self._change_nodes(seen, snapshot)
        lost = self._lost(seen)
        problems |= lost_nodes(lost, snapshot.state.nodes)
        replicas = planned(snapshot, seen.nodes.objects)
        for request in pool_requests(replicas, seen.pods()):
            await self._ask(request)
        # Last: what users write here must not keep budgets from being right.
        await self._custom.write_policies(seen.policies.objects)
        await self._custom.write_services(
            seen.services.objects, seen.pods().pods, snapshot
        )
        return problems | self._refused

    def _lost(self, seen: "_Seen") -> set[str]:
        """Nodes that were in the cluster in an earlier round, and are not any more."""
        present = {
            as_node_name(each.metadata.name) for each in seen.nodes.objects.values()
        }
        self._once_seen |= present
        return self._once_seen - present

    async def _change_nodes(self, seen: "_Seen", snapshot: Snapshot) -> None:
        changes = node_changes(seen.nodes.objects, snapshot.state.nodes)
        if changes.drained or changes.used_again:
            context = self._context()
            async with context.transaction() as connection:
                await change_nodes(context, connection, changes)

    async def _ask(self, request: Request) -> None:
        """Raises ApiAway."""
        try:
            await self._api.ask(
                request.method,
                request.path,
                request.document,
                query=request.query,
                content_type=request.content_type,
            )
        # One object's matter: all others go on. One that is gone, or has changed, comes once more by its event.
        except ApiRefused as error:
            if error.status not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                self._refused.add(f"{request.path}: {error}")

    def _context(self, project: str | None = None) -> Context:
        """What the cluster does here: as an operator of one project, or else as an admin.

        Who may do what with which of its objects, the cluster's own rights say.
        """
        caller = TokenRow(
            id="",
            root=CLUSTER,
            name=CLUSTER,
            scope="admin" if project is None else "operator",
            projects=None if project is None else (project,),
            created_at=self._parts.clock.now(),
        )
        return Context(
            parts=self._parts,
            caller=caller,
            request_id=CLUSTER,
        )

    async def _note(self, problems: set[str]) -> None:
        """Write down what is new, and log that it is over."""
        for each in sorted(problems - self._problems)[:MAX_NOTED]:
            log.warning("the cluster is not in step", problem=each)
            # Where the database does not answer either, the log has to do.
            with contextlib.suppress(PlimsollError), translated():
                await self._parts.store.add_events(
                    AuditEvent(
                        at=self._parts.clock.now(),
                        actor=CLUSTER,
                        kind="ClusterOutOfStep",
                        subject="cluster",
                        reason=each[:MAX_REASON],
                    )
                )
        if self._problems and not problems:
            log.info("the cluster is in step again")
        self._problems = problems


class _Seen:
    """What there is in the cluster, followed."""

    def __init__(self, api: KubernetesApi, namespace: str, budget_version: str) -> None:
        self._changed = asyncio.Event()
        change = self._changed.set
        within = f"namespaces/{namespace}"
        self.nodes = Watched(
            api,
            "/api/v1/nodes",
            ClusterNode,
            change,
            labels=f"{GPUS}=true",
        )
        self._pods = Watched(
            api,
            f"/api/v1/{within}/pods",
            Pod,
            change,
            labels=selector(MANAGED_BY),
        )
        self._pools = Watched(
            api,
            f"{GROUP_PATH}/{within}/plimsollpools",
            Pool,
            change,
        )
        self.services = Watched(
            api,
            f"{GROUP_PATH}/plimsollservices",
            CustomResource,
            change,
        )
        self.policies = Watched(
            api,
            f"{GROUP_PATH}/plimsollpolicies",
            CustomResource,
            change,
        )
        self._budgets = Watched(
            api,
            f"/apis/{budget_version}/{within}/poddisruptionbudgets",
            DisruptionBudget,
            change,
            labels=selector(PART_OF),
        )
        self.all = (
            self.nodes,
            self.services,
            self.policies,
            self._pods,
            self._pools,
            self._budgets,
        )
        self._namespace = namespace
        self._budget_version = budget_version
        self._following: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Follow all of it."""
        self._following = [asyncio.create_task(each.run()) for each in self.all]

    async def stop(self) -> None:
        """Follow it no longer."""
        await cancel(*self._following)

    async def wait_for_change(self) -> None:
        """Until something has changed, and for PERIOD_S at most; raises what ended a follower."""
        await asyncio.sleep(GAP_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PERIOD_S):
                await self._changed.wait()
        # By a fault of ours: what it followed would be out of date for ever.
        if any(each.done() for each in self._following):
            await asyncio.gather(*self._following)
        self._changed.clear()

    def pods(self) -> OwnedPods:
        """Pods and what belongs to them."""
        return OwnedPods(
            namespace=self._namespace,
            pods=self._pods.objects,
            pools=self._pools.objects,
            budgets=self._budgets.objects,
            budget_version=self._budget_version,
        )


def planned(snapshot: Snapshot, nodes: Mapping[str, ClusterNode]) -> dict[str, int]:
    """Replicas of the plan in force by service, on the cluster's nodes."""
    ours = {as_node_name(each.metadata.name) for each in nodes.values()}
    gpus = () if snapshot.target is None else snapshot.target.gpus
    return Counter(
        replica.service for gpu in gpus if gpu.node in ours for replica in gpu.replicas
    )
