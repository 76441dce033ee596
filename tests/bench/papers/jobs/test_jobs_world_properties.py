"""Any jobs on a simulated GPU: limits hold at every moment, none is lost, and time runs forward."""

from functools import lru_cache

from hypothesis import given, settings
from hypothesis import strategies as st

from agents.sim.truth.truth import Truth, load_truth
from bench.papers.jobs.world import JobWorld, SimGpu
from solvers.types.jobs import Job, JobBatch, JobSetting, PlacedJob
from solvers.types.state import GpuId
from tests.examples import examples

V100 = "V100-16GB"
GPU = SimGpu(id=GpuId("g"), gpu_type=V100, memory_mib=16384.0, clock_mhz=1530.0)
NETWORKS = ("resnet18", "resnet50", "vgg16")


@lru_cache
def truth() -> Truth:
    return load_truth()


def a_batch(
    name: str, network: str, sm_percent: float, batch: int, inputs: int
) -> JobBatch:
    memory = truth().memory_mib(network, batch)
    setting = JobSetting(
        network, V100, sm_percent, batch, 1530.0, memory, 0.2, 1.0, 0.0
    )
    job = Job(
        name=name,
        weight=0.7,
        inputs=inputs,
        queued_s=0.0,
        settings=(setting,),
        best_types=(V100,),
        mean_latency_s=0.2,
    )
    return JobBatch(gpu=GPU.id, members=(PlacedJob(job, setting),))


requests = st.lists(
    st.tuples(
        st.sampled_from(NETWORKS),
        st.sampled_from((5.0, 25.0, 50.0, 100.0)),
        st.sampled_from((1, 4, 8)),
        st.integers(1, 200),
        st.floats(0.0, 1.0),
    ),
    max_size=12,
)


@settings(max_examples=examples(60))
@given(requests, st.sampled_from((0.0, 0.7)))
def test_limits_hold_nobody_is_lost_and_time_runs_forward(
    wanted: list[tuple[str, float, int, int, float]], launch_s: float
) -> None:
    world, now_s = JobWorld(truth(), [GPU], launch_s=launch_s, seed=1), 0.0
    world.preload(NETWORKS)
    started, ended, energy_j = set(), [], 0.0
    for number, (network, percent, batch, inputs, pause_s) in enumerate(wanted):
        now_s += pause_s
        ended += world.advance(now_s)
        if world.start(a_batch(f"j{number}", network, percent, batch, inputs)):
            started.add(f"j{number}")
        (view,) = world.views()
        assert view.free_percent >= -1e-6
        assert view.free_mib >= -1e-6
        assert {each.name for each in view.residents} == started - {
            each.job.name for each in ended
        }
        assert world.energy_j() >= energy_j + pause_s * truth().idle_w(V100) - 1e-6
        energy_j = world.energy_j()
    ended += world.advance(now_s + 1e4)
    assert sorted(each.job.name for each in ended) == sorted(started)
    assert [each.at_s for each in ended] == sorted(each.at_s for each in ended)
    # Nobody is faster than alone, but for noise, and a board draws no more than its limit.
    for each in ended:
        assert each.ran_s > 0.0
        assert each.epc >= 60.0
    assert world.energy_j() <= (now_s + 1e4) * truth().tdp_w(V100) + 1e-6
