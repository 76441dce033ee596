"""What one node's GPUs did since somebody last polled them, next to the windows of the device's readings.

Counters run from reading to reading; a poll is the difference to the poll before, whatever readings lie between.

The peak power of a period is idle power plus, for every replica or task that executed, its mean watts while it did:
what the board draws when all that ran in the period run at once. The engine counts energy, not power over time, so a
batch that is larger than the others of its period is averaged with them. Latencies are those of a service on this
node; the engine does not tell its replicas apart.
"""

from collections.abc import Iterator

import numpy as np

from agents.base.device import GpuPoll, ReplicaPoll
from agents.base.latency_buckets import BUCKET_COUNT
from agents.sim.gpu import SimGpu, SimReplica
from agents.sim.node import SimNode
from agents.sim.queues.tally import Floats

_BATCHES, _REQUESTS, _EXECUTION_S, _BUSY_S, _ENERGY_J = range(5)

_DIGITS = 6
"""Figures are rounded to millionths: sums that were cut elsewhere differ in their last digits."""

_Key = tuple[str, str]
"""("replica", id), ("task", name) or ("service", name)."""


class PollWindows:
    """Windows of polls of the GPUs of one node. A GPU that is not polled costs nothing."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self._marks: dict[int, dict[_Key, Floats]] = {}
        """Counters at the last poll, or nothing where a window began after it; by GPU."""
        self._carried: dict[int, dict[_Key, Floats]] = {}
        """Counts of windows that ended since the last poll; by GPU."""

    def end_window(self) -> None:
        """Keep what the counters say before they begin again."""
        for index in self._marks:
            # Each reading resets the counters, which must not cut the window of a poll.
            self._carried[index] = dict(self._since(self._node.gpus[index]))
            self._marks[index] = {}

    def take(self, gpu: SimGpu) -> GpuPoll:
        """What the GPU did since the last poll of it; at the first, since the last reading."""
        counts = dict(self._since(gpu))
        self._marks[gpu.index] = {
            key: counter.copy() for key, counter in self._counters(gpu)
        }
        self._carried[gpu.index] = {}
        power_w = self._node.world.idle_w(gpu.spec.gpu_type)
        for work in (work for (kind, _), work in counts.items() if kind != "service"):
            power_w += work[_ENERGY_J] / work[_BUSY_S] if work[_BUSY_S] > 0.0 else 0.0
        return GpuPoll(
            peak_power_w=round(float(power_w), _DIGITS),
            replicas=tuple(
                _poll(
                    each,
                    counts["replica", each.command.id],
                    counts["service", each.command.service],
                )
                for each in gpu.replicas.values()
            ),
        )

    def _since(self, gpu: SimGpu) -> Iterator[tuple[_Key, Floats]]:
        marks, carried = (
            self._marks.get(gpu.index, {}),
            self._carried.get(gpu.index, {}),
        )
        for key, counter in self._counters(gpu):
            mark = marks.get(key, np.zeros(len(counter)))
            is_same = bool(
                (counter >= mark).all()
            )  # else another replica has its id now
            yield key, counter - (mark if is_same else 0.0) + carried.get(key, 0.0)

    def _counters(self, gpu: SimGpu) -> Iterator[tuple[_Key, Floats]]:
        for each in gpu.carried:
            queue = each.queue
            counts = [
                queue.batches,
                queue.requests,
                queue.execution_s,
                queue.busy_s,
                queue.energy_j,
            ]
            yield ("replica", each.command.id), np.array(counts, float)
        for name, task in gpu.tasks.items():
            yield ("task", name), np.array([0.0, 0.0, 0.0, task.busy_s, task.energy_j])
        for service in {each.command.service: None for each in gpu.replicas.values()}:
            tally = self._node.tallies.get(service)
            yield (
                ("service", service),
                np.zeros(BUCKET_COUNT)
                if tally is None
                else tally.buckets.astype(float),
            )


def _poll(each: SimReplica, work: Floats, buckets: Floats) -> ReplicaPoll:
    batches = round(work[_BATCHES])
    return ReplicaPoll(
        id=each.command.id,
        batches=batches,
        requests=round(work[_REQUESTS]),
        queued=each.queue.in_flight,
        execution_ms=round(1000.0 * float(work[_EXECUTION_S]) / batches, _DIGITS)
        if batches
        else 0.0,
        latency_buckets=tuple(
            (bucket, round(count)) for bucket, count in enumerate(buckets) if count
        ),
    )
