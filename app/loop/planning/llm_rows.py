"""Language models are sized before they are planned, each once for as long as nothing changes that it is sized by.

A service takes seconds, for which a tick waits: for those that run all of them, since their replicas must not be given
up for want of figures; of the others so many as leave the loop its pace.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from app.loop.planning.language_models import max_tp
from app.loop.planning.limits import allowed_types
from app.solver.llm_rows import RowsAnswer, RowsRequest
from app.solver.process import Solver, SolverUnavailable
from app.store.store import Snapshot
from solvers.types.plan import Plan, planned_rates_rps
from solvers.types.state import ClusterState, GpuType, Mode, Service

NEW_PER_TICK = 2
"""Services that do not run yet are sized so many per tick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRows:
    """What is known of how language models may run."""

    answers: Mapping[str, RowsAnswer] = field(default_factory=dict)
    """By service."""
    waiting: tuple[str, ...] = ()
    """Services that are to be sized in the next ticks."""

    def messages(self, plan: Plan) -> tuple[str, ...]:
        """For the plan's report: how surely its replicas' capacities are known, what services lack, and who waits."""
        used = sorted(
            {(each.service, each.gpu_type, each.tp) for each in plan.llm_replicas}
        )
        known = (self._describe(*each) for each in used)
        lacks = (
            f"{name}: {'; '.join(answer.lacks)}"
            for name, answer in sorted(self.answers.items())
            if answer.lacks and not answer.points
        )
        waiting = (f"{name} is being sized for the next plans" for name in self.waiting)
        return (*filter(None, known), *lacks, *waiting)

    def _describe(self, service: str, gpu_type: str, tp: int) -> str:
        answer = self.answers.get(service, RowsAnswer())
        interval = answer.interval(gpu_type, tp)
        points = next((one for one in answer.points if one.gpu_type == gpu_type), None)
        if interval is None or points is None:
            return ""
        (row,) = (each for each in points.rows if each.tp == tp)
        gpus = gpu_type if tp == 1 else f"{tp} × {gpu_type}"
        return (
            f"{service}: a replica on {gpus} is planned for {row.capacity_rps:.3g} requests per second "
            f"({points.provenance}; nine in ten between {interval.low_rps:.3g} and {interval.high_rps:.3g})"
        )


@dataclass(slots=True)
class SizedModels:
    """Answers as they were given; only those of services that are still there are kept."""

    _kept: dict[RowsRequest, RowsAnswer] = field(default_factory=dict)

    async def sized(self, solver: Solver, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the ways to run all its language models, for whoever waits. Raises SolverUnavailable."""
        return with_rows(snapshot, await self.of(solver, snapshot, at_most=None))

    async def of(
        self, solver: Solver, snapshot: Snapshot, at_most: int | None = NEW_PER_TICK
    ) -> ModelRows:
        """How the snapshot's language models may run. Raises SolverUnavailable.

        `at_most`: so many that do not run are sized; None: all.
        """
        requests = model_requests(snapshot.state, snapshot.llm_configs)
        if not requests:
            self._kept.clear()
            return ModelRows()
        planned = planned_rates_rps(snapshot.target)
        # Those that run first: what runs without figures could only be stopped.
        ordered = sorted(
            requests, key=lambda each: (each.service not in planned, each.service)
        )
        kept: dict[RowsRequest, RowsAnswer] = {}
        answers: dict[str, RowsAnswer] = {}
        waiting = []
        left = len(ordered) if at_most is None else at_most
        for request in ordered:
            known = self._kept.get(request)
            if known is None and request.service not in planned:
                if not left:
                    waiting.append(request.service)
                    continue
                left -= 1
            try:
                answer = known or await solver.size_model(request)
            except SolverUnavailable:
                # What runs would be stopped for want of figures: then nothing is decided.
                if request.service in planned:
                    raise
                waiting.append(request.service)
                continue
            kept[request] = answers[request.service] = answer
        self._kept = kept
        return ModelRows(answers=answers, waiting=tuple(waiting))


def model_requests(
    state: ClusterState, configs: Mapping[str, str]
) -> list[RowsRequest]:
    """One for each language model's service that is planned, by name."""
    per_node: dict[str, dict[str, int]] = {}
    for gpu in state.gpus:
        nodes = per_node.setdefault(gpu.gpu_type, {})
        nodes[gpu.node] = nodes.get(gpu.node, 0) + 1
    # Not only GPUs that are healthy now: figures must not be asked for anew whenever one fails.
    types = [
        _timeless(each, max_tp(per_node[each.name].values()))
        for each in sorted(state.gpu_types, key=lambda each: each.name)
        if each.name in per_node
    ]
    found = []
    for service in sorted(state.services, key=lambda each: each.name):
        if service.mode is not Mode.OFF and service.llm is not None:
            found.append(_request(service, types, configs))
    return found


def _timeless(gpu_type: GpuType, gpus_per_node: int) -> GpuType:
    """The GPU type without what changes no capacity: else another price would have every service sized anew."""
    return replace(
        gpu_type,
        gpus_per_node=gpus_per_node,
        count=None,
        price_usd_per_hour=1.0,
        paid_count=0,
    )


def _request(
    service: Service, types: list[GpuType], configs: Mapping[str, str]
) -> RowsRequest:
    slo, terms = service.token_slo, service.llm
    assert slo is not None
    assert terms is not None, "the caller looks"
    allowed = allowed_types(service, types)
    return RowsRequest(
        service=service.name,
        network=service.network,
        config=configs.get(service.network, ""),
        slo=slo,
        terms=terms,
        gpu_types=tuple(
            each for each in types if allowed is None or each.name in allowed
        ),
    )


def with_rows(snapshot: Snapshot, rows: ModelRows) -> Snapshot:
    """The snapshot with the ways to run its language models, and without those that are still to be sized."""
    if not (rows.answers or rows.waiting):
        return snapshot
    points = tuple(
        each for _, answer in sorted(rows.answers.items()) for each in answer.points
    )
    waiting = set(rows.waiting)
    services = tuple(
        each for each in snapshot.state.services if each.name not in waiting
    )
    state = replace(snapshot.state, services=services)
    return replace(snapshot, state=state, llm_points=points)
