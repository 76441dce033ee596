"""Which engine gets which request, and what cannot be started."""

from functools import partial

import msgspec
import numpy as np
import pytest

from agents.base.device import LaunchFailed
from agents.base.protocol import ReplicaCommand
from agents.sim.load.models import ModelService, RoutedEngine, SimulatedModels
from agents.sim.queues.engine_queue import TokenLimits
from agents.sim.queues.tally import ServiceTally
from agents.sim.truth.llm_steps import EngineTruth
from tests.agents.factories import a_replica
from tests.agents.factories import an_engine as engine_command
from tests.agents.sim.queues.test_engine_queue import a_queue
from tests.agents.sim.truth.test_llm_steps import SHAPE

SERVICE = ModelService(
    make_truth=partial(EngineTruth, SHAPE),
    precision="bf16",
    limits=TokenLimits(ttft_s=2.0, itl_s=1.5),
    prompt_tokens=np.array([10, 20]),
    output_tokens=np.array([4, 8]),
)


def the_models() -> SimulatedModels:
    return SimulatedModels({"chat": SERVICE}, seed=1)


def an_engine(weight: float = 1.0, *, is_open: bool = True) -> RoutedEngine:
    return RoutedEngine(
        queue=a_queue(), tally=ServiceTally(), weight=weight, is_open=is_open
    )


def serve(engines: list[RoutedEngine], requests: int) -> list[int]:
    moments = np.zeros(requests)
    the_models().serve("chat", engines, (moments, moments), (0.0, 0.5))
    return [each.queue.in_flight for each in engines]


def test_each_request_goes_to_the_engine_with_least_in_flight_for_its_weight() -> None:
    assert serve([an_engine(), an_engine()], 6) == [3, 3]
    assert serve([an_engine(2.0), an_engine(1.0)], 6) == [4, 2]


def test_engines_that_drain_or_have_no_rate_get_nothing_new() -> None:
    draining = an_engine(is_open=False)
    draining.queue.begin(0.0)
    draining.queue.offer((10, 4), (0.0, 0.0), draining.tally)
    assert serve([draining, an_engine(), an_engine(0.0)], 4) == [1, 4, 0]
    assert draining.queue.busy_s == pytest.approx(0.5)
    # Where no engine has a rate, all share.
    assert serve([an_engine(0.0), an_engine(0.0)], 4) == [2, 2]


def a_model(service: str = "chat", gpus: int = 1) -> ReplicaCommand:
    replica = a_replica("chat-1", service=service, memory_mib=65_536.0)
    return msgspec.structs.replace(replica, engine=engine_command(*range(gpus)))


@pytest.mark.parametrize(
    ("command", "gpu_type", "problem"),
    [
        (a_model("other"), "H100", "no language model of service other"),
        (a_model(), "V100-16GB", "on V100-16GB; on .* they were"),
        (a_model(gpus=3), "H100", "3"),
    ],
)
def test_what_cannot_run_is_not_started(
    command: ReplicaCommand, gpu_type: str, problem: str
) -> None:
    with pytest.raises(LaunchFailed, match=problem):
        the_models().make_queue(command, gpu_type)
