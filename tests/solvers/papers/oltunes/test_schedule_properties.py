"""OLTunes' scheduler under any load: no job starves, no limit is broken, and the order of items changes nothing."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.papers.oltunes.schedule import schedule, submitted
from solvers.types.jobs import (
    MAX_JOBS,
    DispatchRules,
    DispatchState,
    Job,
    JobBatch,
    JobGpu,
    Resident,
    could_hold,
)
from tests.examples import seeds
from tests.solvers.jobs import a_gpu, a_job, a_resident, a_setting

STEP_S = 0.05
RUN_S = 0.2
"""How long every job runs here."""
PATIENCE_S = 1.0
WHOLE = (100.0, 16000.0)
"""What a GPU without replicas has."""
RULES = DispatchRules(ratios={"compute": 5.0, "memory": 1.0}, patience_s=PATIENCE_S)

settings_of = st.builds(
    a_setting,
    st.sampled_from(("compute", "memory")),
    st.sampled_from(("fast", "slow")),
    sm_percent=st.sampled_from((5.0, 25.0, 50.0, 100.0)),
    memory_mib=st.sampled_from((500.0, 4000.0, 12000.0)),
    latency_s=st.sampled_from((0.1, 1.0)),
)
jobs_of = st.lists(
    st.builds(
        lambda name, own, weight, deadline_s: a_job(
            name, *own, weight=weight, deadline_s=deadline_s
        ),
        st.uuids().map(str),
        st.lists(settings_of, min_size=1, max_size=4),
        st.floats(0.0, 1.0),
        st.sampled_from((0.5, 5.0, float("inf"))),
    ),
    max_size=12,
    unique_by=lambda job: job.name,
)
gpus_of = st.lists(
    st.builds(
        lambda name, gpu_type, percent: a_gpu(
            name,
            *([a_resident(sm_percent=percent)] if percent else []),
            gpu_type=gpu_type,
        ),
        st.uuids().map(str),
        st.sampled_from(("fast", "slow")),
        st.sampled_from((0.0, 10.0, 90.0)),
    ),
    max_size=4,
    unique_by=lambda gpu: gpu.id,
)


def check_limits(gpu: JobGpu, batch: JobBatch) -> None:
    used = [
        (member.setting.sm_percent, member.setting.memory_mib)
        for member in batch.members
    ]
    used += [(each.sm_percent, each.memory_mib) for each in gpu.residents]
    assert sum(percent for percent, _ in used) <= gpu.sm_percent + 1e-6
    assert sum(mib for _, mib in used) <= gpu.memory_mib + 1e-6
    assert len(used) <= MAX_JOBS
    assert {member.setting.gpu_type for member in batch.members} == {gpu.gpu_type}


@given(jobs_of, gpus_of, st.floats(0.0, 5.0))
def test_no_limit_is_broken_and_no_job_is_lost_or_doubled(
    jobs: list[Job], gpus: list[JobGpu], now_s: float
) -> None:
    decided = schedule(submitted(DispatchState(), jobs), gpus, now_s, RULES)
    by_id = {gpu.id: gpu for gpu in gpus}
    for batch in decided.batches:
        check_limits(by_id[batch.gpu], batch)
        for member in batch.members:
            assert member.setting in member.job.settings
    started = [member.job.name for batch in decided.batches for member in batch.members]
    waiting = [job.name for job in decided.state.queues.jobs]
    assert sorted(started + waiting) == sorted(job.name for job in jobs)
    assert len({batch.gpu for batch in decided.batches}) == len(decided.batches)


@given(jobs_of, gpus_of, st.floats(0.0, 5.0), st.randoms(use_true_random=False))
def test_the_order_of_jobs_and_gpus_changes_nothing(
    jobs: list[Job], gpus: list[JobGpu], now_s: float, shuffle: random.Random
) -> None:
    mixed_jobs, mixed_gpus = (
        shuffle.sample(jobs, len(jobs)),
        shuffle.sample(gpus, len(gpus)),
    )
    one = schedule(submitted(DispatchState(), jobs), gpus, now_s, RULES)
    other = schedule(submitted(DispatchState(), mixed_jobs), mixed_gpus, now_s, RULES)
    assert one.batches == other.batches
    assert one.held_until_s == other.held_until_s


class _Plant:
    """GPUs whose jobs all run for RUN_S; of each its SM percent and memory."""

    def __init__(self, gpus: Sequence[tuple[float, float]]) -> None:
        self.bare = {f"g{number}": each for number, each in enumerate(gpus)}
        self.running: dict[str, list[tuple[float, Resident]]] = {
            name: [] for name in self.bare
        }

    def views(self, now_s: float) -> list[JobGpu]:
        for gpu, own in self.running.items():
            self.running[gpu] = [
                (end_s, each) for end_s, each in own if end_s > now_s + 1e-9
            ]
        return [
            a_gpu(
                gpu,
                *(each for _, each in own),
                sm_percent=self.bare[gpu][0],
                memory_mib=self.bare[gpu][1],
            )
            for gpu, own in self.running.items()
        ]

    def start(self, batch: JobBatch, now_s: float) -> None:
        for job, setting in batch.members:
            resident = a_resident(
                job.name, sm_percent=setting.sm_percent, memory_mib=setting.memory_mib
            )
            self.running[batch.gpu].append((now_s + RUN_S, resident))


@pytest.mark.parametrize("gpus", [1, 3])
@pytest.mark.parametrize("seed", seeds(4))
def test_under_a_flood_of_urgent_jobs_nobody_waits_for_long(
    seed: int, gpus: int
) -> None:
    """Throughput-oriented jobs of one class, among them whole-GPU ones, with more urgent jobs than the fleet can run.

    At any time the jobs that came before a given one and still wait are fewer than those of the patience's time. Each
    batch takes at least the first impatient one, and every GPU takes a batch within RUN_S, or drains for one. With a
    flood of `per_step` jobs a step each second brings 20 · per_step jobs, so the wait of the oldest grows with the
    flood; for the lone ones it is bounded by those in front of them.
    """
    draw = random.Random(seed)
    state, plant = DispatchState(), _Plant([WHOLE] * gpus)
    for number in range(3):
        state = submitted(
            state,
            [
                a_job(
                    f"lone{number}", a_setting("compute", sm_percent=100.0), weight=0.1
                )
            ],
        )
    ended: dict[str, float] = {}
    for step in range(200):
        now_s = step * STEP_S
        flood = [
            a_job(
                f"f{step}-{at}",
                a_setting("compute", sm_percent=draw.choice((5.0, 25.0, 50.0))),
                queued_s=now_s,
                deadline_s=now_s + 0.3,
            )
            for at in range(4 * gpus)
        ]
        decided = schedule(submitted(state, flood), plant.views(now_s), now_s, RULES)
        state = decided.state
        for batch in decided.batches:
            plant.start(batch, now_s)
            ended |= {member.job.name: now_s for member in batch.members}
    # The lone ones came first of all: each needs one GPU that drains (at most RUN_S) and one run of the one before.
    assert max(ended[f"lone{number}"] for number in range(3)) <= PATIENCE_S + 3 * 2 * (
        RUN_S + STEP_S
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from((5.0, 25.0, 60.0, 100.0)),
            st.sampled_from((500.0, 4000.0, 12000.0)),
        ),
        max_size=8,
    ),
    st.lists(
        st.tuples(
            st.sampled_from((10.0, 50.0, 100.0)),
            st.sampled_from((200.0, 1000.0, 16000.0)),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_beside_replicas_each_job_that_some_gpu_could_hold_starts_and_the_others_hold_nobody_up(
    own: list[tuple[float, float]], gpus: list[tuple[float, float]]
) -> None:
    """All come at once, and are impatient when PATIENCE_S has passed: at worst they run one after the other."""
    jobs = [
        a_job(f"j{at}", a_setting("compute", sm_percent=percent, memory_mib=mib))
        for at, (percent, mib) in enumerate(own)
    ]
    state, plant = submitted(DispatchState(), jobs), _Plant(gpus)
    for step in range(round((PATIENCE_S + len(jobs) * (RUN_S + STEP_S)) / STEP_S) + 1):
        decided = schedule(state, plant.views(step * STEP_S), step * STEP_S, RULES)
        state = decided.state
        for batch in decided.batches:
            plant.start(batch, step * STEP_S)
    # What leaves no more than 256 MiB is full.
    empty = [
        a_gpu(sm_percent=percent, memory_mib=mib)
        for percent, mib in gpus
        if mib > 256.0
    ]
    never = {job.name for job in jobs if not any(could_hold(gpu, job) for gpu in empty)}
    assert {job.name for job in state.queues.jobs} == never
