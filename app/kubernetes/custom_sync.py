"""Writes here what PlimsollService and PlimsollPolicy objects ask for, the way the API does, and their status there."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from pydantic import ValidationError

from agents.kubernetes.manifest import SERVICE, label_value
from agents.kubernetes.pod import Pod
from app.answers.status import service_statuses
from app.api.apply import ManifestBundle, apply_manifests
from app.api.http.errors import TooMany
from app.api.http.objects import OWNER, Preconditions
from app.api.http.parts import Context
from app.api.workloads.endpoint_views import load_urls
from app.api.workloads.services import delete_service, visible_service
from app.base.errors import InvalidRequest, NotFound, PlimsollError, Unavailable
from app.db.reports import fleet_board, service_board
from app.db.workloads.services import ServiceRow
from app.kubernetes.custom import (
    ACCEPTED,
    FINALIZER,
    Acceptance,
    ServiceFacts,
    conditions_of,
    has_news,
    owner_of,
    policy_manifest,
    service_manifest,
    service_status,
)
from app.kubernetes.objects import (
    GROUP_PATH,
    CustomResource,
    Document,
    Request,
    merged,
)
from app.store.store import Snapshot
from solvers.types.errors import InvalidInput

FIGURES_S = 15.0
"""How often figures of the moment are written."""
MAX_FIELDS = 10
"""Wrong ones that a message names."""
AGAIN_S = 30.0
"""Until what was refused is tried again: what it lacked may be there by now, such as its project."""

Ask = Callable[[Request], Awaitable[None]]


@dataclass(slots=True)
class _Outcome:
    """What became of one object."""

    generation: int
    accepted: Acceptance
    tried_s: float
    reported_s: float = 0.0

    def stands(self, generation: int, now_s: float) -> bool:
        """Whether nothing has to be written, or tried again."""
        if self.generation != generation:
            return False
        return self.accepted.status == "True" or now_s < self.tried_s + AGAIN_S


class CustomSync:
    """Objects of the cluster's users; remembers which of them have been written."""

    def __init__(self, context: Callable[[str | None], Context], ask: Ask) -> None:
        """`context`: who acts here, for one project or for the cluster.

        `ask`: raises ApiAway; what the cluster refuses it notes itself.
        """
        self._context = context
        self._ask = ask
        self._outcomes: dict[str, _Outcome] = {}
        """By the object's uid."""

    async def write_services(
        self,
        resources: Mapping[str, CustomResource],
        pods: Mapping[str, Pod],
        snapshot: Snapshot,
    ) -> None:
        """Bring services and the statuses of their objects in step. Raises ApiAway, PlimsollError."""
        # Many clusters have none: services are applied with `plimsoll`, too.
        if not resources:
            return
        running = [pod for pod in pods.values() if SERVICE in pod.metadata.labels]
        living = {}
        for key, each in resources.items():
            metadata = each.metadata
            if metadata.deletion_timestamp is not None:
                await self._end(each, running, snapshot)
            elif FINALIZER not in metadata.finalizers:
                # Its change comes back as an event, and then it is written.
                await self._set_finalizers(each, [*metadata.finalizers, FINALIZER])
            else:
                await self._write(each, self._write_service)
                living[key] = each
        await self._report(living, running, snapshot)

    async def write_policies(self, resources: Mapping[str, CustomResource]) -> None:
        """Bring the policy in step with its object. Raises ApiAway, PlimsollError."""
        context = self._context(None)
        for each in resources.values():
            await self._write(each, self._write_policy)
            accepted = self._outcomes[each.metadata.uid].accepted
            status = {
                "observedGeneration": each.metadata.generation,
                "conditions": conditions_of(each, accepted, (), context.now()),
            }
            if has_news(each.status, status):
                path = f"{GROUP_PATH}/plimsollpolicies/{each.metadata.name}/status"
                await self._ask(merged(path, {"status": status}))

    async def _write(
        self,
        resource: CustomResource,
        write: Callable[[CustomResource], Awaitable[None]],
    ) -> None:
        metadata = resource.metadata
        now_s = asyncio.get_running_loop().time()
        known = self._outcomes.get(metadata.uid)
        if known is not None and known.stands(metadata.generation, now_s):
            return
        try:
            await write(resource)
            accepted = ACCEPTED
        except TooMany as error:
            accepted = Acceptance("Unknown", "TooMany", str(error))
        # Nothing is wrong with the object.
        except Unavailable:
            raise
        except ValidationError as error:
            accepted = Acceptance("False", "Invalid", _described(error))
        except (InvalidRequest, InvalidInput) as error:
            message = (
                str(error).removeprefix("services[0].").removeprefix("policies[0].")
            )
            accepted = Acceptance("False", "Invalid", message)
        except PlimsollError as error:
            accepted = Acceptance("False", type(error).__name__, str(error))
        reported_s = 0.0 if known is None else known.reported_s
        self._outcomes[metadata.uid] = _Outcome(
            metadata.generation,
            accepted,
            tried_s=now_s,
            reported_s=reported_s,
        )

    async def _write_service(self, resource: CustomResource) -> None:
        """Raises ValidationError, InvalidInput, PlimsollError."""
        # As that project's token: what others have it neither sees nor changes.
        context = self._context(resource.metadata.namespace)
        is_there = await self._row(context, resource.metadata.name) is not None
        manifest = service_manifest(resource)
        await self._apply(context, "services", manifest, is_there=is_there)

    async def _write_policy(self, resource: CustomResource) -> None:
        """Raises ValidationError, InvalidInput, PlimsollError."""
        manifest = policy_manifest(resource)
        await self._apply(self._context(None), "policies", manifest, is_there=True)

    async def _apply(
        self, context: Context, field: str, manifest: Document, *, is_there: bool
    ) -> None:
        """Raises ValidationError, InvalidInput, PlimsollError."""
        name = manifest["metadata"]["name"]
        bundle = {
            field: [manifest],
            # Whatever stands there: the cluster's object is what is wanted.
            "etags": {f"{field}/{name}": "*"} if is_there else {},
        }
        await apply_manifests(
            context,
            ManifestBundle.model_validate(bundle),
            dry_run=False,
            force=False,
        )

    async def _row(self, context: Context, name: str) -> ServiceRow | None:
        async with context.transaction() as connection:
            try:
                return await visible_service(context, connection, name)
            except NotFound:
                return None

    async def _end(
        self,
        resource: CustomResource,
        running: list[Pod],
        snapshot: Snapshot,
    ) -> None:
        """Delete its service, and let the object go when nothing of it runs any more."""
        metadata = resource.metadata
        if FINALIZER not in metadata.finalizers:
            return
        context = self._context(metadata.namespace)
        row = await self._row(context, metadata.name)
        # One of that name that was there before, which this object never got, stays.
        is_ours = row is not None and row.annotations.get(OWNER) == owner_of(
            resource, "PlimsollService"
        )
        if is_ours:
            # Too many changes at once, or somebody else's deletion: the next round sees.
            with suppress(TooMany, NotFound):
                await delete_service(
                    context,
                    metadata.name,
                    Preconditions("*", None),
                )
            return
        if row is None and _runs(metadata.name, running, snapshot):
            return
        self._outcomes.pop(metadata.uid, None)
        left = [each for each in metadata.finalizers if each != FINALIZER]
        await self._set_finalizers(resource, left)

    async def _set_finalizers(
        self, resource: CustomResource, wanted: list[str]
    ) -> None:
        metadata = resource.metadata
        # With the version, since the list is replaced as a whole and others have theirs in it.
        changed = {"finalizers": wanted, "resourceVersion": metadata.resource_version}
        await self._ask(merged(_path(resource), {"metadata": changed}))

    async def _report(
        self,
        resources: Mapping[str, CustomResource],
        running: list[Pod],
        snapshot: Snapshot,
    ) -> None:
        """Write statuses that have changed."""
        known = {service.name: service.project for service in snapshot.state.services}
        # What another project's service of the same name does is not this namespace's to see.
        wanted = [each.metadata for each in resources.values()]
        names = [each.name for each in wanted if known.get(each.name) == each.namespace]
        context = self._context(None)
        async with context.transaction() as connection:
            demands = await service_board.load_newest_demands(connection)
            places = await fleet_board.load_places(connection, context.now())
            urls = await load_urls(context, connection, names)
        statuses = await asyncio.to_thread(service_statuses, snapshot, names, demands)
        costs: Counter[str] = Counter()
        for place in places:
            costs[place.service] += place.cost_usd_per_hour
        for each in resources.values():
            name = each.metadata.name
            facts = ServiceFacts(
                status=statuses.get(name),
                ready=sum(pod.is_ready for pod in _pods_of(name, running)),
                cost_usd_per_hour=float(costs[name]) if name in statuses else 0.0,
                endpoint=urls.get(name),
            )
            await self._report_one(each, facts)

    async def _report_one(self, resource: CustomResource, facts: ServiceFacts) -> None:
        outcome = self._outcomes[resource.metadata.uid]
        now = self._context(None).now()
        status = service_status(
            resource,
            outcome.accepted,
            facts,
            now,
        )
        now_s = asyncio.get_running_loop().time()
        is_time = now_s > outcome.reported_s + FIGURES_S
        if has_news(resource.status, status) or (is_time and resource.status != status):
            outcome.reported_s = now_s
            await self._ask(merged(f"{_path(resource)}/status", {"status": status}))


def _runs(name: str, running: list[Pod], snapshot: Snapshot) -> bool:
    gpus = () if snapshot.target is None else snapshot.target.gpus
    is_planned = any(
        replica.service == name for gpu in gpus for replica in gpu.replicas
    )
    return is_planned or bool(_pods_of(name, running))


def _pods_of(name: str, running: list[Pod]) -> list[Pod]:
    label = label_value(name)
    return [pod for pod in running if pod.metadata.labels[SERVICE] == label]


def _path(resource: CustomResource) -> str:
    metadata = resource.metadata
    return (
        f"{GROUP_PATH}/namespaces/{metadata.namespace}/plimsollservices/{metadata.name}"
    )


def _described(error: ValidationError) -> str:
    """The wrong fields, each with what is wrong."""
    return "; ".join(
        # Behind the list of the bundle and the place in it.
        f"{'.'.join(str(part) for part in each['loc'][2:])}: {each['msg']}"
        for each in error.errors()[:MAX_FIELDS]
    )
