"""OLTunes' scheduler: Algorithms 2 and 3 traced by hand, and each place where the printed form was left."""

from dataclasses import replace

import pytest

from solvers.papers.oltunes.schedule import deployment_failed, schedule, submitted
from solvers.types.jobs import (
    MAX_JOBS,
    DispatchRules,
    DispatchState,
    Job,
    JobBatch,
    JobGpu,
    Round,
)
from solvers.types.state import Variant
from tests.solvers.jobs import a_gpu, a_job, a_resident, a_setting

# Ratios that differ by more than ln 9 suit each other as low variants do.
RATIOS = {"compute": 5.0, "memory": 1.0}
RULES = DispatchRules(ratios=RATIOS)
COMPUTE, MEMORY = a_setting("compute"), a_setting("memory")


def round_of(
    *jobs: Job,
    gpus: tuple[JobGpu, ...] = (a_gpu(),),
    now_s: float = 1.0,
    rules: DispatchRules = RULES,
) -> Round:
    return schedule(submitted(DispatchState(), jobs), gpus, now_s, rules)


def names(batch: JobBatch) -> list[str]:
    return [member.job.name for member in batch.members]


def test_a_trace_by_hand() -> None:
    # At 1 s, window 50 ms, so all have waited for long enough. Urgencies: c1 (4 − 1) / 1 = 3, c2 (3 − 1) / 1 = 2; both
    # are latency-critical and come before t. One empty GPU: c2 joins; c1 has the same class (50 + 50) / 2 = 50 < 70; t
    # has the other one, (98.2 + 50) / 2 = 74.1. 50 % of the SMs are left, there is one setting each: nothing to tune.
    c1 = a_job("c1", COMPUTE, deadline_s=4.0)
    c2 = a_job("c2", COMPUTE, deadline_s=3.0)
    t = a_job("t", MEMORY, weight=0.25)
    decided = round_of(c1, c2, t)
    assert [names(batch) for batch in decided.batches] == [["c2", "t"]]
    assert decided.batches[0].tuned is None
    assert decided.state.queues.jobs == (c1,)
    # 2 of 3 waiting jobs were latency-critical: 0.67 ≤ 0.7, so the window grows.
    assert decided.state.window_ms == 60.0


def test_latency_critical_jobs_come_first_whatever_the_urgency_of_the_others() -> None:
    soon = a_job("soon", MEMORY, weight=0.25, deadline_s=2.1)
    later = a_job("later", COMPUTE, deadline_s=99.0)
    assert names(round_of(soon, later).batches[0]) == ["later", "soon"]


def test_a_batch_that_is_not_full_is_held_for_the_window() -> None:
    job = a_job("a", COMPUTE, queued_s=1.0)
    early = round_of(job, now_s=1.02)
    assert early.batches == ()
    assert early.held_until_s == pytest.approx(1.05)
    assert early.state.queues.jobs == (job,)
    assert names(round_of(job, now_s=1.05).batches[0]) == ["a"]


def test_a_batch_is_not_held_when_a_deadline_would_be_missed_by_waiting() -> None:
    # It takes 1 s and is due at 2.03: it must start at 1.03, within its window.
    job = a_job("a", COMPUTE, queued_s=1.0, deadline_s=2.03)
    assert round_of(job, now_s=1.02).held_until_s == pytest.approx(1.03)
    assert names(round_of(job, now_s=1.03).batches[0]) == ["a"]


def test_a_full_batch_goes_at_once() -> None:
    whole = a_job("a", a_setting("compute", sm_percent=100.0), queued_s=1.0)
    assert names(round_of(whole, now_s=1.0).batches[0]) == ["a"]
    heavy = a_job("a", a_setting("compute", memory_mib=15800.0), queued_s=1.0)
    assert names(round_of(heavy, now_s=1.0).batches[0]) == ["a"]


def test_at_most_four_jobs_share_a_gpu_with_those_that_run_there() -> None:
    jobs = [
        a_job(f"j{at}", a_setting(name, sm_percent=5.0))
        for at, name in enumerate(["compute", "memory"] * 3)
    ]
    loose = replace(RULES, patience_s=0.5)  # affinity is not asked
    assert len(round_of(*jobs, rules=loose).batches[0].members) == MAX_JOBS
    shared = (
        a_gpu("g", a_resident("x", sm_percent=10.0), a_resident("y", sm_percent=10.0)),
    )
    assert len(round_of(*jobs, gpus=shared, rules=loose).batches[0].members) == 2


def test_trap_a_first_job_that_does_not_fit_holds_nobody_up() -> None:
    big = a_job("big", a_setting("compute", memory_mib=20000.0), deadline_s=2.5)
    small = a_job("small", COMPUTE)
    assert [names(batch) for batch in round_of(big, small).batches] == [["small"]]


def test_trap_a_gpu_for_which_nobody_waits_keeps_no_other_idle() -> None:
    gpus = (a_gpu("a", gpu_type="odd"), a_gpu("b", a_resident(sm_percent=10.0)))
    decided = round_of(a_job("j", COMPUTE), gpus=gpus)
    assert [batch.gpu for batch in decided.batches] == ["b"]


def test_trap_a_pause_longer_than_the_window_does_not_end_all_work() -> None:
    # Printed, jobs join only within the window after the last batch; this one comes an hour after it.
    assert (
        len(round_of(a_job("late", COMPUTE, queued_s=3600.0), now_s=3600.1).batches)
        == 1
    )


def test_a_job_uses_its_two_best_types_until_the_longest_window_has_passed() -> None:
    settings = [
        a_setting(gpu_type=name, latency_s=1.0) for name in ("one", "two", "three")
    ]
    job = a_job("a", *settings)
    third = (a_gpu("g", gpu_type="three"),)
    assert job.best_types == ("one", "two")
    assert round_of(job, gpus=third, now_s=0.99).batches == ()
    assert len(round_of(job, gpus=third, now_s=1.0).batches) == 1


def test_the_best_setting_that_fits_is_taken() -> None:
    wide = a_setting(sm_percent=100.0, score=3.0)
    narrow = a_setting(sm_percent=50.0, score=2.0, latency_s=1.5)
    gpu = a_gpu("g", a_resident(sm_percent=20.0))
    decided = round_of(a_job("a", wide, narrow), gpus=(gpu,))
    assert decided.batches[0].members[0].setting == narrow


def test_what_a_batch_leaves_is_filled_by_raising_one_job() -> None:
    narrow = a_setting("compute", sm_percent=25.0, score=3.0, latency_s=2.0)
    wide = a_setting("compute", sm_percent=100.0, score=2.0, latency_s=1.0)
    decided = round_of(a_job("a", narrow, wide))
    assert decided.batches[0].tuned == "a"
    assert decided.batches[0].members[0].setting == wide


def test_a_variant_that_does_not_suit_the_batch_gives_way_to_one_that_does() -> None:
    variants = (
        Variant(network="compute", accuracy=0.8),
        Variant(network="small", accuracy=0.7),
    )
    rules = DispatchRules(ratios={"compute": 1.2, "small": 1.2})
    high = a_job("high", a_setting("compute"), variants=variants, deadline_s=3.0)
    either = a_job(
        "either",
        a_setting("compute", score=2.0),
        a_setting("small", score=1.0),
        variants=variants,
    )
    # high + high: (50 + 0) / 2 = 25; high + low: (50 + 100) / 2 = 75.
    decided = round_of(high, either, rules=rules)
    assert [member.setting.network for member in decided.batches[0].members] == [
        "compute",
        "small",
    ]


def test_a_failed_batch_comes_back_in_front_with_smaller_limits() -> None:
    state = replace(
        submitted(DispatchState(), [a_job("t", MEMORY, weight=0.2)]), window_ms=200.0
    )
    decided = schedule(state, [a_gpu()], 1.0, RULES)
    assert decided.state.window_ms == 210.0
    after = deployment_failed(decided.state, decided.batches[0])
    assert after.window_ms == 190.0  # 10 ms less than that of the round
    assert after.max_jobs == MAX_JOBS - 1
    assert [job.name for job in after.queues.latency_critical] == ["t"]
    newcomer = submitted(after, [a_job("c", COMPUTE, deadline_s=2.5)])
    again = schedule(newcomer, [a_gpu()], 1.0, RULES)
    assert names(again.batches[0]) == ["t", "c"]
    assert again.state.max_jobs == MAX_JOBS  # a round that deployed gives one back


@pytest.mark.parametrize("is_state_before", [False, True])
def test_limits_fall_while_rounds_fail_and_come_back_one_by_one(
    is_state_before: bool,
) -> None:
    """Whether the caller goes on from the state before a failed round or from that after it."""
    jobs = [a_job(f"j{at}", a_setting(sm_percent=10.0), weight=0.2) for at in range(9)]
    state = replace(submitted(DispatchState(), jobs), window_ms=100.0)
    rules = replace(RULES, patience_s=0.5)  # affinity is not asked
    sizes = []
    for _ in range(5):
        decided = schedule(state, [a_gpu()], 1.0, rules)
        sizes.append(len(decided.batches[0].members))
        state = deployment_failed(
            state if is_state_before else decided.state, decided.batches[0]
        )
        assert len(state.queues) == len(jobs)
    assert sizes == [4, 3, 2, 1, 1]
    assert (state.max_jobs, state.window_ms) == (1, 50.0)
    sizes = []
    for _ in range(3):
        decided = schedule(state, [a_gpu()], 1.0, rules)
        sizes.append(len(decided.batches[0].members))
        state = decided.state
    assert sizes == [1, 2, 3]
    assert state.window_ms > 50.0


def test_the_batches_of_one_failed_round_cost_one_job_together() -> None:
    decided = round_of(
        a_job("a", COMPUTE), a_job("b", COMPUTE), gpus=(a_gpu("g"), a_gpu("h"))
    )
    assert len(decided.batches) == 2
    state = decided.state
    for batch in decided.batches:
        state = deployment_failed(state, batch)
    assert state.max_jobs == MAX_JOBS - 1
    assert {job.name for job in state.queues.latency_critical} == {"a", "b"}


def test_who_has_waited_long_comes_first_beside_anybody() -> None:
    rules = replace(RULES, patience_s=10.0)
    old = a_job("old", COMPUTE, weight=0.1, queued_s=0.0)
    urgent = a_job("urgent", COMPUTE, queued_s=9.9, deadline_s=11.5)
    assert names(round_of(old, urgent, now_s=10.0, rules=rules).batches[0]) == ["old"]
    older = a_job("older", COMPUTE, weight=0.1, queued_s=-1.0)
    assert names(round_of(old, older, now_s=10.0, rules=rules).batches[0]) == [
        "older",
        "old",
    ]


def test_a_gpu_waits_for_a_large_job_that_has_waited_long() -> None:
    rules = replace(RULES, patience_s=10.0)
    whole = a_job("whole", a_setting("compute", sm_percent=100.0), weight=0.1)
    small = a_job("small", a_setting("memory", sm_percent=10.0), queued_s=9.0)
    half_free = a_gpu("g", a_resident(sm_percent=10.0))
    assert (
        round_of(whole, small, gpus=(half_free,), now_s=10.0, rules=rules).batches == ()
    )
    # Only one GPU waits for it.
    gpus = (half_free, a_gpu("h", a_resident(sm_percent=15.0)))
    assert [
        batch.gpu
        for batch in round_of(whole, small, gpus=gpus, now_s=10.0, rules=rules).batches
    ] == ["h"]
    assert names(round_of(whole, small, now_s=10.0, rules=rules).batches[0]) == [
        "whole"
    ]
