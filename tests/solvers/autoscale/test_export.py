"""The exported program is complete: read back and solved by itself, it gives the technique's own optimum."""

from pathlib import Path

import pytest

from solvers.autoscale.problem import ServiceTarget, TypeTotals
from solvers.autoscale.solve import solve
from solvers.types.errors import InvalidInput
from solvers.types.outcome import Budget
from tests.solvers.autoscale.factories import (
    counts_of,
    make_option,
    make_problem,
    random_problem,
)


def test_lp_names_services_and_types_in_readable_rows(tmp_path: Path) -> None:
    from solvers.autoscale.exact_pulp import export

    problem = make_problem(
        [ServiceTarget(name="chat-v2", arrival_rate_rps=50)],
        [make_option("chat-v2", "A100 40G", rps=10, usd=2.0, memory_mib=8)],
        [TypeTotals(gpu_type="A100 40G", gpus=9, memory_mib=64)],
    )
    export(problem, tmp_path / "autoscale.lp")
    text = (tmp_path / "autoscale.lp").read_text()
    assert "demand_0_chat_v2: 0.2 n_0_chat_v2_A100_40G" in text
    assert "memory_0_A100_40G: 0.125 n_0_chat_v2_A100_40G <= 1" in text


@pytest.mark.parametrize("seed", [0, 1])
def test_mps_solved_elsewhere_gives_the_same_optimum(tmp_path: Path, seed: int) -> None:
    import pulp

    from solvers.autoscale.exact_pulp import export

    problem = random_problem(seed, services=3)
    export(problem, tmp_path / "autoscale.mps")
    variables, read_back = pulp.LpProblem.fromMPS(str(tmp_path / "autoscale.mps"))
    read_back.solve(pulp.PULP_CBC_CMD(msg=False, options=["preprocess off"]))
    solution, _ = solve(problem, Budget(seconds=20.0))
    ours = dict(zip(problem.options, counts_of(problem, solution), strict=True))
    options = sorted(
        problem.options, key=lambda option: (option.service, option.gpu_type)
    )
    theirs = {
        option: round(variables[_variable(variables, index)].value())
        for index, option in enumerate(options)
    }
    assert _cost(problem, theirs) == pytest.approx(_cost(problem, ours), abs=1e-4)


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    from solvers.autoscale.exact_pulp import export

    with pytest.raises(InvalidInput, match=r"must end in \.lp or \.mps"):
        export(make_problem([], []), tmp_path / "autoscale.txt")


def _variable(names: dict, index: int) -> str:
    return next(name for name in names if name.startswith(f"n_{index}_"))


def _cost(problem, counts) -> float:
    total = 0.0
    for option, count in counts.items():
        change = count - option.running
        total += option.cost_usd_per_hour * (
            change + problem.launch_weight_per_s * option.launch_s * max(change, 0)
        )
    return total
