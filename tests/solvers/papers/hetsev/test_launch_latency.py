"""The objective of section 4.1 makes a type dearer by how long launches on it take, as agents saw them."""

from solvers.papers.hetsev.policy import make_plan
from solvers.types.outcome import Budget
from solvers.types.state import Observed
from tests.solvers.instances import a_service, a_type
from tests.solvers.papers.hetsev.own_networks import a_problem


def test_a_type_on_which_launches_take_long_is_dear() -> None:
    # κ = 0.005: 1.0 · (1 + 100 κ) = 1.5 is above 1.2 · (1 + 10 κ) = 1.26; with equal launches 1.0 is less.
    types = (
        a_type("slow", price_usd_per_hour=1.0),
        a_type("quick", price_usd_per_hour=1.2),
    )
    problem = a_problem(a_service("chat", rate_rps=100.0), types=types)
    for launch_s, taken in (
        ({"slow": 100.0, "quick": 10.0}, "quick"),
        ({"slow": 100.0, "quick": 100.0}, "slow"),
        # Where no launch was seen, 20 s: 1.5 against 1.2 · 1.1.
        ({"slow": 100.0}, "quick"),
        ({}, "slow"),
    ):
        plan, _, _ = make_plan(
            problem, Observed(at_s=0.0, launch_s=launch_s), None, Budget()
        )
        assert {gpu.gpu_type for gpu in plan.gpus} == {taken}, launch_s
