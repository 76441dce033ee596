"""What nodes reported: windows of services and readings of replicas, kept for `MemoryStore`; and what these say.

How fast language models' replicas were lately, by what engines count of their own tokens, is remembered nowhere: the
last minutes' readings say it, to all who ask, also after a restart. So do the sums of the last two hours how long their
requests are.
"""

import math
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import geometric_mean
from typing import TypeAlias

from agents.base.protocol import Observation, ReplicaReading
from app.store.store import Execution, ServiceWindow
from app.store.windows import (
    NO_TOKENS,
    EngineTokens,
    Sums,
    engine_sums_of,
    is_notable,
    make_windows,
    parts_of,
)
from solvers.types.llm import (
    SPEED_SLOPE,
    ServedLengths,
    ServedModels,
    ServedSpeed,
    ServedStart,
)
from solvers.types.plan import BoundPlan
from solvers.types.state import Demand, GpuId, Service, gpu_id

EXECUTIONS_KEPT_S = 120.0
"""Readings of replicas are kept for so long; learning looks back a minute."""

LOOK_BACK_S = 100.0
SETTLE_S = 10.0
"""Windows arrive this late at most: an agent's period and the way."""
MIN_TOKENS = 500
"""Fewer say little: the times of single steps scatter."""
TOKEN_STEP_S = 300.0
TOKEN_HOURS = 2.0
"""Lengths are those of the worst minutes of so long: they drift within an hour, and come again the next."""
MIN_REQUESTS = 100
"""From fewer no lengths are learned: their means are off by 13 % or more."""
_MANY_REQUESTS = 300
"""Together these tell lengths well enough to be the worst ones."""
_SEQUENCES_STEP, _ITL_STEP = math.log(1.5), 0.04
_Kind: TypeAlias = tuple[str, str, int, int]
"""Service, GPU type, degree and token budget."""


@dataclass(slots=True)
class _Window:
    """One of the loop's windows, of all services."""

    sums: dict[str, Sums] = field(default_factory=lambda: defaultdict(Sums))
    """By service."""
    made: tuple[ServiceWindow, ...] | None = None
    """As snapshots hold it, made once for all of them; None = something was counted since."""


@dataclass(slots=True, kw_only=True)
class ObservationBook:
    """What agents reported. Each observation counts once, however often it is sent."""

    _received: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    """Sequence numbers that came, by node and boot."""
    _windows: dict[float, dict[int, _Window]] = field(default_factory=dict)
    """The loop's windows, by length and number."""
    _planned_rps: dict[str, float] = field(default_factory=dict)
    """What the newest decision planned for, or foresaw where that is higher, by service."""
    _at_zero: set[str] = field(default_factory=set)
    """Services for which the newest decision plans no replica."""
    _decided_rps: dict[str, float] = field(default_factory=dict)
    """What the newest decision planned for, by service."""
    _readings: deque[tuple[float, str, ReplicaReading]] = field(default_factory=deque)
    """(start of the window, GPU, reading)."""
    _tokens: dict[tuple[str, int], EngineTokens] = field(default_factory=dict)
    """What engines counted, by service and number of the step."""

    def receive(self, observation: Observation) -> bool:
        """Whether it came for the first time."""
        # All of them are kept: a late repetition must be told from a first arrival, however old it is.
        sequences = self._received.setdefault(
            (observation.node, observation.boot), set()
        )
        is_new = observation.sequence not in sequences
        sequences.add(observation.sequence)
        return is_new

    def newest_sequence(self, node: str, boot: str) -> int:
        """The highest sequence number of a boot; it has reported."""
        return max(self._received[node, boot])

    def count(
        self,
        observation: Observation,
        *,
        start_s: float,
        window_s: float,
        received_s: float,
    ) -> bool:
        """Add a new observation, whose own window begins at `start_s`, to the loop's windows and to the readings.

        Returns whether more came than was planned for.
        """
        notable = False
        end_s = start_s + observation.window_s
        windows = self._windows.setdefault(window_s, {})
        for (service, number), counts in parts_of(observation, end_s, window_s):
            # Not `setdefault`: it would make a window, and throw it away, for every service of every report.
            if number not in windows:
                windows[number] = _Window()
            window = windows[number]
            window.sums[service].add(counts)
            window.made = None
            planned_rps = self._planned_rps.get(service, 0.0)
            arrivals = window.sums[service].arrivals
            # The first request to a service at zero waits for a replica: a tick should start it now.
            is_first = arrivals > 0 and service in self._at_zero
            notable |= is_first or is_notable(arrivals, planned_rps, window_s)
        self._count_tokens(observation, int(start_s // TOKEN_STEP_S))
        for each in observation.replicas:
            gpu = gpu_id(observation.node, each.gpu_index)
            self._readings.append((start_s, gpu, each))
        # From the oldest on: readings come nearly in the order of their windows.
        while self._readings and self._readings[0][0] < received_s - EXECUTIONS_KEPT_S:
            self._readings.popleft()
        return notable

    def plan_for(
        self, demands: Iterable[Demand], services: Mapping[str, Service]
    ) -> None:
        """What arrivals are compared with from now on. `services`: those that are there, by name."""
        for demand in demands:
            self._at_zero.discard(demand.service)
            service = services.get(demand.service)
            may_be_zero = service is not None and service.scaling.may_be_zero
            if demand.arrival_rate_rps == 0.0 and may_be_zero:
                self._at_zero.add(demand.service)
            _, high_rps = demand.interval_rps or (0.0, 0.0)
            self._planned_rps[demand.service] = max(demand.arrival_rate_rps, high_rps)
            self._decided_rps[demand.service] = demand.arrival_rate_rps

    def decided_rps(self, services: Iterable[str]) -> dict[str, float]:
        """What the newest decision planned for, of those services for which one did."""
        return {
            name: self._decided_rps[name]
            for name in services
            if name in self._decided_rps
        }

    def load_windows(
        self,
        numbers: range,
        window_s: float,
    ) -> tuple[ServiceWindow, ...]:
        """The windows with these numbers, oldest first. Older ones, and those of another length, are forgotten."""
        recent = {
            number: each
            for number, each in self._windows.get(window_s, {}).items()
            if number >= numbers.start
        }
        self._windows = {window_s: recent}
        return tuple(
            one
            for number in numbers
            if number in recent
            for one in _made(recent[number], number, window_s)
        )

    def _count_tokens(self, observation: Observation, step: int) -> None:
        for service, sums in engine_sums_of(observation):
            before = self._tokens.get((service, step), NO_TOKENS)
            self._tokens[service, step] = before.plus(sums.engine_tokens)

    def load_served(
        self,
        target: BoundPlan | None,
        now: datetime,
        starts: tuple[ServedStart, ...],
    ) -> ServedModels:
        """What language models' replicas said of themselves lately. `starts`: how long theirs took."""
        gpus = model_gpus(target)
        # Most fleets have none, and a look goes through all readings.
        if not gpus:
            return ServedModels(starts=starts)
        first, last = (moment.timestamp() for moment in stretch(now))
        executions = self.load_executions(first, last, gpus)
        oldest = oldest_step(now).timestamp() // TOKEN_STEP_S
        self._tokens = {
            key: tokens for key, tokens in self._tokens.items() if key[1] >= oldest
        }
        return ServedModels(
            speeds=served_speeds(target, executions),
            lengths=served_lengths(
                (service, tokens)
                for (service, _), tokens in sorted(self._tokens.items())
            ),
            starts=starts,
        )

    def load_executions(
        self,
        first_s: float,
        last_s: float,
        gpus: Collection[GpuId],
    ) -> tuple[Execution, ...]:
        """What every replica of these GPUs executed in windows that start in [first_s, last_s), by GPU and replica."""
        readings: dict[tuple[str, str], list[ReplicaReading]] = defaultdict(list)
        for start_s, gpu, reading in self._readings:
            if first_s <= start_s < last_s and gpu in gpus:
                readings[gpu, reading.id].append(reading)
        return tuple(
            make_execution(gpu, readings[gpu, replica])
            for gpu, replica in sorted(readings)
        )


def _made(window: _Window, number: int, window_s: float) -> tuple[ServiceWindow, ...]:
    if window.made is None:
        sums = {(service, number): each for service, each in window.sums.items()}
        window.made = make_windows(sums, window_s)
    return window.made


def make_execution(gpu: str, readings: Sequence[ReplicaReading]) -> Execution:
    """What one replica executed, from the readings of its windows; at least one."""
    batches = sum(each.batches for each in readings)
    busy_ms = sum(each.batches * each.execution_ms for each in readings)
    # A replica that was changed within the period measured two settings at once.
    sm_percents = {each.sm_percent for each in readings}
    sizes = {each.batch for each in readings}
    is_unchanged = len(sm_percents) == len(sizes) == 1
    return Execution(
        replica=readings[0].id,
        gpu=gpu,
        service=min(each.service for each in readings),
        sm_percent=min(sm_percents),
        batch=min(sizes),
        is_steady=is_unchanged and all(each.state == "ready" for each in readings),
        batches=batches,
        requests=sum(each.requests for each in readings),
        execution_ms=busy_ms / batches if batches else 0.0,
    )


def stretch(now: datetime) -> tuple[datetime, datetime]:
    """From when to when windows are looked at."""
    until = now - timedelta(seconds=SETTLE_S)
    return until - timedelta(seconds=LOOK_BACK_S), until


def model_gpus(target: BoundPlan | None) -> tuple[GpuId, ...]:
    """The GPUs on which language models' replicas stand."""
    gpus = () if target is None else target.gpus
    return tuple(gpu.id for gpu in gpus if any(each.llm for each in gpu.replicas))


def served_speeds(
    target: BoundPlan | None, executions: Iterable[Execution]
) -> tuple[ServedSpeed, ...]:
    """The mean over replicas of a kind, of those that were ready all the time; by service, GPU type and degree.

    `executions`: of the stretch, where batches are tokens that followed another one, and their time is the time since.
    """
    kinds = _planned_kinds(target)
    found = defaultdict[_Kind, list[Execution]](list)
    for each in executions:
        kind = kinds.get(each.replica)
        if kind is not None and each.is_steady and each.batches >= MIN_TOKENS:
            found[kind].append(each)
    return tuple(_speed(kind, seen) for kind, seen in sorted(found.items()))


def oldest_step(now: datetime) -> datetime:
    """Where the first step begins whose lengths are looked at."""
    since_s = now.timestamp() - 3600.0 * TOKEN_HOURS
    step = since_s // TOKEN_STEP_S
    return datetime.fromtimestamp(step * TOKEN_STEP_S, UTC)


def served_lengths(
    steps: Iterable[tuple[str, EngineTokens]],
) -> tuple[ServedLengths, ...]:
    """How long requests were at worst, by service. `steps`: what engines counted, in the order of time."""
    found = defaultdict[str, list[EngineTokens]](list)
    for service, tokens in steps:
        found[service].append(tokens)
    means = (_lengths(service, counted) for service, counted in sorted(found.items()))
    return tuple(each for each in means if each is not None)


def _lengths(service: str, steps: Sequence[EngineTokens]) -> ServedLengths | None:
    parts = list(_parts(steps))
    if not parts:
        return None
    means = [each.means(service) for each in parts]
    # Not of the same part: plans must hold for any of them.
    return ServedLengths(
        service,
        prompt=max(each.prompt for each in means),
        output=max(each.output for each in means),
        found_share=min(each.found_share for each in means),
    )


def _parts(steps: Sequence[EngineTokens]) -> Iterator[EngineTokens]:
    """Steps that follow each other, as many together as tell lengths well; all together where those are too few."""
    together = NO_TOKENS
    is_any = False
    for each in steps:
        together = together.plus(each)
        if together.requests >= _MANY_REQUESTS:
            yield together
            together = NO_TOKENS
            is_any = True
    if not is_any and together.requests >= MIN_REQUESTS:
        yield together


def _planned_kinds(target: BoundPlan | None) -> dict[str, _Kind]:
    """The kinds of language models' replicas, by their ids."""
    return {
        replica.id: (
            replica.service,
            gpu.gpu_type,
            len(replica.llm.gpus),
            replica.llm.max_num_batched_tokens,
        )
        for gpu in (target.gpus if target else ())
        for replica in gpu.replicas
        if replica.llm is not None
    }


def _speed(kind: _Kind, seen: Sequence[Execution]) -> ServedSpeed:
    """Geometric means, as what is learned of is the logarithm; in steps, so that who asks again finds the same."""
    itl_ms = geometric_mean(each.execution_ms for each in seen)
    # Little's law: that number of sequences have a token under way at a time, on average.
    sequences = geometric_mean(
        max(1.0, each.batches * each.execution_ms / 1000.0 / LOOK_BACK_S)
        for each in seen
    )
    rounded = max(1.0, _in_steps(sequences, _SEQUENCES_STEP))
    # The time goes with the sequences to where they are rounded to.
    itl_ms *= (rounded / sequences) ** SPEED_SLOPE
    return ServedSpeed(*kind, rounded, _in_steps(itl_ms, _ITL_STEP))


def _in_steps(value: float, step: float) -> float:
    """The nearest of values that lie so far apart by their logarithms."""
    return math.exp(step * round(math.log(value) / step))
