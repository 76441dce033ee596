"""Points of tasks: profiled ones as they are, others by their layers."""

from dataclasses import replace

from app.catalogue.catalogue import load_gpu_types, load_profiles, load_training_layers
from app.loop.planning.task_points import points_of_tasks
from solvers.laws.capacity_law import make_capacity_law
from solvers.types.problem import OperatingPoints, Problem, ServiceDemand
from solvers.types.state import Task

LAYERS = load_training_layers()
TYPES = ("T4", "A100-40GB")
TRAINING = load_profiles([each.network for each in LAYERS], TYPES)
SERVICES = load_profiles(["resnet50", "vgg16"], TYPES)
PROBLEM = Problem(
    max_replicas_per_gpu=1,
    capacity_law=make_capacity_law([0.98], [1, 2, 4, 8]),
    gpu_types=load_gpu_types(TYPES),
    services=tuple(
        ServiceDemand(
            name=name,
            network=name,
            slo_ms=300.0,
            percentile=0.98,
            arrival_rate_rps=10.0,
        )
        for name in ("resnet50", "vgg16")
    ),
    points=SERVICES,
)
SEEN = Task(
    name="seen", kind="training", network="bert-training", batch=16, iterations=1
)
UNSEEN = Task(
    name="unseen",
    kind="training",
    network="ours",
    batch=24,
    iterations=1,
    layers=(("linear", 73), ("attention", 12), ("normalisation", 25)),
    memory_mib=5000.0,
)


def of(points: tuple[OperatingPoints, ...], network: str) -> list[OperatingPoints]:
    return [entry for entry in points if entry.network == network]


def test_what_was_profiled_is_taken_as_it_is() -> None:
    found = points_of_tasks([SEEN], TRAINING, PROBLEM, LAYERS)
    assert set(found) == {
        entry for entry in TRAINING if entry.network == "bert-training"
    }


def test_where_services_run_the_network_the_problem_knows_it_best() -> None:
    offline = replace(SEEN, kind="offline", network="vgg16", batch=8)
    stale = tuple(replace(entry, sensitivity=9.0) for entry in SERVICES)
    found = points_of_tasks([offline], stale, PROBLEM, LAYERS)
    assert found and all(entry.sensitivity < 9.0 for entry in found)


def test_what_was_never_profiled_is_estimated_on_every_gpu_type_at_its_batch_and_memory() -> (
    None
):
    found = of(points_of_tasks([UNSEEN, SEEN], TRAINING, PROBLEM, LAYERS), "ours")
    assert sorted(entry.gpu_type for entry in found) == sorted(TYPES)
    assert all(
        row.batch == 24 and row.memory_mib == 5000.0
        for entry in found
        for row in entry.rows
    )
    assert all(row.pressure > 0.0 for entry in found for row in entry.rows)


def test_two_batches_of_one_network_have_rows_each() -> None:
    found = of(
        points_of_tasks(
            [UNSEEN, replace(UNSEEN, name="b", batch=32)], TRAINING, PROBLEM, LAYERS
        ),
        "ours",
    )
    assert all({row.batch for row in entry.rows} == {24, 32} for entry in found)


def test_parameters_among_the_layers_are_no_layer() -> None:
    small, large = (
        of(
            points_of_tasks(
                [
                    replace(
                        UNSEEN,
                        layers=(*UNSEEN.layers, ("parameters_millions", millions)),
                    )
                ],
                TRAINING,
                PROBLEM,
                LAYERS,
            ),
            "ours",
        )
        for millions in (9, 100)
    )
    assert small[0].rows[-1].pressure <= large[0].rows[-1].pressure


def test_without_layers_or_memory_nothing_is_guessed() -> None:
    for task in (replace(UNSEEN, layers=()), replace(UNSEEN, memory_mib=None)):
        assert points_of_tasks([task], TRAINING, PROBLEM, LAYERS) == ()


def test_the_order_of_tasks_and_points_changes_nothing() -> None:
    tasks = [UNSEEN, replace(UNSEEN, name="b", batch=32), SEEN]
    one = points_of_tasks(tasks, TRAINING, PROBLEM, LAYERS)
    other = points_of_tasks(tasks[::-1], TRAINING[::-1], PROBLEM, LAYERS)
    assert set(one) == set(other)
