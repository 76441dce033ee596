"""The launch book: where launches of services and tasks failed, and until when these are placed elsewhere.

After FAILURES failed launches within WINDOW a service or task avoids the GPU for FIRST; each further time for twice as
long, up to LONGEST. Then the GPU is tried again. Nothing has to go well to be forgiven: what lies FORGOTTEN_AFTER back
is forgotten, so that a replica that comes up for a moment between failures does not start the series again.

Source: Nomad's `reschedule` (attempts, interval, exponential delay, max_delay) after its `restart` on the same node.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from agents.base.protocol import LaunchFailure, Observation
from solvers.types.state import GpuId, gpu_id

FAILURES = 3
"""The agent's own back-off tries thrice within half a minute; by then more of the same rarely helps."""
WINDOW = timedelta(minutes=10)
FIRST = timedelta(minutes=10)
LONGEST = timedelta(hours=6)
FORGOTTEN_AFTER = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AvoidedGpu:
    """A GPU on which no replica of a service, or no task, starts for a while."""

    service: str
    """Or the `task_key` of a task."""
    gpu: GpuId
    until: datetime
    detail: str
    """The last failure, in the node's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord:
    """What is known of the launches of a service or task on one GPU."""

    failures: int = 0
    """Within WINDOW of each other, since the GPU was avoided last."""
    times: int = 0
    """How often it was avoided."""
    failed_at: datetime
    avoided_until: datetime | None = None
    detail: str = ""

    def is_avoided(self, at: datetime) -> bool:
        """Whether replicas are placed elsewhere at that time."""
        return self.avoided_until is not None and self.avoided_until > at


def task_key(name: str) -> str:
    """What stands for a task where else a service is named: no service's name has a slash."""
    return f"task/{name}"


def key_of(failure: LaunchFailure) -> str:
    """The service or task whose launch failed."""
    return failure.service or task_key(failure.replica)


def with_failure(
    before: LaunchRecord | None, detail: str, at: datetime
) -> LaunchRecord:
    """The record after one more failed launch."""
    if before is None or before.failed_at < at - FORGOTTEN_AFTER:
        before = LaunchRecord(failed_at=at)
    is_in_a_row = before.failed_at >= at - WINDOW
    failures = 1 + (before.failures if is_in_a_row else 0)
    # Where nothing else fits the replica stays and goes on failing; the time that was announced holds.
    is_enough = failures >= FAILURES and not before.is_avoided(at)
    return LaunchRecord(
        failures=0 if is_enough else failures,
        times=before.times + is_enough,
        failed_at=at,
        avoided_until=at + _pause(before.times) if is_enough else before.avoided_until,
        detail=detail,
    )


def _pause(times: int) -> timedelta:
    # The exponent is bounded, because the product of a timedelta and 2 ** 60 overflows.
    return min(LONGEST, FIRST * (1 << min(times, 10)))


@dataclass(slots=True)
class LaunchBook:
    """All records, for `MemoryStore`."""

    _records: dict[tuple[str, GpuId], LaunchRecord] = field(default_factory=dict)

    def take(self, observation: Observation, at: datetime) -> None:
        """Note an observation's failures."""
        for failure in observation.failures:
            key = key_of(failure), gpu_id(observation.node, failure.gpu_index)
            self._records[key] = with_failure(
                self._records.get(key), failure.detail, at
            )

    def avoided(self, at: datetime) -> tuple[AvoidedGpu, ...]:
        """What is avoided at that time, by service and GPU."""
        return tuple(
            avoided(*key, record)
            for key, record in sorted(self._records.items())
            if record.is_avoided(at)
        )


def avoided(service: str, gpu: GpuId, record: LaunchRecord) -> AvoidedGpu:
    """What the record of a GPU that was avoided says."""
    assert record.avoided_until is not None
    return AvoidedGpu(
        service=service, gpu=gpu, until=record.avoided_until, detail=record.detail
    )
