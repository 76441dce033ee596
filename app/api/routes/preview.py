"""What-if: run the policy on the live state with changes. Nothing is written but a line in the audit."""

from app.api.answers import problems
from app.api.auth import ClusterOperator
from app.api.body import resource_router
from app.api.conversions import check_known, to_service
from app.api.parts import Context
from app.api.plan_conversions import preview_view
from app.api.plan_schemas import PreviewRequest, PreviewView
from app.control.preview import Changes, preview
from app.control.store import Snapshot
from app.errors import Unavailable
from solvers.policies import policies as known_policies

router = resource_router("plans", prefix="/plans")


@router.post("/preview", responses=problems(400, 413, 415))
async def preview_plan(context: ClusterOperator, wanted: PreviewRequest) -> PreviewView:
    """What the next tick would decide with these changes; one preview at a time, else 503."""
    if context.parts.preview_turn.locked():
        raise Unavailable("another preview runs; repeat this one in a moment")
    async with context.parts.preview_turn:
        snapshot = await context.snapshot()
        _check_names(wanted, snapshot)
        changes = Changes(
            services=tuple(to_service(manifest) for manifest in wanted.services),
            without=tuple(wanted.without),
            demand_factor=wanted.demand_factor,
            demand_rps=wanted.demand_rps,
            policy=wanted.policy,
        )
        result = await preview(context.parts.solver, snapshot, changes)
    await _audit(context, wanted, cost_usd_per_hour=result.decision.report.cost_usd_per_hour)
    return preview_view(result)


def _check_names(wanted: PreviewRequest, snapshot: Snapshot) -> None:
    services = sorted({service.name for service in snapshot.state.services})
    after = sorted({*services, *(manifest.metadata.name for manifest in wanted.services)})
    types = [gpu_type.name for gpu_type in snapshot.state.gpu_types]
    check_known(wanted.without, services, what="service", field="without")
    check_known(tuple(wanted.demand_factor), after, what="service", field="demand_factor")
    check_known(tuple(wanted.demand_rps), after, what="service", field="demand_rps")
    if wanted.policy is not None:
        check_known([wanted.policy], known_policies(), what="policy", field="policy")
    for index, manifest in enumerate(wanted.services):
        where, choice = f"services[{index}].spec", manifest.spec.gpu_types
        networks = sorted({points.network for points in snapshot.points})
        check_known([manifest.spec.network], networks, what="profiled network", field=f"{where}.network")
        check_known(choice.allowed or (), types, what="GPU type", field=f"{where}.gpu_types.allowed")
        check_known(choice.excluded, types, what="GPU type", field=f"{where}.gpu_types.excluded")


async def _audit(context: Context, wanted: PreviewRequest, *, cost_usd_per_hour: float) -> None:
    async with context.transaction() as connection:
        await context.audit(
            connection,
            "PlanPreviewed",
            "plan/preview",
            before=wanted.model_dump(mode="json", exclude_defaults=True),
            after={"cost_usd_per_hour": cost_usd_per_hour},
        )
