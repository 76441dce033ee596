"""Language models are sized before they are planned, each once for as long as nothing changes that it is sized by.

A service takes seconds, for which a tick waits: for those that run all of them, since their replicas must not be given
up for want of figures; of the others as many as leave the loop its pace.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from app.loop.planning.language_models import max_tp
from app.loop.planning.limits import allowed_types
from app.solver.llm_rows import RowsAnswer, RowsRequest
from app.solver.process import Solver, SolverUnavailable
from app.store.store import Snapshot
from solvers.types.llm import (
    SPEED_SLOPE,
    LlmNetwork,
    LlmPoints,
    ServedLengths,
    ServedSpeed,
    ServedStart,
)
from solvers.types.plan import Plan, planned_rates_rps
from solvers.types.state import ClusterState, GpuType, Mode, Service

NEW_PER_TICK = 2
"""The services sized per tick, of those that do not run yet and those whose replicas turn out faster or slower."""
_DRIFT = 0.08
"""ln of how far a served speed must be from the one that was sized with, for another look."""
_OTHER_LENGTHS = 0.1
"""ln of how far mean lengths must be from those that were sized with; of the share that was cached, its difference."""
_FAR_LONGER = 1.25
"""Times as long as stated, from which on it is said."""
_OTHER_LOAD = math.log(2.0)
"""The same of the sequences: speeds at other loads tell more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRows:
    """What is known of how language models may run."""

    answers: Mapping[str, RowsAnswer] = field(default_factory=dict)
    """By service."""
    waiting: tuple[str, ...] = ()
    """Services that are to be sized in the next ticks."""
    longer: tuple[str, ...] = ()
    """Services whose requests are longer than is stated of them, in words."""

    def messages(self, plan: Plan) -> tuple[str, ...]:
        """For the plan's report: how surely its replicas' capacities are known, what services lack, and who waits."""
        used = {(each.service, each.gpu_type, each.tp) for each in plan.llm_replicas}
        known = (self._describe(*each) for each in sorted(used))
        counted = map(self._describe_lengths, sorted({name for name, _, _ in used}))
        lacks = (
            f"{name}: {'; '.join(answer.lacks)}"
            for name, answer in sorted(self.answers.items())
            if answer.lacks and not answer.points
        )
        waiting = (f"{name} is being sized for the next plans" for name in self.waiting)
        return (*filter(None, (*known, *counted)), *self.longer, *lacks, *waiting)

    def _describe(self, service: str, gpu_type: str, tp: int) -> str:
        answer = self.answers.get(service, RowsAnswer())
        interval = answer.interval(gpu_type, tp)
        by_type = {each.gpu_type: each for each in answer.points}
        # What runs may have no figures any more, as after another SLO.
        if interval is None or gpu_type not in by_type:
            return ""
        points = by_type[gpu_type]
        (row,) = (each for each in points.rows if each.tp == tp)
        gpus = gpu_type if tp == 1 else f"{tp} × {gpu_type}"
        return (
            f"{service}: a replica on {gpus} is planned for {row.capacity_rps:.3g} requests per second "
            f"({points.provenance}; nine in ten between {interval.low_rps:.3g} and {interval.high_rps:.3g})"
        )

    def _describe_lengths(self, service: str) -> str:
        lengths = self.answers.get(service, RowsAnswer()).lengths
        if lengths is None:
            return ""
        counted = (
            f"{service}: prompts of {lengths.prompt:.0f} and answers of {lengths.output:.0f} tokens, as replicas "
            "counted them"
        )
        if lengths.found_share == 0.0:
            return counted
        found_percent = 100.0 * lengths.found_share
        return f"{counted}, {found_percent:.0f} % of prompts cached already"


@dataclass(slots=True)
class SizedModels:
    """Answers as they were given; only those of services that are still there are kept."""

    _kept: dict[RowsRequest, RowsAnswer] = field(default_factory=dict)

    async def sized(self, solver: Solver, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the ways to run all its language models, waited for. Raises SolverUnavailable."""
        return with_rows(snapshot, await self.of(solver, snapshot, at_most=None))

    async def of(
        self, solver: Solver, snapshot: Snapshot, at_most: int | None = NEW_PER_TICK
    ) -> ModelRows:
        """How the snapshot's language models may run. Raises SolverUnavailable.

        `at_most`: how many that do not run are sized; None: all.
        """
        requests = model_requests(snapshot)
        planned = planned_rates_rps(snapshot.target)
        # Those that run first: what runs without figures could only be stopped.
        requests.sort(key=lambda each: (each.service not in planned, each.service))
        answers: dict[RowsRequest, RowsAnswer] = {}
        waiting = []
        left = len(requests) if at_most is None else at_most
        older = {_stated(each): each for each in self._kept}
        for asked in requests:
            before = older.get(_stated(asked))
            # What was sized is used on until there is time to look at its replicas' speeds again.
            is_kept = before is not None and (not left or _is_near(asked, before))
            request = before if before is not None and is_kept else asked
            answer = self._kept.get(request)
            must = request.service in planned and before is None
            if answer is None and (must or left):
                left -= not must
                answer = await _size(solver, request, must=must)
            if answer is None:
                waiting.append(request.service)
            else:
                answers[request] = answer
        self._kept = answers
        by_service = {request.service: found for request, found in answers.items()}
        return ModelRows(
            answers=by_service,
            waiting=tuple(waiting),
            longer=tuple(_longer(snapshot)),
        )


def _stated(request: RowsRequest) -> RowsRequest:
    """The request without what replicas say."""
    return replace(request, served=(), lengths=None)


def _is_near(asked: RowsRequest, before: RowsRequest) -> bool:
    """Whether replicas say what they said when a service was sized."""
    known = {each.kind: each for each in before.served}
    return _are_same_lengths(asked.lengths, before.lengths) and all(
        each.kind in known and _is_same_speed(each, known[each.kind])
        for each in asked.served
    )


def _are_same_lengths(now: ServedLengths | None, then: ServedLengths | None) -> bool:
    # What was learned is used on where too few requests came lately to say anything.
    if now is None:
        return True
    if then is None:
        return False
    differences = (
        now.found_share - then.found_share,
        math.log(now.prompt / then.prompt),
        math.log(now.output / then.output),
    )
    return all(abs(each) < _OTHER_LENGTHS for each in differences)


def _is_same_speed(now: ServedSpeed, then: ServedSpeed) -> bool:
    # More sequences make steps longer: only what that does not explain counts.
    loads = math.log(now.sequences / then.sequences)
    times = math.log(now.itl_ms / then.itl_ms)
    return abs(loads) < _OTHER_LOAD and abs(times - SPEED_SLOPE * loads) < _DRIFT


async def _size(
    solver: Solver, request: RowsRequest, *, must: bool
) -> RowsAnswer | None:
    """None where it fails; `must`: then SolverUnavailable is raised, since nothing may be decided without it."""
    try:
        return await solver.size_model(request)
    except SolverUnavailable:
        if must:
            raise
        return None


def model_requests(snapshot: Snapshot) -> list[RowsRequest]:
    """One for each language model's service that is planned, by name."""
    types = _fleet_types(snapshot.state)
    return [
        _request(service, types, snapshot)
        for service in sorted(snapshot.state.services, key=lambda each: each.name)
        if service.mode is not Mode.OFF and service.llm is not None
    ]


def _fleet_types(state: ClusterState) -> list[GpuType]:
    """The GPU types that the fleet has, by name, with the GPUs that a replica may span."""
    # Not only GPUs that are healthy now: figures must not be asked for again whenever one fails.
    per_node = Counter((gpu.gpu_type, gpu.node) for gpu in state.gpus)
    counts = defaultdict[str, list[int]](list)
    for (name, _), count in per_node.items():
        counts[name].append(count)
    return [
        _timeless(each, max_tp(counts[each.name]))
        for each in sorted(state.gpu_types, key=lambda each: each.name)
        if each.name in counts
    ]


def _timeless(
    gpu_type: GpuType,
    gpus_per_node: int,
) -> GpuType:
    """The GPU type without what changes no capacity: else another price would have every service sized again."""
    return replace(
        gpu_type,
        gpus_per_node=gpus_per_node,
        count=None,
        price_usd_per_hour=1.0,
        paid_count=0,
    )


def _request(
    service: Service,
    types: list[GpuType],
    snapshot: Snapshot,
) -> RowsRequest:
    slo, terms = service.token_slo, service.llm
    assert slo and terms, "the caller looks"
    allowed = allowed_types(service, types)
    return RowsRequest(
        service=service.name,
        network=service.network,
        stated=snapshot.llm_networks.get(service.network, LlmNetwork()),
        slo=slo,
        terms=terms,
        gpu_types=tuple(
            each for each in types if allowed is None or each.name in allowed
        ),
        served=tuple(
            each for each in snapshot.served.speeds if each.service == service.name
        ),
        lengths=_counted(snapshot, service.name) if terms.learns_lengths else None,
    )


def _longer(snapshot: Snapshot) -> Iterator[str]:
    """What replicas count far above what is stated: their plans cannot hold what they promise."""
    stated = {each.name: each.llm for each in snapshot.state.services}
    for each in snapshot.served.lengths:
        terms = stated.get(each.service)
        # Plans follow what is learned.
        if terms is None or terms.learns_lengths:
            continue
        prompts = each.prompt / terms.prompt_tokens
        answers = each.output / terms.output_tokens
        if max(prompts, answers) > _FAR_LONGER:
            yield (
                f"{each.service}: prompts of {each.prompt:.0f} and answers of {each.output:.0f} tokens were counted, "
                f"and llm.lengths states {terms.prompt_tokens:.0f} and {terms.output_tokens:.0f}: state longer ones, "
                "or leave lengths out so that they are learned"
            )


def _counted(snapshot: Snapshot, service: str) -> ServedLengths | None:
    """What the service's replicas say of its requests, where they say anything."""
    own = (each for each in snapshot.served.lengths if each.service == service)
    return next(own, None)


def with_rows(
    snapshot: Snapshot,
    rows: ModelRows,
) -> Snapshot:
    """The snapshot with the ways to run its language models, and without those that are still to be sized."""
    if not (rows.answers or rows.waiting):
        return snapshot
    # With no way to run they would count as impossible to place, and they only wait.
    waiting = set(rows.waiting)
    services = tuple(
        each for each in snapshot.state.services if each.name not in waiting
    )
    state = replace(snapshot.state, services=services)
    points = tuple(_timed(rows, snapshot.served.starts))
    return replace(snapshot, state=state, llm_points=points)


def _timed(
    rows: ModelRows,
    starts: Iterable[ServedStart],
) -> Iterator[LlmPoints]:
    """The points of all services, with starts as they were seen."""
    seconds = {(each.service, each.gpu_type): each.seconds for each in starts}
    for _, answer in sorted(rows.answers.items()):
        for points in answer.points:
            yield _with_start(points, seconds.get((points.service, points.gpu_type)))


def _with_start(
    points: LlmPoints,
    seconds: float | None,
) -> LlmPoints:
    """The points with what starts take, where one was seen: weights come from disks and networks of every speed."""
    if seconds is None:
        return points
    rows = (row._replace(start_s=seconds) for row in points.rows)
    return replace(points, rows=tuple(rows))
