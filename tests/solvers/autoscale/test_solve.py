"""The autoscaling technique: hand-solved cases, brute force, the quality chain, and its bad inputs."""

import random
import subprocess
import sys
import tempfile
from dataclasses import replace

import pytest

from solvers.autoscale.problem import AutoscaleProblem, ServiceTarget, TypeTotals
from solvers.autoscale.solve import Method, solve
from solvers.types.errors import InvalidInput
from solvers.types.outcome import Budget, SolveStatus
from tests.examples import seeds
from tests.solvers.autoscale.factories import (
    broken_limits,
    brute_force,
    counts_of,
    make_option,
    make_problem,
    random_problem,
    rate,
)
from tests.solvers.instances import with_services

EXACT: tuple[Method, ...] = ("cp_sat", "highs", "cbc")
ALL: tuple[Method, ...] = (*EXACT, "greedy")
BUDGET = Budget(seconds=20.0, work=5.0)


def a_service(**fields: object) -> ServiceTarget:
    return ServiceTarget(**{"name": "chat", "arrival_rate_rps": 110.0} | fields)  # type: ignore[arg-type]


def big_and_small(
    *, running_small: int = 0, launch_weight_per_s: float = 0.0
) -> AutoscaleProblem:
    """110 rps; a big replica serves 100 rps for 2.0 USD/h after 30 s, a small one 20 rps for 0.6 USD/h after 10 s."""
    options = [
        make_option("chat", "big", rps=100, usd=2.0, launch_s=30),
        make_option(
            "chat", "small", rps=20, usd=0.6, launch_s=10, running=running_small
        ),
    ]
    return make_problem([a_service()], options, launch_weight_per_s=launch_weight_per_s)


@pytest.mark.parametrize("method", ALL)
def test_types_are_mixed_where_that_is_cheapest(method: Method) -> None:
    # 2 big = 4.0, 6 small = 3.6, 1 big + 1 small = 2.6 for 120 rps.
    solution, report = solve(big_and_small(), BUDGET, method=method)
    assert [
        (entry.gpu_type, entry.count, entry.change) for entry in solution.counts
    ] == [
        ("big", 1, 1),
        ("small", 1, 1),
    ]
    assert report.objective == pytest.approx(2.6)
    assert solution.unserved == ()


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize(
    ("launch_weight_per_s", "counts", "objective"),
    [
        # Launch a big one for 2.0, stop five small ones for -3.0.
        (0.0, (1, 1), -1.0),
        # Now launching costs 2.0 · 0.05 · 30 = 3.0 more: 5.0 - 3.0 = 2.0, so the six small ones stay, at no change.
        (0.05, (0, 6), 0.0),
    ],
)
def test_launch_weight_decides_between_swapping_and_keeping(
    method: Method,
    launch_weight_per_s: float,
    counts: tuple[int, ...],
    objective: float,
) -> None:
    problem = big_and_small(running_small=6, launch_weight_per_s=launch_weight_per_s)
    solution, report = solve(problem, BUDGET, method=method)
    assert counts_of(problem, solution) == counts
    assert report.objective == pytest.approx(objective)
    assert report.bound == pytest.approx(objective)


@pytest.mark.parametrize("method", EXACT)
def test_services_are_solved_together_where_one_at_a_time_would_waste_memory(
    method: Method,
) -> None:
    # Room for one replica on the cheap type. `a` alone would take it (saving 1.0), but `b` saves 3.0 there.
    options = [
        make_option("a", "cheap", rps=10, usd=1.0, memory_mib=10),
        make_option("a", "dear", rps=10, usd=2.0, memory_mib=10),
        make_option("b", "cheap", rps=10, usd=1.0, memory_mib=10),
        make_option("b", "dear", rps=10, usd=4.0, memory_mib=10),
    ]
    services = [ServiceTarget(name=name, arrival_rate_rps=10) for name in ("a", "b")]
    problem = make_problem(
        services,
        options,
        [TypeTotals(gpu_type="cheap", memory_mib=19), TypeTotals(gpu_type="dear")],
    )
    solution, report = solve(problem, BUDGET, method=method)
    assert counts_of(problem, solution) == (0, 1, 1, 0)
    assert report.objective == pytest.approx(3.0)
    assert report.status is SolveStatus.OPTIMAL


@pytest.mark.parametrize("method", ALL)
def test_scarce_gpus_go_to_the_greater_priority(method: Method) -> None:
    options = [
        make_option(name, "big", rps=10, usd=1.0, sm_percent=100) for name in ("a", "b")
    ]
    services = [
        ServiceTarget(name="a", arrival_rate_rps=10, priority=1.0),
        ServiceTarget(name="b", arrival_rate_rps=8, priority=2.0),
    ]
    problem = make_problem(
        services, options, [TypeTotals(gpu_type="big", gpus=1, sm_percent=100)]
    )
    solution, _ = solve(problem, BUDGET, method=method)
    assert counts_of(problem, solution) == (0, 1)
    assert [
        (entry.service, entry.rate_rps, entry.reason) for entry in solution.unserved
    ] == [("a", 10.0, "sm")]


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize(
    ("needs", "totals", "reason"),
    [
        ({}, {"gpus": 2}, "stock"),
        ({"sm_percent": 50.0}, {"sm_percent": 100.0}, "sm"),
        ({"memory_mib": 7.0}, {"memory_mib": 15.0}, "memory"),
        ({"power_w": 40.0}, {"power_w": 119.0}, "power"),
    ],
)
def test_shortage_names_the_rule_that_stops_it(
    method: Method, needs: dict[str, float], totals: dict[str, float], reason: str
) -> None:
    problem = make_problem(
        [a_service(arrival_rate_rps=30)],
        [make_option("chat", "big", rps=10, usd=1.0, **needs)],
        [TypeTotals(gpu_type="big", **totals)],  # type: ignore[arg-type]
    )
    solution, _ = solve(problem, BUDGET, method=method)
    assert [entry.count for entry in solution.counts] == [2]
    assert [(entry.rate_rps, entry.reason) for entry in solution.unserved] == [
        (10.0, reason)
    ]


@pytest.mark.parametrize("method", ALL)
def test_cluster_totals_limit_all_types_together(method: Method) -> None:
    options = [
        make_option("chat", name, rps=10, usd=1.0, cpu_cores=4, cpu_memory_mib=100)
        for name in ("a", "b")
    ]
    problem = make_problem([a_service(arrival_rate_rps=40)], options)
    few_cores, _ = solve(replace(problem, cpu_cores=11.0), BUDGET, method=method)
    little_memory, _ = solve(
        replace(problem, cpu_memory_mib=250.0), BUDGET, method=method
    )
    for solution, reason in ((few_cores, "stock"), (little_memory, "memory")):
        assert sum(entry.count for entry in solution.counts) == 2
        assert [(entry.rate_rps, entry.reason) for entry in solution.unserved] == [
            (20.0, reason)
        ]


@pytest.mark.parametrize("method", ALL)
def test_idle_service_keeps_its_least_replicas_on_the_cheapest_type(
    method: Method,
) -> None:
    problem = replace(
        big_and_small(), services=(a_service(arrival_rate_rps=0, min_replicas=2),)
    )
    solution, _ = solve(problem, BUDGET, method=method)
    assert counts_of(problem, solution) == (0, 2)


@pytest.mark.parametrize("method", ALL)
def test_service_that_meets_its_slo_nowhere_is_unserved(method: Method) -> None:
    problem = make_problem([a_service(min_replicas=1)], [])
    solution, _ = solve(problem, BUDGET, method=method)
    assert solution.counts == ()
    assert [(e.rate_rps, e.reason, e.replicas_missing) for e in solution.unserved] == [
        (110.0, "slo", 1)
    ]


@pytest.mark.parametrize("method", ALL)
def test_replicas_on_gpus_that_are_gone_are_given_up(method: Method) -> None:
    options = [make_option("chat", "big", rps=10, usd=1.0, running=3)]
    totals = [TypeTotals(gpu_type="big", gpus=1)]
    problem = make_problem([a_service(arrival_rate_rps=30)], options, totals)
    solution, _ = solve(problem, BUDGET, method=method)
    assert [(entry.count, entry.change) for entry in solution.counts] == [(1, -2)]
    (left,) = solution.unserved
    assert (left.rate_rps, left.reason) == (20.0, "stock")


@pytest.mark.parametrize("method", ALL)
def test_exact_fits_are_not_lost_to_rounding(method: Method) -> None:
    # In floating point 3 · 0.1 > 0.3, and 30 / 2^30 parts are not whole: three replicas are just enough and just fit.
    options = [
        make_option(
            "chat", "big", rps=0.1, usd=0.35, memory_mib=0.1, sm_percent=100 / 3
        )
    ]
    problem = make_problem(
        [a_service(arrival_rate_rps=0.3)],
        options,
        [TypeTotals(gpu_type="big", memory_mib=0.3, sm_percent=100)],
    )
    solution, report = solve(problem, BUDGET, method=method)
    assert [entry.count for entry in solution.counts] == [3]
    assert solution.unserved == ()
    assert report.objective == pytest.approx(1.05)


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("seed", seeds(16))
def test_exact_methods_find_the_brute_force_optimum(seed: int, method: Method) -> None:
    problem = random_problem(seed)
    solution, report = solve(problem, BUDGET, method=method)
    assert rate(problem, counts_of(problem, solution)) == pytest.approx(
        brute_force(problem), abs=1e-5
    )
    assert broken_limits(problem, solution) == []
    assert report.status is SolveStatus.OPTIMAL
    assert report.bound == pytest.approx(report.objective, abs=1e-5)


@pytest.mark.parametrize("seed", seeds(16))
def test_greedy_costs_at_most_twice_the_optimum_with_enough_gpus(seed: int) -> None:
    problem = random_problem(seed, services=3, gpu_types=3, all_fresh=True)
    problem = replace(
        with_services(problem, min_replicas=0, max_replicas=None),
        totals=tuple(TypeTotals(gpu_type=total.gpu_type) for total in problem.totals),
    )
    _, greedy = solve(problem, BUDGET, method="greedy")
    _, exact = solve(problem, BUDGET)
    assert greedy.objective is not None and exact.objective is not None
    assert exact.objective <= greedy.objective + 1e-6
    assert greedy.objective <= 2 * exact.objective + 1e-6


@pytest.mark.parametrize("method", ALL)
def test_order_of_the_input_changes_nothing(method: Method) -> None:
    problem = random_problem(3, services=5, gpu_types=3, gpus=4)
    draw = random.Random(1)
    shuffled = replace(
        problem,
        services=tuple(draw.sample(problem.services, len(problem.services))),
        options=tuple(draw.sample(problem.options, len(problem.options))),
        totals=tuple(draw.sample(problem.totals, len(problem.totals))),
    )
    assert solve(shuffled, BUDGET, method=method) == solve(
        problem, BUDGET, method=method
    )


@pytest.mark.parametrize("method", EXACT)
def test_no_time_left_falls_back_to_greedy_and_says_so(method: Method) -> None:
    budget = Budget(seconds=1.0, elapsed=lambda: 2.0)
    solution, report = solve(big_and_small(), budget, method=method)
    assert report.method == "greedy" and report.status is SolveStatus.FEASIBLE
    assert report.messages == (f"{method}: no time was left to try it",)
    assert solution == solve(big_and_small(), BUDGET, method="greedy")[0]


def test_work_limit_keeps_the_best_found_so_far_and_says_so() -> None:
    problem = random_problem(2, services=30, gpu_types=4, gpus=12)
    solution, report = solve(problem, Budget(seconds=20.0, work=1e-4))
    assert report.status is SolveStatus.FEASIBLE
    assert any("stopped by the work limit" in message for message in report.messages)
    assert broken_limits(problem, solution) == []


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("work", [1e-4, 1e-2])
@pytest.mark.parametrize(("services", "gpus"), [(5, 4), (8, 3)])
def test_a_work_limit_keeps_the_incumbent_or_the_greedys_and_says_so(
    services: int, gpus: int, work: float, method: Method
) -> None:
    for seed in range(4):
        problem = random_problem(seed, services=services, gpu_types=3, gpus=gpus)
        budget = Budget(seconds=20.0, work=work)
        solution, report = solve(problem, budget, method=method)
        assert broken_limits(problem, solution) == []
        assert report.status.has_solution
        if report.status is not SolveStatus.OPTIMAL:
            prefix = "cp-sat: " if method == "cp_sat" else f"{method}: "
            assert report.messages and report.messages[0].startswith(prefix)


def test_at_its_node_limit_highs_answers_with_its_incumbent() -> None:
    problem = random_problem(2, services=30, gpu_types=4, gpus=12)
    _, report = solve(problem, Budget(seconds=20.0, work=1e-4), method="highs")
    assert report.status is SolveStatus.FEASIBLE and report.messages


@pytest.mark.parametrize("method", ["cbc", "highs"])
def test_a_disk_that_takes_no_files_leaves_the_greedys_answer(
    method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    monkeypatch.setenv("TMPDIR", "/proc")
    problem = big_and_small()
    solution, report = solve(problem, BUDGET, method=method)
    # HiGHS works in memory; CBC reads and writes files.
    assert report.method == ("highs" if method == "highs" else "greedy")
    assert broken_limits(problem, solution) == []
    assert bool(report.messages) is (method == "cbc")


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize(
    ("rate_rps", "priority", "usd", "memory_mib"),
    [
        (1e-300, 1.0, 1.0, 1.0),
        (110.0, 1e-300, 1e-300, 1.0),
        (110.0, 1.0, 1e12, 1e12),
        (1e12, 1e12, 1e-12, 1e-12),
        (110.0, 1.0, 1.0, 5e-324),
    ],
)
def test_extreme_figures_overflow_nothing(
    rate_rps: float, priority: float, usd: float, memory_mib: float, method: Method
) -> None:
    # Four GPUs hold four replicas; 4/5 of the rate needs them all.
    rps = rate_rps / 5.0
    options = [make_option("chat", "big", rps=rps, usd=usd, memory_mib=memory_mib)]
    totals = [TypeTotals(gpu_type="big", gpus=4, memory_mib=4.0 * memory_mib)]
    problem = make_problem(
        [a_service(arrival_rate_rps=rate_rps, priority=priority)], options, totals
    )
    solution, _ = solve(problem, BUDGET, method=method)
    assert [entry.count for entry in solution.counts] == [4]
    assert [entry.rate_rps for entry in solution.unserved] == [pytest.approx(rps)]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (
            {"services": (a_service(arrival_rate_rps=float("nan")),)},
            "services[0].arrival_rate_rps",
        ),
        ({"services": (a_service(priority=0.0),)}, "services[0].priority"),
        (
            {"services": (a_service(min_replicas=3, max_replicas=2),)},
            "services[0].max_replicas",
        ),
        ({"services": (a_service(), a_service())}, "services"),
        ({"services": ()}, "options[0].service"),
        ({"totals": ()}, "options[0].gpu_type"),
        (
            {"options": (make_option("chat", "big", rps=0, usd=1.0),)},
            "options[0].capacity_rps",
        ),
        (
            {"options": (make_option("chat", "big", rps=1, usd=-1.0),)},
            "options[0].cost_usd_per_hour",
        ),
        ({"launch_weight_per_s": -1.0}, "launch_weight_per_s"),
        ({"cpu_cores": float("nan")}, "cpu_cores"),
    ],
)
def test_bad_input_is_refused_by_field(change: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        solve(replace(big_and_small(), **change), BUDGET)  # type: ignore[arg-type]
    assert refused.value.field == field


def test_a_greedy_answer_loads_no_solver() -> None:
    code = (
        "import sys; from solvers.autoscale.solve import solve; from solvers.autoscale.problem import AutoscaleProblem;"
        "from solvers.types.outcome import Budget;"
        "solve(AutoscaleProblem(services=(), options=(), totals=()), Budget(), method='greedy');"
        "sys.exit(bool({'ortools', 'pulp', 'cvxpy'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
