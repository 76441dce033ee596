"""Jobs at least cost as time goes by: no limit is broken, and no stream of jobs lets another one wait for ever."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from solvers.papers.oltunes.least_cost import schedule
from solvers.types.jobs import (
    MAX_JOBS,
    Job,
    JobBatch,
    JobGpu,
    Queues,
    Resident,
    could_hold,
    enqueue,
)
from tests.solvers.jobs import a_gpu, a_job, a_resident, a_setting

PRICES = {"fast": 3.0, "cheap": 1.0}
PATIENCE_S = 5.0
STREAM_S = 30
"""For so long jobs come."""
MAX_S = 4.0
"""Of a job."""

sizes = st.tuples(
    st.sampled_from((10.0, 25.0, 50.0, 100.0)),
    st.sampled_from((500.0, 4000.0, 12000.0)),
    st.sampled_from((1.0, 2.0, MAX_S)),
)
fleets = st.lists(
    st.builds(
        lambda gpu_type, percent, mib: a_gpu(
            gpu_type=gpu_type, sm_percent=percent, memory_mib=mib
        ),
        st.sampled_from(sorted(PRICES)),
        st.sampled_from((10.0, 50.0, 100.0)),
        st.sampled_from((1000.0, 16000.0)),
    ),
    min_size=1,
    max_size=3,
)


def a_job_of(
    name: str,
    size: tuple[float, float, float],
    queued_s: float,
    slack_s: float = float("inf"),
) -> Job:
    """The same on both types, but for half as long on the fast one."""
    percent, mib, latency_s = size
    both = (
        a_setting(
            gpu_type=gpu_type, sm_percent=percent, memory_mib=mib, latency_s=seconds
        )
        for gpu_type, seconds in (("cheap", latency_s), ("fast", latency_s / 2.0))
    )
    return a_job(name, *both, queued_s=queued_s, deadline_s=queued_s + slack_s)


class _Plant:
    """GPUs on which every job runs for as long as was predicted."""

    def __init__(self, fleet: Sequence[JobGpu]) -> None:
        self.bare = {f"g{at}": gpu for at, gpu in enumerate(fleet)}
        self.running: dict[str, list[tuple[float, Resident]]] = {
            name: [] for name in self.bare
        }

    def views(self, now_s: float) -> list[JobGpu]:
        views = []
        for name, gpu in self.bare.items():
            self.running[name] = [
                (end_s, each) for end_s, each in self.running[name] if end_s > now_s
            ]
            residents = (each for _, each in self.running[name])
            view = a_gpu(
                name,
                *residents,
                gpu_type=gpu.gpu_type,
                sm_percent=gpu.sm_percent,
                memory_mib=gpu.memory_mib,
            )
            assert view.free_percent >= -1e-6
            assert view.free_mib >= -1e-6
            assert len(view.residents) <= MAX_JOBS
            views.append(view)
        return views

    def start(self, batches: Sequence[JobBatch], now_s: float) -> None:
        for batch in batches:
            ((job, setting),) = batch.members
            resident = a_resident(
                job.name, sm_percent=setting.sm_percent, memory_mib=setting.memory_mib
            )
            self.running[batch.gpu].append((now_s + setting.latency_s, resident))


def play(
    fleet: Sequence[JobGpu], coming: Sequence[Sequence[Job]], until_s: int
) -> tuple[dict[str, float], Queues]:
    """When each job started, and who still waits; `coming` by second."""
    plant, queues, started = _Plant(fleet), Queues(), {}
    for second in range(until_s):
        now_s = float(second)
        queues = enqueue(queues, coming[second] if second < len(coming) else ())
        batches, queues = schedule(
            queues, plant.views(now_s), now_s, PRICES, PATIENCE_S
        )
        plant.start(batches, now_s)
        started |= {batch.members[0].job.name: now_s for batch in batches}
    return started, queues


@given(
    sizes,
    st.lists(
        st.lists(st.tuples(sizes, st.sampled_from((1.0, 6.0, 60.0))), max_size=3),
        min_size=1,
        max_size=5,
    ),
    fleets,
)
def test_a_job_that_some_gpu_could_hold_waits_for_patience_and_for_gpus_that_drain(
    size: tuple[float, float, float],
    pattern: list[list[tuple[tuple[float, float, float], float]]],
    fleet: list[JobGpu],
) -> None:
    """The first job, with no deadline, next to a stream of jobs that have one.

    From `PATIENCE_S` on it has waited for longest of all, so some GPU takes nothing until it starts. Which one changes
    only to one with fewer jobs, or as many and an earlier id: at most MAX_JOBS · GPUs times, each after at most the
    longest run.
    """
    first = a_job_of("first", size, 0.0)
    coming = [
        [
            a_job_of(f"s{second}-{at}", own, float(second), slack_s)
            for at, (own, slack_s) in enumerate(pattern[second % len(pattern)])
        ]
        for second in range(STREAM_S)
    ]
    coming[0].append(first)
    bound_s = PATIENCE_S + MAX_JOBS * len(fleet) * MAX_S
    started, queues = play(fleet, coming, int(bound_s) + 2)
    if any(could_hold(gpu, first) for gpu in fleet):
        assert started["first"] <= bound_s
    else:
        assert first in queues.jobs


@given(st.lists(sizes, max_size=12), fleets)
def test_all_jobs_that_some_gpu_could_hold_are_done_and_the_others_wait(
    own: list[tuple[float, float, float]], fleet: list[JobGpu]
) -> None:
    jobs = [
        a_job_of(f"j{at}", size, 0.0, slack_s=2.0 + at % 3)
        for at, size in enumerate(own)
    ]
    # At worst one after the other.
    _, queues = play(fleet, [jobs], int(PATIENCE_S + len(jobs) * MAX_S) + 1)
    never = {job.name for job in jobs if not any(could_hold(gpu, job) for gpu in fleet)}
    assert {job.name for job in queues.jobs} == never
