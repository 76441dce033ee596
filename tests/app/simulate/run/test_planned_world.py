"""The world as the planner reckons with it: the laws of the contract to the letter."""

from dataclasses import replace

import numpy as np
import pytest

from agents.sim.pace import draw_stalls
from agents.sim.truth.running import RunningPart, SimulatedNeighbour
from agents.sim.truth.truth import TruthError
from app.catalogue.catalogue import load_gpu_types, load_profiles
from app.simulate.run.planned_world import PlannedWorld

(V100,) = load_gpu_types(["V100-32GB"])
PROFILES = {
    entry.network: entry
    for entry in load_profiles(["resnet50", "vgg16"], ["V100-32GB"])
}
WORLD = PlannedWorld([V100], PROFILES.values())


def placed(
    network: str, row: int, *neighbours: tuple[str, int], clock_mhz: float | None = None
) -> RunningPart:
    at = PROFILES[network].rows[row]
    others = [(name, PROFILES[name].rows[number]) for name, number in neighbours]
    return RunningPart(
        network=network,
        gpu_type="V100-32GB",
        sm_percent=at.sm_percent,
        batch=at.batch,
        clock_mhz=clock_mhz or at.clock_mhz,
        neighbours=tuple(
            SimulatedNeighbour(name, other.sm_percent, other.batch)
            for name, other in others
        ),
    )


@pytest.mark.parametrize("row", [0, 7, -1])
def test_alone_a_batch_of_any_size_takes_its_operating_points_time(row: int) -> None:
    times = WORLD.batch_ms(placed("resnet50", row))
    assert times[0] == 0.0
    assert np.all(times[1:] == pytest.approx(PROFILES["resnet50"].rows[row].solo_ms))
    assert len(times) == WORLD.max_batch("resnet50") + 1


def test_neighbours_slow_by_the_contracts_law() -> None:
    own, other = PROFILES["resnet50"].rows[3], PROFILES["vgg16"].rows[5]
    launch_ms = own.launch_ms * (1.0 + V100.launch_per_neighbour * 3 + V100.launch_base)
    run_ms = own.run_ms * (1.0 + PROFILES["resnet50"].sensitivity * 2 * other.pressure)
    times = WORLD.batch_ms(placed("resnet50", 3, ("vgg16", 5), ("vgg16", 5)))
    assert times[1] == pytest.approx(own.transfer_ms + launch_ms + run_ms)


def test_what_is_not_known_is_refused_in_words() -> None:
    with pytest.raises(
        TruthError,
        match="no operating points for network 'bert'; known: resnet50, vgg16",
    ):
        WORLD.max_batch("bert")
    with pytest.raises(TruthError, match="no GPU type 'T4'"):
        WORLD.idle_w("T4")
    with pytest.raises(
        TruthError, match="no operating point on V100-32GB at 33 % SM and batch 2"
    ):
        WORLD.batch_ms(replace(placed("resnet50", 0), sm_percent=33.0, batch=2))


def test_training_stalls_batches_as_long_as_its_rows_say() -> None:
    (training,) = load_profiles(["bert-training"], ["V100-32GB"])
    world = PlannedWorld(
        [V100], [*PROFILES.values(), training], training=["bert-training"]
    )
    at = next(row for row in training.rows if row.sm_percent == 50.0)
    beside = replace(
        placed("resnet50", 3),
        neighbours=(SimulatedNeighbour("bert-training", 50.0, at.batch),),
    )
    stalls_ms = world.stall_ms(beside) * draw_stalls(np.random.default_rng(5))
    assert np.quantile(stalls_ms, 0.99) == pytest.approx(at.stall_ms, rel=0.2)
    assert world.stall_ms(placed("resnet50", 3, ("vgg16", 5))) == 0.0
