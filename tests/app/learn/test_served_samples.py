"""Samples of what is served: one of a condition, of the replica in the middle, now and then."""

from dataclasses import replace

from app.learn.served_samples import EVERY_S, served_samples
from app.store.store import SERVED, Execution, SampleRow
from solvers.predict.data.samples import Neighbour
from tests.app.snapshots import a_bound_plan, a_replica

UNTIL_S = 1_000_000.0
SINCE_S = UNTIL_S - 10.0
GPUS = a_bound_plan(
    [a_replica("a", batch=8), a_replica("b", service="photo", sm_percent=30.0)],
    [a_replica("c", batch=8)],
    [a_replica("d", batch=8)],
    [a_replica("e", batch=8)],
).gpus


def an_execution(
    gpu: int, name: str, execution_ms: float = 40.0, **changes: object
) -> Execution:
    seen = Execution(
        replica=name,
        gpu=f"n{gpu}/gpu-0",
        service="chat",
        sm_percent=30.0 if name == "b" else 50.0,
        batch=1 if name == "b" else 8,
        is_steady=True,
        batches=10,
        requests=10 if name == "b" else 60,
        execution_ms=execution_ms,
    )
    return replace(seen, **changes)  # type: ignore[arg-type]


ALONE = [
    an_execution(2, "c", 40.0),
    an_execution(3, "d", 90.0),
    an_execution(4, "e", 42.0),
]
# Both busy for nine of the ten seconds.
TOGETHER = [
    an_execution(1, "a", 50.0, batches=180, requests=1000),
    an_execution(1, "b", 20.0, batches=450, requests=450),
]


def samples_of(
    *executions: Execution, sampled_s: float | None = None
) -> list[SampleRow]:
    first = served_samples(GPUS, executions, {}, since_s=SINCE_S, until_s=UNTIL_S)
    sampled = {} if sampled_s is None else dict.fromkeys(first, sampled_s)
    return [
        *served_samples(
            GPUS, executions, sampled, since_s=SINCE_S, until_s=UNTIL_S
        ).values()
    ]


def test_equal_replicas_give_one_sample_that_a_straggler_does_not_move() -> None:
    (sample,) = samples_of(*ALONE)
    assert (sample.latency_ms, sample.batch, sample.sm_percent, sample.clock_mhz) == (
        42.0,
        6.0,
        50.0,
        1000.0,
    )
    assert (sample.network, sample.gpu_type, sample.source, sample.neighbours) == (
        "net",
        "fast",
        SERVED,
        (),
    )


def test_neighbours_are_told_of_and_make_another_condition() -> None:
    together = samples_of(*TOGETHER, *ALONE)
    assert len(together) == 3
    neighbour_sets = {sample.neighbours: sample.latency_ms for sample in together}
    assert neighbour_sets == {
        (): 42.0,
        (Neighbour("net", 1.0, 30.0),): 50.0,
        (Neighbour("net", 8.0, 50.0),): 20.0,
    }


def test_next_to_neighbours_that_hardly_run_nothing_is_learned_of_what_neighbours_cost() -> (
    None
):
    idle = replace(TOGETHER[1], batches=300, requests=300)
    (sample,) = samples_of(TOGETHER[0], idle)
    assert sample.latency_ms == 20.0
    assert sample.neighbours == (Neighbour("net", 8.0, 50.0),)


def test_a_condition_is_sampled_again_only_after_a_while() -> None:
    assert samples_of(*ALONE, sampled_s=UNTIL_S - EVERY_S + 1.0) == []
    assert len(samples_of(*ALONE, sampled_s=UNTIL_S - EVERY_S)) == 1
