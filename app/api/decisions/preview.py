"""What-if: run the policy on the live state with changes. Nothing is written but a line in the audit."""

from collections.abc import Collection, Sequence

from app.answers.preview import PreviewChanges, Questions, ScenarioQuestion, preview
from app.answers.scenario import WhatIfScenario
from app.api.decisions.plan_conversions import preview_view
from app.api.decisions.preview_views import PreviewRequest, PreviewView, ScenarioBody
from app.api.http.answers import problems
from app.api.http.auth import ClusterOperator
from app.api.http.body import LargeBodyRoute, resource_router
from app.api.http.known_names import check_known, check_policy
from app.api.http.parts import Context
from app.base.errors import InvalidRequest
from app.catalogue.catalogue import not_for_services
from app.db.predictions import profiles
from app.manifests import objects as manifests
from app.manifests.to_types import to_group, to_service
from app.store.store import Snapshot

router = resource_router("plans", prefix="/plans", route_class=LargeBodyRoute)


@router.post("/preview", responses=problems(400, 413, 415))
async def preview_plan(context: ClusterOperator, wanted: PreviewRequest) -> PreviewView:
    """What the next tick would decide with these changes, and what each scenario beyond them would cost.

    One preview at a time; another one waits some seconds for its turn, else 429.
    """
    async with context.parts.solver_turn.taken(context.caller.root):
        snapshot = await context.snapshot()
        # Against the same snapshot that is planned: a name that goes meanwhile is still known to it.
        _check_names(wanted, snapshot, await _training_networks(context))
        changes = PreviewChanges(
            services=tuple(to_service(manifest) for manifest in wanted.services),
            without=tuple(wanted.without),
            demand_factor=wanted.demand_factor,
            demand_rps=wanted.demand_rps,
            policy=wanted.policy,
            groups=None
            if wanted.groups is None
            else tuple(map(to_group, wanted.groups)),
            from_running=wanted.from_running,
        )
        result = await preview(
            context.parts.solver, snapshot, changes, _questions(wanted)
        )
    # A preview is audited although it changes nothing: it occupies the solver, and may show what somebody plans to do.
    await _audit(
        context, wanted, cost_usd_per_hour=result.decision.report.cost_usd_per_hour
    )
    return preview_view(result)


def _questions(wanted: PreviewRequest) -> Questions | None:
    """None where no scenario is asked for."""
    if not (wanted.scenarios or wanted.suggest or wanted.alternatives_of):
        return None
    scenarios = tuple(_question(scenario) for scenario in wanted.scenarios)
    return Questions(
        scenarios=scenarios,
        suggest=wanted.suggest,
        seconds=wanted.time_limit_s,
        alternatives_of=tuple(wanted.alternatives_of),
    )


def _question(wanted: ScenarioBody) -> ScenarioQuestion:
    scenario = WhatIfScenario(
        name=wanted.name,
        demand_factor=wanted.demand_factor,
        demand_rps=wanted.demand_rps,
        gpus=wanted.gpus,
        price_usd_per_hour=wanted.price_usd_per_hour,
        slo_ms=wanted.slo_ms,
        without=tuple(wanted.without),
    )
    return ScenarioQuestion(
        scenario=scenario,
        services=tuple(to_service(manifest) for manifest in wanted.services),
    )


async def _training_networks(context: Context) -> frozenset[str]:
    async with context.transaction() as connection:
        return frozenset(
            row.name
            for row in await profiles.list_networks(connection)
            if row.is_training
        )


def _check_names(
    wanted: PreviewRequest, snapshot: Snapshot, training: Collection[str]
) -> None:
    services = sorted({service.name for service in snapshot.state.services})
    # Rates may be given for services that the request itself adds.
    after = sorted(
        {*services, *(manifest.metadata.name for manifest in wanted.services)}
    )
    check_known(wanted.without, services, what="service", field="without")
    for field, names in (
        ("demand_factor", wanted.demand_factor),
        ("demand_rps", wanted.demand_rps),
        ("alternatives_of", wanted.alternatives_of),
    ):
        check_known(tuple(names), after, what="service", field=field)
    if wanted.policy is not None:
        check_policy(wanted.policy, field="policy")
    for index, group in enumerate(wanted.groups or ()):
        check_policy(group.policy, field=f"groups[{index}].policy")
    _check_services(wanted.services, snapshot, training, field="services")
    for index, scenario in enumerate(wanted.scenarios):
        _check_services(
            scenario.services, snapshot, training, field=f"scenarios[{index}].services"
        )


def _check_services(
    wanted: Sequence[manifests.ServiceManifest],
    snapshot: Snapshot,
    training: Collection[str],
    *,
    field: str,
) -> None:
    types = [gpu_type.name for gpu_type in snapshot.state.gpu_types]
    networks = sorted({points.network for points in snapshot.points})
    for index, manifest in enumerate(wanted):
        where = f"{field}[{index}].spec"
        spec = manifest.spec
        place = f"{where}.network"
        if spec.kind == "inference":
            check_known([spec.network], networks, what="profiled network", field=place)
        if spec.network in training:
            raise InvalidRequest(not_for_services(spec.network), field=place)
        for name, chosen in (
            ("allowed", spec.gpu_types.allowed or ()),
            ("excluded", spec.gpu_types.excluded),
        ):
            place = f"{where}.gpu_types.{name}"
            check_known(chosen, types, what="GPU type", field=place)


async def _audit(
    context: Context, wanted: PreviewRequest, *, cost_usd_per_hour: float
) -> None:
    async with context.transaction() as connection:
        await context.audit(
            connection,
            "PlanPreviewed",
            "plan/preview",
            before=wanted.model_dump(mode="json", exclude_defaults=True),
            after={"cost_usd_per_hour": cost_usd_per_hour},
        )
