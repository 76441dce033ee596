"""Spares beside a decision: proposed, judged by the checker, and no reason to refuse anything. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import replace

import structlog

from app.loop.plan import Decision
from app.loop.planning.power_caps import is_limited
from app.loop.planning.reschedule import AvoidedGpus, without_avoided
from solvers.check_residents import spare_violations
from solvers.policies.registry import has_spares
from solvers.tick.spares import spares_of, with_spares, without_spares
from solvers.types.plan import BoundGpu, BoundPlan
from solvers.types.problem import Problem
from solvers.types.state import ClusterState, GpuId

log = structlog.get_logger(__name__)


def with_spares_of(
    decision: Decision,
    problem: Problem,
    state: ClusterState,
    *,
    policy: str,
    target: BoundPlan | None,
    avoided: AvoidedGpus,
) -> Decision:
    """The decision with spares on what it leaves over; a new proposal where nothing but spares changes.

    A policy that has none ends those that an earlier policy left; a decision that refuses stays as it is.
    """
    bound = decision.bound or (target if decision.state == "kept" else None)
    if bound is None or not (has_spares(policy) or spares_of(bound)):
        return decision
    # A plan that is kept becomes a new one, with the next number, if its spares change.
    generation = bound.generation + (decision.bound is None)
    proposed = without_spares(bound)
    if has_spares(policy):
        proposed = with_spares(
            problem,
            bound,
            state.gpus,
            state.nodes,
            running=without_avoided(target, avoided),
            generation=generation,
            # Under a limit on watts all of them are given away.
            may_open=not is_limited(problem, state.nodes),
            avoided=_closed(avoided, state),
        )
    gpus = (_checked(problem, gpu) for gpu in proposed.gpus)
    checked = replace(proposed, gpus=tuple(gpu for gpu in gpus if not gpu.is_empty))
    if decision.bound is not None:
        return replace(decision, bound=checked)
    if spares_of(checked) == spares_of(target):
        return decision
    following = replace(checked, generation=generation, parent=bound.generation)
    return replace(
        decision,
        state="proposed",
        bound=following,
        reason="spares take or leave what services leave over",
    )


def _closed(avoided: AvoidedGpus, state: ClusterState) -> Mapping[str, Set[GpuId]]:
    """GPUs that start no spare of a service: those where it or its spare fails among them."""
    closed: defaultdict[str, Set[GpuId]] = defaultdict(frozenset)
    for gpus_of in (avoided.closed, avoided.failing, avoided.failing_spares):
        for service, gpus in gpus_of.items():
            closed[service] |= gpus
    everywhere = {gpu.id for gpu in state.gpus}
    closed.update((service, everywhere) for service in avoided.no_new_spares)
    return closed


def _checked(problem: Problem, gpu: BoundGpu) -> BoundGpu:
    """The GPU, without its spares where they break a rule."""
    broken = spare_violations(problem, [gpu])
    if not broken:
        return gpu
    log.error(
        "spares are left out: the checker refused them",
        where=broken[0].where,
        detail=broken[0].detail,
    )
    return replace(gpu, spares=())
