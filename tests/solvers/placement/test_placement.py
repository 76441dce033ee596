"""Placement: by hand, against trying everything, greedy, bounds, and at the edges."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers.placement.bounds import min_gpus
from solvers.placement.formulation import classes_of
from solvers.placement.greedy import place_in_order
from solvers.placement.integer_problem import (
    Groups,
    TypePacking,
    canonical,
    score,
    split,
)
from solvers.placement.problem import (
    PackedGpu,
    PendingReplica,
    PlacementProblem,
    PlacementSolution,
    broken_rules,
)
from solvers.placement.solve import solve
from solvers.types.errors import InvalidInput
from solvers.types.outcome import Budget, SolveStatus
from tests.examples import examples, seeds
from tests.solvers.placement.instances import (
    best_by_trying_everything,
    objective,
    random_problem,
    replica,
    stock,
)

BUDGET = Budget(seconds=30.0, work=5.0)


def limits() -> Any:
    from solvers.placement.exact import SolveLimits

    return SolveLimits(seconds=30.0, work=5.0)


def together(solution: PlacementSolution) -> set[tuple[str, ...]]:
    return {gpu.replicas for gpu in solution.gpus}


def only_packing(problem: PlacementProblem) -> TypePacking:
    (packing,) = split(problem)
    return packing


def test_no_two_replicas_of_a_service_share_a_gpu() -> None:
    problem = PlacementProblem(
        replicas=(replica("chat/0", 10.0), replica("chat/1", 10.0)), gpus=(stock(),)
    )
    solution, report = solve(problem, BUDGET)
    assert together(solution) == {("chat/0",), ("chat/1",)}
    assert report.status is SolveStatus.OPTIMAL


@pytest.mark.parametrize(
    ("oversized", "reason"),
    [
        (replica("a", 101.0), "sm"),
        (replica("a", 10.0, memory_mib=16_001.0), "memory"),
        (replica("a", 10.0, power_w=201.0), "power"),
        (replica("a", 10.0, gpu_type="elsewhere"), "stock"),
    ],
)
def test_what_fits_nowhere_is_left_out_with_the_reason(
    oversized: PendingReplica, reason: str
) -> None:
    solution, report = solve(
        PlacementProblem(replicas=(oversized,), gpus=(stock(),)), BUDGET
    )
    assert [(one.replica, one.reason) for one in solution.unplaced] == [("a", reason)]
    assert (solution.gpus, report.status) == ((), SolveStatus.OPTIMAL)


def test_when_gpus_run_out_the_most_value_is_placed() -> None:
    # One GPU: 60 (value 5) excludes 50 (4) and 50 (4), which together are worth 8.
    replicas = (
        replica("a", 60.0, value=5.0),
        replica("b", 50.0, value=4.0),
        replica("c", 50.0, value=4.0),
    )
    solution, report = solve(
        PlacementProblem(replicas=replicas, gpus=(stock(count=1),)), BUDGET
    )
    assert together(solution) == {("b", "c")}
    assert (solution.placed_value, solution.placed_value_bound, report.status) == (
        8.0,
        8.0,
        SolveStatus.OPTIMAL,
    )
    assert [(one.replica, one.reason) for one in solution.unplaced] == [("a", "stock")]


def test_among_equally_cheap_placements_the_most_even_one_is_taken() -> None:
    # 40 + 10 and 30 + 20 (peak 50), the one way besides 40 + 20 and 30 + 10 (peak 60) that the labels leave.
    replicas = (
        replica("a", 40.0, labels=("x",)),
        replica("b", 30.0, labels=("x",)),
        replica("c", 20.0, labels=("y",)),
        replica("d", 10.0, labels=("y",)),
    )
    solution, _ = solve(PlacementProblem(replicas=replicas, gpus=(stock(),)), BUDGET)
    assert together(solution) == {("a", "d"), ("b", "c")}


def test_thirds_of_a_gpu_fill_it() -> None:
    replicas = tuple(replica(f"{name}/0", 100.0 / 3.0) for name in "abc")
    assert (
        len(solve(PlacementProblem(replicas=replicas, gpus=(stock(),)), BUDGET)[0].gpus)
        == 1
    )


@pytest.mark.parametrize("seed", seeds(12))
def test_the_answer_is_the_best_of_all_placements(seed: int) -> None:
    problem = random_problem(seed, replicas=6, gpus=2 + seed % 3)
    solution, report = solve(problem, replace(BUDGET, work=1000.0))
    assert broken_rules(problem, solution.gpus) == ()
    assert objective(problem, solution.gpus) == pytest.approx(
        best_by_trying_everything(problem)
    )
    assert report.status is SolveStatus.OPTIMAL
    assert report.messages == ()


@pytest.mark.parametrize("seed", seeds(12))
def test_cp_sat_alone_finds_the_best_from_a_poor_start(seed: int) -> None:
    from solvers.placement.exact import place_better, place_more_evenly

    problem = random_problem(seed, replicas=6, gpus=2 + seed % 5)
    packing = only_packing(problem)
    apart: Groups = tuple(
        (index,) for index in range(min(packing.gpus, len(packing.replicas)))
    )
    found = place_better(packing, apart, limits())
    groups, evenness = place_more_evenly(packing, found.groups, limits())
    gpus = tuple(
        PackedGpu(
            gpu_type="big",
            replicas=tuple(packing.replicas[index].name for index in group),
        )
        for group in groups
    )
    assert objective(problem, gpus) == pytest.approx(best_by_trying_everything(problem))
    assert (found.status, evenness) == (SolveStatus.OPTIMAL, SolveStatus.OPTIMAL)
    assert (found.value_bound, -found.gpus_bound) == (
        score(packing, groups).value,
        score(packing, groups).fewer_gpus,
    )


@pytest.mark.parametrize("seed", seeds(8))
def test_patterns_and_assignment_agree(seed: int) -> None:
    from ortools.sat.python import cp_model

    from solvers.placement import assignment, covering

    packing = only_packing(random_problem(seed, replicas=9, gpus=9))
    start: Groups = tuple((index,) for index in range(len(packing.replicas)))
    classes = classes_of(packing)
    fewest = []
    for build in (covering.build, assignment.build):
        formulation = build(packing, classes, packing.gpus, needs_all=True, start=start)
        assert formulation is not None
        formulation.sat.minimize(formulation.used)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        assert solver.solve(formulation.sat) == cp_model.OPTIMAL
        groups = canonical(formulation.decode(solver))
        assert sorted(index for group in groups for index in group) == list(
            range(len(packing.replicas))
        )
        assert len(groups) == solver.objective_value
        fewest.append(len(groups))
    assert fewest[0] == fewest[1]


@pytest.mark.thorough
def test_patterns_beyond_count_are_left_to_the_assignment() -> None:
    # Any six of 40 services fit on a GPU: 3.8 million patterns.
    from solvers.placement import covering

    replicas = tuple(
        replica(f"s{number:02}", 10.0 + 0.1 * number, value=1.0 + number)
        for number in range(40)
    )
    problem = PlacementProblem(replicas=replicas, gpus=(stock(count=6),))
    packing = only_packing(problem)
    assert covering.maximal_patterns(packing, classes_of(packing)) is None
    solution, _ = solve(problem, Budget(seconds=30.0, work=0.02))
    assert broken_rules(problem, solution.gpus) == ()


def test_the_volume_bound_sees_that_wide_replicas_do_not_meet() -> None:
    # Four of 51 % sum up to 204 %, three GPUs' worth, but no two fit together: four GPUs.
    replicas = tuple(replica(f"{name}/0", 51.0) for name in "abcd")
    assert (
        min_gpus(only_packing(PlacementProblem(replicas=replicas, gpus=(stock(),))))
        == 4
    )


def test_worst_fit_spreads_over_open_gpus_and_best_fit_fills_them() -> None:
    # In the order 60, 50, 20: 20 goes to the emptier GPU (50) by worst fit, to the fuller one (60) by best fit.
    problem = PlacementProblem(
        replicas=(replica("a", 60.0), replica("b", 50.0), replica("c", 20.0)),
        gpus=(stock(),),
    )
    packing = only_packing(problem)
    assert place_in_order(packing, (0, 1, 2), fit="worst") == ((0,), (1, 2))
    assert place_in_order(packing, (0, 1, 2), fit="best") == ((0, 2), (1,))


def test_the_given_order_decides_who_comes_first_when_room_is_short() -> None:
    replicas = (replica("a", 60.0), replica("b", 60.0))
    problem = PlacementProblem(
        replicas=replicas, gpus=(stock(count=1),), order=("b", "a")
    )
    assert together(solve(problem, Budget(seconds=0.0))[0]) == {("b",)}


@given(
    seed=st.integers(0, 10_000), replicas=st.integers(0, 40), gpus=st.integers(0, 12)
)
@settings(max_examples=examples(40))
def test_no_answer_breaks_a_rule_and_none_is_worse_than_the_greedy(
    seed: int, replicas: int, gpus: int
) -> None:
    problem = random_problem(seed, replicas=replicas, gpus=gpus)
    solution, report = solve(problem, Budget(seconds=30.0, work=0.02))
    greedy, _ = solve(problem, Budget(seconds=0.0))
    for gpus_used in (solution.gpus, greedy.gpus):
        assert broken_rules(problem, gpus_used) == ()
    assert objective(problem, solution.gpus)[:2] >= objective(problem, greedy.gpus)[:2]
    assert solution.placed_value <= solution.placed_value_bound + 1e-9
    assert report.bound is not None
    assert report.bound <= solution.price_usd_per_hour
    assert {name for gpu in solution.gpus for name in gpu.replicas}.isdisjoint(
        one.replica for one in solution.unplaced
    )


@pytest.mark.parametrize("seed", seeds(4))
def test_the_order_of_the_input_changes_nothing_and_a_second_run_neither(
    seed: int,
) -> None:
    problem = random_problem(seed, replicas=25, gpus=8)
    shuffled = replace(
        problem, replicas=tuple(random.Random(seed).sample(problem.replicas, 25))
    )
    budget = Budget(seconds=30.0, work=0.02)
    assert solve(problem, budget) == solve(shuffled, budget) == solve(problem, budget)


def test_gpu_types_are_solved_apart_and_priced_apart() -> None:
    replicas = (
        replica("a", 60.0),
        replica("b", 60.0, gpu_type="small"),
        replica("c", 60.0, gpu_type="small"),
    )
    problem = PlacementProblem(
        replicas=replicas, gpus=(stock(price=3.0), stock("small", price=0.5))
    )
    solution, _ = solve(problem, BUDGET)
    assert [gpu.gpu_type for gpu in solution.gpus] == ["big", "small", "small"]
    assert solution.price_usd_per_hour == 3.0 + 2 * 0.5


def test_a_search_cut_by_its_work_limit_leaves_the_greedy_and_says_so() -> None:
    problem = random_problem(4, replicas=30, gpus=6)
    solution, report = solve(problem, Budget(seconds=30.0, work=1e-6))
    assert solution.gpus == solve(problem, Budget(seconds=0.0))[0].gpus
    assert (report.method, report.status) == ("greedy", SolveStatus.FEASIBLE)
    assert report.messages[0] == "big: CP-SAT ended with time_limit before the proof"


def test_without_time_the_greedy_answers_with_its_bound() -> None:
    problem = random_problem(3, replicas=30, gpus=30)
    solution, report = solve(problem, Budget(seconds=0.0))
    assert report.method == "greedy"
    assert report.status in (SolveStatus.OPTIMAL, SolveStatus.FEASIBLE)
    assert (report.status is SolveStatus.OPTIMAL) == (
        solution.price_usd_per_hour == solution.price_bound_usd_per_hour
    )


@pytest.mark.parametrize(
    ("replicas", "order"),
    [
        ((replica("a", 10.0), replica("a", 20.0)), ()),
        ((replica("a", -1.0),), ()),
        ((replica("a", math.nan),), ()),
        ((replica("a", 10.0, value=0.0),), ()),
        ((replica("a", 10.0),), ("a", "a")),
    ],
)
def test_a_senseless_problem_is_refused(
    replicas: tuple[PendingReplica, ...], order: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidInput):
        PlacementProblem(replicas=replicas, gpus=(stock(),), order=order)
