"""Dispatch of jobs with the checker and next to jobs that cannot run: none blocks another."""

from dataclasses import replace

from app.dispatch.check import MAX_TRIES
from app.dispatch.jobs import MAX_WAITING
from solvers.predict.data.samples import LayerCounts
from solvers.types.plan import BoundTask
from solvers.types.problem import OperatingPoint, OperatingPoints
from solvers.types.state import GpuId, NodeId
from tests.app.fleets import a_node, a_service
from tests.app.job_places import TYPE, Place, a_job, bound_gpu, points


def refused_rows(
    network: str, *percents: float, power_w: float = 190.0
) -> OperatingPoints:
    """On the half that a replica leaves: 50 W idle, 60 of the replica and 190 are more than the cap of 250."""
    rows = (
        OperatingPoint(percent, 4, 1000.0, 0.0, 0.0, 10.0, 2000.0, power_w, 0.0)
        for percent in percents
    )
    return OperatingPoints(
        network=network, gpu_type="fast", sensitivity=0.0, rows=tuple(rows)
    )


def beside_replicas(*nodes: str) -> Place:
    """Half of every GPU is a replica's."""
    place = Place(*nodes)
    place.store.put_services([a_service()])
    place.push(
        *(
            replace(bound_gpu(has_replica=True), id=GpuId(f"{n}/gpu-0"), node=NodeId(n))
            for n in nodes
        )
    )
    return place


def told(place: Place) -> list[str]:
    return [
        event.subject for event in place.store.events if event.kind == "TaskRefused"
    ]


def test_a_job_that_the_checker_refuses_everywhere_blocks_nobody_and_is_told_once() -> (
    None
):
    place = beside_replicas("n1", "n2")
    place.store.put_points([refused_rows("hot", 25.0)])
    place.submit(a_job("poison", network="hot"))
    for _ in range(40):
        place.heard("n1")
        place.heard("n2")
        assert not place.round()
    assert told(place) == ["task/poison"]
    assert "power at n1/gpu-0" in place.store.events[-1].reason
    place.submit(a_job("small"))
    assert place.round()
    assert set(place.tasks) == {"small"}
    assert told(place) == ["task/poison"]


def test_more_refused_jobs_than_a_round_looks_at_block_nobody() -> None:
    place = beside_replicas("n1")
    place.store.put_points([refused_rows("hot", 25.0)])
    place.submit(
        *(a_job(f"poison{at:03d}", network="hot") for at in range(MAX_WAITING))
    )
    place.round()
    place.submit(a_job("small"))
    place.heard("n1")
    assert place.round()
    assert set(place.tasks) == {"small"}


def test_a_job_is_refused_at_one_setting_and_runs_at_another() -> None:
    place = beside_replicas("n1")
    # 50 % would be the faster one; 25 % draws 40 W: 50 + 60 + 40 < 250.
    rows = (
        *refused_rows("warm", 50.0).rows,
        *refused_rows("warm", 25.0, power_w=40.0).rows,
    )
    slower = (rows[0], rows[1]._replace(run_ms=100.0))
    place.store.put_points([replace(refused_rows("warm"), rows=slower)])
    place.submit(a_job("a", network="warm"))
    assert place.round()
    assert place.tasks["a"][1].sm_percent == 25.0
    assert told(place) == []


def test_a_refused_job_looks_for_another_gpu_round_by_round() -> None:
    # More GPUs refuse it than a round tries; the last one has no replica.
    nodes = [f"n{at:02d}" for at in range(MAX_TRIES + 3)]
    place = beside_replicas(*nodes)
    place.push(*(gpu for gpu in place.target.gpus if gpu.node != nodes[-1]))  # type: ignore[union-attr]
    place.store.put_points([refused_rows("hot", 25.0)])
    place.submit(a_job("a", network="hot"))
    assert not place.round()
    assert place.round()
    assert place.tasks["a"][0] == f"{nodes[-1]}/gpu-0"


def test_of_jobs_that_are_refused_only_together_one_starts() -> None:
    place = beside_replicas("n1")
    # 50 + 60 + 80 = 190 W with one, 270 W with both.
    place.store.put_points([refused_rows("warm", 25.0, power_w=80.0)])
    # Four that wait fill the fleet, so that any two would share the GPU.
    place.submit(*(a_job(name, network="warm") for name in "abcd"))
    assert place.round()
    assert set(place.tasks) == {"a"}
    place.report("a", "finished", 100.0)
    assert place.round()
    assert set(place.tasks) == {"b"}


def test_who_waits_for_too_long_gets_the_gpu_that_is_refused_only_beside_other_jobs() -> (
    None
):
    place = beside_replicas("n1")
    place.store.put_points(
        [
            refused_rows("warm", 25.0, power_w=100.0),
            refused_rows("mild", 5.0, power_w=60.0),
        ]
    )
    place.submit(a_job("long", network="mild", iterations=10**6))
    assert place.round()
    place.submit(a_job("a", network="warm"))
    # 50 + 60 + 60 + 100 > 250; almost done, the GPU takes jobs again, but none before `a`.
    place.report("long", "running", 0.9 * 10**6)
    place.heard("n1")
    place.clock.advance(10.0)
    place.heard("n1")
    assert not place.round()
    for _ in range(25):
        place.heard("n1")
        place.round()
    place.submit(a_job("later", network="mild"))
    assert not place.round()
    place.report("long", "finished", 1e6)
    assert place.round()
    assert "a" in place.tasks


def test_jobs_without_settings_take_nobodys_place_in_a_round() -> None:
    place = Place()
    place.submit(
        *(a_job(f"odd{at:03d}", network="unknown") for at in range(MAX_WAITING))
    )
    place.clock.advance(1.0)
    place.submit(a_job("a"))
    assert place.round()
    assert set(place.tasks) == {"a"}


def test_a_job_that_waits_is_tuned_anew_when_a_gpu_type_joins() -> None:
    place = Place()
    place.store.put_gpu_types([TYPE, replace(TYPE, name="slow")])
    place.store.put_points([replace(points("big"), gpu_type="slow")])
    place.push()
    place.submit(a_job("a", network="big"))
    assert not place.round()
    node, gpus = a_node("n2")
    place.store.put_node(
        node, [replace(gpus[0], gpu_type="slow")], at=place.clock.now()
    )
    place.push()
    assert place.round()
    assert place.tasks["a"][0] == "n2/gpu-0"


def test_a_job_runs_beside_training_that_was_never_profiled() -> None:
    place = Place()
    place.dispatcher.layers = (
        LayerCounts(network="photo", counts={"linear": 3}, parameters_millions=1.0),
    )
    ours = a_job(
        "ours",
        kind="training",
        network="ours",
        layers=(("linear", 3),),
        memory_mib=3000.0,
    )
    running = BoundTask(
        name="ours",
        kind="training",
        network="ours",
        batch=4,
        sm_percent=25.0,
        memory_mib=3000.0,
        iterations=100,
    )
    place.submit(ours, a_job("a"))
    place.push(bound_gpu(running))
    assert place.round()
    assert set(place.tasks) == {"ours", "a"}
    place.store.tasks.records.pop("a")
    # A network of which nothing is known is no neighbour: what it draws is not known.
    place.dispatcher.layers = ()
    place.submit(a_job("b"))
    assert not place.round()
    assert told(place) == ["task/b"]
