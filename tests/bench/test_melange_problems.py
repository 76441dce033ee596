"""Mélange's instances: the same optimum where a class needs whole pieces, and plans that the contract's laws allow."""

import numpy as np
import pytest

from bench.melange_problems import (
    SM_PERCENT_STEP,
    Instance,
    melange_optimum,
    melange_problem,
)
from solvers.check import violations
from solvers.types.documents.problem_json import problem_from_json, problem_to_json
from solvers.types.plan import GpuPlan, Plan, ReplicaPlan

pytestmark = pytest.mark.thorough

INSTANCE = Instance(
    name="two-types",
    gpu_types=("small", "big"),
    price=np.array([1.0, 3.5]),
    throughput=np.array([[2.0, 5.0], [20.0, 20.0]]),
    rate=np.array([6.0, 10.0]),
    pieces=1,
)
"""In small GPUs the loads are 3 and 2, in big ones 0.3 and 0.5."""


def test_the_optimum_puts_every_piece_on_one_type() -> None:
    # All on a big one 3.5; the second class on small ones saves nothing, for the first still needs a big one.
    assert melange_optimum(INSTANCE) == pytest.approx(3.5)


def test_rates_that_may_be_split_anywhere_never_cost_more() -> None:
    draw = np.random.default_rng(3)
    for pieces in (1, 2, 5):
        instance = Instance(
            name="random",
            gpu_types=("a", "b", "c"),
            price=draw.uniform(0.5, 4.0, 3),
            throughput=draw.uniform(2.0, 40.0, (3, 6)),
            rate=draw.uniform(1.0, 30.0, 6),
            pieces=pieces,
        )
        assert (
            melange_optimum(instance, is_cut=False) <= melange_optimum(instance) + 1e-9
        )


def test_a_share_of_the_sms_carries_that_share_of_the_throughput() -> None:
    problem = melange_problem(INSTANCE)
    plan = Plan(
        policy="by hand",
        gpus=(
            GpuPlan(
                gpu_type="big",
                clock_mhz=1000.0,
                replicas=(
                    ReplicaPlan(
                        service="class-0",
                        sm_percent=30.0,
                        batch=1,
                        arrival_rate_rps=6.0,
                    ),
                    ReplicaPlan(
                        service="class-1",
                        sm_percent=50.0,
                        batch=1,
                        arrival_rate_rps=10.0,
                    ),
                ),
            ),
        ),
    )
    assert violations(problem, plan) == ()


def test_rows_end_where_the_whole_class_is_served_or_the_gpu_is_full() -> None:
    percents = {
        (one.gpu_type, one.network): one.rows[-1].sm_percent
        for one in melange_problem(INSTANCE).points
    }
    assert percents["small", "class-0"] == percents["small", "class-1"] == 100.0
    assert percents["big", "class-0"] == pytest.approx(30.0, abs=SM_PERCENT_STEP)


def test_a_problem_is_valid_under_the_contract() -> None:
    problem = melange_problem(INSTANCE)
    assert problem_from_json(problem_to_json(problem)) == problem
