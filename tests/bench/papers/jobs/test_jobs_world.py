"""Jobs on simulated GPUs: times, neighbours, containers, energy; worked by the truth's own figures."""

from functools import lru_cache

import numpy as np
import pytest

from agents.sim.truth.running import RunningPart, SimulatedNeighbour
from agents.sim.truth.truth import Truth, load_truth
from bench.papers.jobs.world import JobWorld, SimGpu
from solvers.types.jobs import Job, JobBatch, JobSetting
from solvers.types.jobs import PlacedJob as Member
from solvers.types.state import GpuId

pytestmark = pytest.mark.thorough

V100 = "V100-16GB"
GPU = SimGpu(id=GpuId("g"), gpu_type=V100, memory_mib=16384.0, clock_mhz=1530.0)


@lru_cache
def truth() -> Truth:
    return load_truth()


def a_world(*, launch_s: float = 0.0, seed: int = 0) -> JobWorld:
    return JobWorld(truth(), [GPU], launch_s=launch_s, seed=seed)


def a_setting(
    network: str = "resnet50", *, sm_percent: float = 50.0, batch: int = 8
) -> JobSetting:
    memory = truth().memory_mib(network, batch)
    return JobSetting(network, V100, sm_percent, batch, 1530.0, memory, 1.0, 1.0, 0.0)


def a_batch(
    *names: str, inputs: int = 80, setting: JobSetting | None = None
) -> JobBatch:
    own = setting or a_setting()
    jobs = (
        Job(
            name=name,
            weight=0.7,
            inputs=inputs,
            queued_s=0.0,
            settings=(own,),
            best_types=(V100,),
            mean_latency_s=1.0,
        )
        for name in names
    )
    return JobBatch(gpu=GPU.id, members=tuple(Member(job, own) for job in jobs))


def batch_ms(
    *, sm_percent: float = 50.0, neighbours: tuple[SimulatedNeighbour, ...] = ()
) -> float:
    placed = RunningPart(
        network="resnet50",
        gpu_type=V100,
        sm_percent=sm_percent,
        batch=8,
        clock_mhz=1530.0,
        neighbours=neighbours,
    )
    return truth().execution_ms(placed, 8)


def noise(seed: int, jobs: int = 1) -> list[float]:
    random = np.random.default_rng([seed, 1])
    return [
        1.0 + truth().noise_cv("resnet50") * float(random.standard_normal())
        for _ in range(jobs)
    ]


def test_a_job_takes_its_batches_one_after_the_other() -> None:
    world = a_world()
    assert world.start(a_batch("a", inputs=84))
    (done,) = world.advance(10.0)
    # 84 inputs are 11 batches of at most eight.
    assert done.at_s == pytest.approx(11 * batch_ms() * noise(0)[0] / 1000.0)
    assert done.batch_ms == pytest.approx(batch_ms() * noise(0)[0])


def test_jobs_slow_each_other_down_while_they_run_together() -> None:
    world = a_world()
    world.start(a_batch("a"))
    world.start(a_batch("b"))
    first, second = world.advance(10.0)
    together = batch_ms(neighbours=(SimulatedNeighbour("resnet50", 50.0, 8),)) / 1000.0
    factors = dict(zip("ab", noise(0, 2), strict=True))
    assert first.at_s == pytest.approx(10 * together * factors[first.job.name])
    # What the second has left when the first is done goes on at the pace of one that is alone.
    left = 1.0 - first.at_s / (10 * together * factors[second.job.name])
    assert second.at_s == pytest.approx(
        first.at_s + left * 10 * batch_ms() / 1000.0 * factors[second.job.name]
    )


def test_a_container_is_started_once_and_used_again() -> None:
    world = a_world(launch_s=5.0)
    world.start(a_batch("a"))
    (cold,) = world.advance(20.0)
    world.start(a_batch("b"))
    (warm,) = world.advance(40.0)
    assert cold.at_s == pytest.approx(5.0 + cold.ran_s)
    assert warm.at_s == pytest.approx(20.0 + warm.ran_s)
    assert world.launches == 1


def test_idle_containers_give_way_the_longest_unused_first() -> None:
    world = a_world(launch_s=5.0)
    networks = ("vgg16", "resnet50", "resnet101", "resnet18", "googlenet")
    world.preload(networks)
    # 16 GiB: 2.9 + 1.9 + 2.0 + 1.7 + 1.7 GiB idle, and 4 × 2.2 GiB of jobs: VGG-16 must go.
    world.start(a_batch("a", "b", "c", "d", setting=a_setting(sm_percent=25.0)))
    launches = world.launches
    world.advance(60.0)
    world.start(a_batch("v", setting=a_setting("vgg16")))
    assert world.launches == launches + 1


def test_what_does_not_fit_is_not_started() -> None:
    world = a_world()
    assert not world.start(a_batch("a", "b", "c"))
    assert world.start(a_batch("a"))
    assert not world.start(a_batch("b", setting=a_setting(sm_percent=60.0)))
    (view,) = world.views()
    assert view.free_percent == 50.0
    assert view.free_mib == pytest.approx(16384.0 - truth().memory_mib("resnet50", 8))


def test_views_say_how_far_jobs_are_and_whether_one_has_ended_early() -> None:
    world = a_world()
    short, long = a_batch("short", inputs=8), a_batch("long", inputs=800)
    world.start(JobBatch(gpu=GPU.id, members=(*short.members, *long.members)))
    world.advance(0.5)
    (view,) = world.views()
    assert [each.name for each in view.residents] == ["long"]
    assert view.residents[0].done_share == pytest.approx(0.5)  # of the predicted second
    assert view.has_early_end
    world.start(a_batch("next", inputs=800))
    assert not world.views()[0].has_early_end


def test_energy_is_that_of_the_idle_gpu_and_of_what_runs() -> None:
    world = a_world()
    world.advance(10.0)
    assert world.energy_j() == pytest.approx(10.0 * truth().idle_w(V100))
    world.start(a_batch("a", inputs=8000))
    world.advance(11.0)
    placed = RunningPart(
        network="resnet50", gpu_type=V100, sm_percent=50.0, batch=8, clock_mhz=1530.0
    )
    assert world.energy_j() == pytest.approx(
        11.0 * truth().idle_w(V100) + truth().busy_w(placed, 8)
    )
    assert world.busy_sm_s()[GPU.id] == pytest.approx(0.5)


def test_epc_follows_equation_7_with_the_time_that_the_job_ran() -> None:
    world = a_world(launch_s=5.0)
    world.start(a_batch("a"))
    (done,) = world.advance(20.0)
    memory = truth().memory_mib("resnet50", 8) / 16384.0
    assert done.epc == pytest.approx(60.0 + (300.0 - 60.0) * 0.5 * memory * done.ran_s)


def test_cutting_time_into_steps_changes_nothing() -> None:
    whole, cut = a_world(launch_s=0.3), a_world(launch_s=0.3)
    for world in (whole, cut):
        world.start(a_batch("a", "b"))
    done = [each for step in range(1, 101) for each in cut.advance(step * 0.05)]
    assert [
        (each.job.name, pytest.approx(each.at_s)) for each in whole.advance(5.0)
    ] == [(each.job.name, each.at_s) for each in done]
    assert cut.energy_j() == pytest.approx(whole.energy_j())
