"""The scheduler of jobs by the policy's parameters: as printed or at least cost, and the weights of its score."""

from solvers.greedy.scaling_rules import SaturationRule
from solvers.papers.oltunes import least_cost, schedule, tuning_score
from solvers.papers.oltunes.job_scheduler import scheduler
from solvers.papers.oltunes.parameters import OltunesParameters
from solvers.policies.registry import scheduler_of
from solvers.types.jobs import (
    DispatchRules,
    DispatchState,
    JobDemand,
    JobOption,
    PowerFacts,
    Queues,
    enqueue,
)
from tests.solvers.jobs import a_gpu, a_job, a_setting

GPUS = (a_gpu("f", gpu_type="fast"), a_gpu("c", gpu_type="cheap"))
RULES = DispatchRules(prices_usd_per_hour={"fast": 9.0, "cheap": 1.0})
STATE = DispatchState(
    queues=enqueue(
        Queues(),
        [
            a_job(
                name,
                a_setting(gpu_type="fast", sm_percent=50.0, latency_s=1.0),
                a_setting(gpu_type="cheap", sm_percent=50.0, latency_s=2.0),
            )
            for name in "ab"
        ],
    )
)


def test_as_printed_is_the_default() -> None:
    found = scheduler(SaturationRule()).schedule(STATE, GPUS, 9.0, RULES)
    assert found == schedule.schedule(STATE, GPUS, 9.0, RULES)


def test_at_least_cost_jobs_go_where_they_cost_least() -> None:
    cheap = scheduler(OltunesParameters(dispatch="least cost"))
    found = cheap.schedule(STATE, GPUS, 9.0, RULES)
    prices = RULES.prices_usd_per_hour
    batches, queues = least_cost.schedule(STATE.queues, GPUS, 9.0, prices)
    assert (found.batches, found.state.queues) == (batches, queues)
    assert [each.gpu for each in batches] == ["c", "f"]
    # Its window and number of jobs are those of the printed scheduler, for a switch back.
    assert found.state.window_ms == STATE.window_ms


def test_no_more_jobs_share_a_gpu_than_the_rules_allow() -> None:
    cheap = scheduler(OltunesParameters(dispatch="least cost"))
    one = DispatchRules(max_jobs=1, prices_usd_per_hour={"cheap": 1.0})
    found = cheap.schedule(STATE, GPUS, 9.0, one)
    assert len(found.batches) == 1
    assert len(found.state.queues) == 1


def test_a_type_without_a_price_is_not_used() -> None:
    cheap = scheduler(OltunesParameters(dispatch="least cost"))
    assert cheap.schedule(STATE, GPUS, 9.0, DispatchRules()).batches == ()


def test_weights_are_those_that_are_set() -> None:
    options = [
        JobOption("net", 1.0, "gpu", percent, 8, 1000.0, 2000.0, time_ms)
        for percent, time_ms in ((20.0, 40.0), (100.0, 10.0))
    ]
    boards = {"gpu": PowerFacts(16_000.0, 250.0)}
    demand = JobDemand(weight=0.0, inputs=80, left_s=1.0, load=0.0)
    for alpha in (0.0, 2.0):
        found = scheduler_of("oltunes", {"alpha": alpha}).tune(options, boards, demand)
        assert found == tuning_score.tune(options, boards, demand, alpha=alpha)
    slack = scheduler_of("oltunes", {"alpha": 10.0}).tune(options, boards, demand)
    none = scheduler_of("oltunes", {"alpha": 0.0}).tune(options, boards, demand)
    assert (slack[0].sm_percent, none[0].sm_percent) == (100.0, 20.0)
