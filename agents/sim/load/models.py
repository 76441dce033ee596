"""The language models of a simulated cluster: their engines, how long their requests are, and which engine gets which.

As routers do it, a request goes to the engine that has least in flight for its weight: answers last as long as they
are, and turns would pile long ones up.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agents.base.device import LaunchFailed
from agents.base.protocol import ReplicaCommand
from agents.llm.scheduler import EngineSize
from agents.sim.queues.engine_queue import EngineQueue, TokenLimits
from agents.sim.queues.tally import Floats, Ints, ServiceTally
from agents.sim.truth.llm_steps import EnginePlace, MakeEngine
from agents.sim.truth.truth import TruthError

_STREAM = 3_000_000
"""Random streams of lengths, far from those of loads, nodes and clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelService:
    """One language model's service: what its engines run, and what it is asked."""

    make_truth: MakeEngine
    precision: str
    """What the published weights are kept in."""
    limits: TokenLimits
    prompt_tokens: Ints
    """(K,) with `output_tokens`: pairs of lengths, each as likely as any other."""
    output_tokens: Ints
    is_in_order: bool = False
    """They come one after the other, and again from the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedEngine:
    """One replica that executes, and what counts its requests."""

    queue: EngineQueue
    tally: ServiceTally
    weight: float
    is_open: bool
    """Whether it gets new requests."""


class SimulatedModels:
    """All services of language models."""

    def __init__(self, services: Mapping[str, ModelService], seed: int) -> None:
        self._services = services
        # By name, so that another service changes nothing for this one.
        self._randoms = {
            service: np.random.default_rng([seed, _STREAM + number])
            for number, service in enumerate(sorted(services))
        }
        self._begun = Counter[str]()
        """Requests so far, by service."""

    def __contains__(self, service: str) -> bool:
        return service in self._services

    def make_queue(self, command: ReplicaCommand, gpu_type: str) -> EngineQueue:
        """A new replica's engine. Raises LaunchFailed for what could not run, or what was not measured."""
        engine, service = command.engine, self._services.get(command.service)
        if engine is None or service is None:
            raise LaunchFailed(
                f"no language model of service {command.service} is known here"
            )
        place = EnginePlace(
            gpu_type=gpu_type,
            gpus=len(engine.gpus),
            precision=engine.precision or service.precision,
            memory_mib=command.memory_mib,
        )
        try:
            truth = service.make_truth(place)
        except TruthError as error:
            raise LaunchFailed(str(error)) from error
        size = EngineSize(
            max_num_batched_tokens=engine.max_num_batched_tokens,
            max_num_seqs=engine.max_num_seqs,
            kv_blocks=truth.kv_blocks,
        )
        return EngineQueue(truth, size, service.limits)

    def serve(
        self,
        service: str,
        engines: Sequence[RoutedEngine],
        requests: tuple[Floats, Floats],
        window: tuple[float, float],
    ) -> None:
        """Let engines work through a window.

        `requests`: when each reaches the replicas, and since when its latency counts; ascending. With any, at least one
        engine is open.
        """
        start_s, end_s = window
        for each in engines:
            each.queue.begin(start_s)
        lengths = self._lengths(service, len(requests[0]))
        chosen_from = [each for each in engines if each.is_open]
        # Where the plan gives rates, engines without one get nothing.
        rated = [each for each in chosen_from if each.weight > 0.0]
        for reached_s, since_s, prompt, output in zip(
            *(each.tolist() for each in (*requests, *lengths)), strict=True
        ):
            for each in rated or chosen_from:
                each.queue.advance(reached_s, each.tally)
            emptiest = min(rated or chosen_from, key=_load)
            # Those that waited while there was no replica were counted when they came.
            emptiest.tally.arrivals += since_s >= start_s
            emptiest.queue.offer((prompt, output), (reached_s, since_s), emptiest.tally)
        for each in engines:
            each.queue.end(end_s, each.tally)

    def _lengths(self, service: str, count: int) -> tuple[Ints, Ints]:
        """(count,) tokens of prompts, and of answers."""
        known = self._services[service]
        if known.is_in_order:
            places = np.arange(count) + self._begun[service]
            self._begun[service] += count
            places %= len(known.prompt_tokens)
            return known.prompt_tokens[places], known.output_tokens[places]
        # One draw per request, so that no cut of the time changes them.
        draws = self._randoms[service].random(count)
        places = (draws * len(known.prompt_tokens)).astype(np.int64)
        return known.prompt_tokens[places], known.output_tokens[places]


def _load(engine: RoutedEngine) -> float:
    """What an engine has to do with one request more, for its weight."""
    return (engine.queue.in_flight + 1) / (engine.weight or 1.0)
