"""How long launches are expected to take: by what was measured lately, on the slowest GPU type."""

import pytest

from agents.base.protocol import LaunchTime, Observation
from app.store.launch_times import (
    KEPT,
    MAX_LAUNCH_S,
    USUAL_LAUNCH_S,
    LaunchTimes,
    SecondsByType,
    usual_launch_s,
)
from solvers.types.llm import LlmTerms, ServedStart
from solvers.types.state import Gpu, NodeId, Service, Slo, gpu_id

GPUS = {
    gpu.id: gpu
    for gpu in (
        Gpu(id=gpu_id("n1", 0), node=NodeId("n1"), gpu_type="big", index=0),
        Gpu(id=gpu_id("n1", 1), node=NodeId("n1"), gpu_type="small", index=1),
    )
}


def a_report(*launches: tuple[int, float], service: str = "chat") -> Observation:
    """(GPU index, seconds) of launches on n1."""
    return Observation(
        node="n1",
        boot="b1",
        sequence=1,
        window_start_s=0.0,
        window_s=5.0,
        generation=1,
        launches=tuple(
            LaunchTime(replica="r1", service=service, gpu_index=index, seconds=seconds)
            for index, seconds in launches
        ),
    )


@pytest.mark.parametrize(
    ("seconds", "expected_s"),
    [
        ({}, USUAL_LAUNCH_S),
        ({"big": (4.0,)}, 4.0),
        ({"big": (4.0, 5.0, 300.0)}, 5.0),  # One cold disk says little.
        ({"big": (4.0, 5.0, 6.0), "small": (40.0,)}, 40.0),
    ],
)
def test_the_median_of_the_slowest_type_is_expected(
    seconds: SecondsByType, expected_s: float
) -> None:
    assert usual_launch_s(seconds) == expected_s


def test_the_newest_are_kept_by_type_and_none_counts_for_hours() -> None:
    times = LaunchTimes()
    for number in range(KEPT + 2):
        times.take(a_report((0, float(number))), GPUS)
    times.take(a_report((1, 1e9), (7, 1.0)), GPUS)
    assert times.of("chat") == {
        "big": [float(number) for number in range(KEPT + 1, 1, -1)],
        "small": [MAX_LAUNCH_S],
    }
    assert times.of("search") == {}


def test_a_type_takes_as_long_as_the_newest_launches_of_half_of_the_services() -> None:
    times = LaunchTimes()
    launches = (("chat", 90.0), ("chat", 4.0), ("photo", 6.0), ("sound", 9.0))
    for service, launch_s in launches:
        times.take(a_report((0, launch_s), service=service), GPUS)
    times.take(a_report((1, 2.0)), GPUS)
    assert times.by_type() == {"big": 6.0, "small": 2.0}


def a_service(name: str, *, is_model: bool = False) -> Service:
    return Service(
        name=name,
        network="network",
        slo=Slo(latency_ms=100.0, percentile=0.95),
        llm=LlmTerms(itl_ms=50.0) if is_model else None,
    )


def test_models_are_known_by_the_median_of_their_newest_launches() -> None:
    times = LaunchTimes()
    times.take(a_report((0, 90.0), (0, 300.0), (0, 110.0), (1, 20.0)), GPUS)
    times.take(a_report((0, 7.0), service="small"), GPUS)
    services = (a_service("chat", is_model=True), a_service("small"))
    assert times.of_models(services) == (
        ServedStart("chat", "big", 110.0),
        ServedStart("chat", "small", 20.0),
    )
