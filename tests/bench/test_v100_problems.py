"""Larger V100 problems are made exactly as the shared ones were."""

import pytest

from bench.plan_runs import known_problems, load
from bench.v100_problems import SERVICES, with_services

pytestmark = pytest.mark.thorough

NEEDED = {
    f"v100_3models_n{count}_{rule}"
    for count in (12, 50, 100)
    for rule in ("half", "p98")
}
pytestmark = pytest.mark.skipif(
    not SERVICES.is_dir() or not known_problems().keys() >= NEEDED,
    reason="needs the shared V100 problems, and the inputs that they were made of",
)


@pytest.mark.parametrize("rule", ["half", "p98"])
@pytest.mark.parametrize("count", [12, 50])
def test_the_services_of_another_file_make_the_shared_problem_of_that_size(
    rule: str, count: int
) -> None:
    assert with_services(load(f"v100_3models_n100_{rule}"), count) == load(
        f"v100_3models_n{count}_{rule}"
    )
