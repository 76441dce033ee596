"""How long new replicas of a service take until they are ready, by GPU type, as agents measured it lately.

Room for bursts must last until a new replica can serve; which GPU type that will be on is not known beforehand, so the
slowest counts.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from agents.base.protocol import LaunchTime, Observation
from solvers.types.llm import ServedStart
from solvers.types.state import Gpu, GpuId, Service, gpu_id

KEPT = 16
"""Launches of a service on one GPU type that are remembered, the newest."""
MAX_LAUNCH_S = 600.0
"""A longer one is a launch that went wrong, or a report of it that did."""
USUAL_LAUNCH_S = 10.0
"""A service that was never seen to start is taken for a small network with its weights in the page cache."""
USUAL_MODEL_LAUNCH_S = 100.0
"""The same of a language model: weights, compilation and graphs of 32 billion parameters at TP 2, as llm-d measured."""

SecondsByType = Mapping[str, Sequence[float]]
"""The newest launches of one service in seconds, by GPU type."""


def usual_launch_s(seconds: SecondsByType, *, is_model: bool = False) -> float:
    """How long the next launch is expected to take: the median of those on the slowest GPU type."""
    # The median, so that a launch that met a cold disk does not keep GPUs busy for hours.
    medians = (median(each) for each in seconds.values() if each)
    return max(medians, default=USUAL_MODEL_LAUNCH_S if is_model else USUAL_LAUNCH_S)


def served_starts(
    known: Mapping[str, SecondsByType],
) -> tuple[ServedStart, ...]:
    """The median of each service's newest launches on each GPU type, by both."""
    return tuple(
        ServedStart(service, gpu_type, median(seconds))
        for service, by_type in sorted(known.items())
        for gpu_type, seconds in sorted(by_type.items())
        if seconds
    )


class LaunchTimes:
    """The newest launches of all services, for simulations."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[str, list[float]]] = {}

    def take(self, observation: Observation, gpus: Mapping[GpuId, Gpu]) -> None:
        """Note what a node says of launches; gpus: those that are known."""
        for launch in observation.launches:
            gpu = gpus.get(gpu_id(observation.node, launch.gpu_index))
            if gpu is not None:
                known = self._seconds.setdefault(launch.service, {})
                newest = [seconds_of(launch), *known.get(gpu.gpu_type, ())]
                known[gpu.gpu_type] = newest[:KEPT]

    def of(self, service: str) -> SecondsByType:
        """Those of one service."""
        return self._seconds.get(service, {})

    def of_models(
        self,
        services: Iterable[Service],
    ) -> tuple[ServedStart, ...]:
        """How long language models take to start."""
        models = (each.name for each in services if each.llm is not None)
        return served_starts({name: self.of(name) for name in models})

    def by_type(self) -> dict[str, float]:
        """By GPU type, the median over services of their newest launch there."""
        newest: defaultdict[str, list[float]] = defaultdict(list)
        for known in self._seconds.values():
            for gpu_type, seconds in known.items():
                newest[gpu_type].append(seconds[0])
        return {gpu_type: median(newest[gpu_type]) for gpu_type in sorted(newest)}


def seconds_of(launch: LaunchTime) -> float:
    """What a launch counts as."""
    return min(launch.seconds, MAX_LAUNCH_S)
