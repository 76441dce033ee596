"""Larger V100 problems are made exactly as the shared ones were."""

import pytest

from bench.plan_runs import FOLDER, load
from bench.v100_problems import with_services

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="needs the shared problems")


@pytest.mark.parametrize("rule", ["half", "p98"])
@pytest.mark.parametrize("count", [12, 50])
def test_the_services_of_another_file_make_the_shared_problem_of_that_size(rule: str, count: int) -> None:
    assert with_services(load(f"v100_3models_n100_{rule}"), count) == load(f"v100_3models_n{count}_{rule}")


def test_names_are_unique_among_400_services() -> None:
    problem = with_services(load("v100_3models_n100_half"), 400)
    assert len({service.name for service in problem.services}) == len(problem.services) == 400
