"""Parts of `bench.plan`: what plans from nothing cost, how soon, and how near the bound."""

import time
from collections.abc import Mapping
from functools import cache

from bench.melange_problems import instances, melange_optimum, melange_problem
from bench.plan_runs import Known, Rows, Run, judged, known_problems, load, relax, run
from bench.report import Figures
from bench.synthetic_problems import synthetic_problem
from bench.uncapped_problems import uncapped_problem
from bench.v100_problems import SERVICES, with_services
from solvers.check import violations
from solvers.policies.registry import policy
from solvers.types.outcome import Budget
from solvers.types.problem import Problem
from solvers.types.state import Observed

V100_USD_PER_HOUR = 3.06
_FIRST_SHARE = 0.1
"""Of a budget: within it there is a first plan."""
_QUICK_S = 5.0
"""Plans with a longer limit are left out of a quick run."""
_LP_LIMIT_S = 25.0


def costs(threads: int, *, is_quick: bool) -> Rows:
    """Shared synthetic problems: cost within time."""
    for known in _synthetic(is_quick=is_quick):
        for limit_s, must, aim in _cost_goals(known, is_quick=is_quick):
            made = _shared_run(known.name, limit_s, threads)
            yield {
                **judged(
                    _case(known),
                    f"USD/h in {limit_s:g} s",
                    made.cost,
                    (must, aim),
                    fault=made.fault(known),
                ),
                **made.figures(known),
            }


def first_plans(threads: int, *, is_quick: bool) -> Rows:
    """A tenth of the budget must do for a plan that serves everything; the cost is for information."""
    for known in _synthetic(is_quick=is_quick):
        limit_s = _FIRST_SHARE * max(
            limit_s for limit_s, _, _ in _cost_goals(known, is_quick=False)
        )
        made = _shared_run(known.name, limit_s, threads)
        yield {
            **judged(
                _case(known),
                "first plan, s",
                made.seconds,
                (made.latest_s, limit_s),
                fault=made.fault(known),
            ),
            "cost": made.cost,
            **made.figures(known),
        }


def proofs(threads: int, *, is_quick: bool) -> Rows:
    """Small fleets: seconds to a proven optimum, where the short runs for the costs found none."""
    for known in _synthetic(is_quick=is_quick):
        limit_s = 30.0 if "4x8" in known.name else 60.0
        if "100" in known.name or (is_quick and limit_s > 30.0):
            continue
        made = _shared_run(known.name, limit_s / 6.0, threads)
        if made.status != "optimal":
            made = _shared_run(known.name, limit_s, threads)
        seconds = made.seconds if made.status == "optimal" else None
        yield {
            **judged(
                _case(known),
                "proven optimum, s",
                seconds,
                (None, limit_s),
                fault=made.fault(known),
            ),
            "cost": made.cost,
            **made.figures(known),
        }


def bounds(threads: int, *, is_quick: bool) -> Rows:
    """Proven bounds, re-proved: against the known ones, and at 1000 × 100 against the relaxation's optimum."""
    for known in _synthetic(is_quick=is_quick):
        limit_s = max(
            limit_s for limit_s, _, _ in _cost_goals(known, is_quick=is_quick)
        )
        yield _bound_row(_case(known), known, _shared_run(known.name, limit_s, threads))
        if "1000x100" in known.name:
            yield from _below_lp(known, threads)


def _bound_row(case: str, known: Known, made: Run) -> Figures:
    below = 100.0 * (known.bound / made.bound - 1.0) if made.bound > 0.0 else None
    return {
        **judged(
            case,
            f"% below known, {made.limit_s:g} s",
            below,
            (None, 0.0),
            fault=made.fault(known),
        ),
        **made.figures(known),
    }


def _below_lp(known: Known, threads: int) -> Rows:
    """How far the bound is below the relaxation's optimum after a number of seconds.

    The optimum is that of a longer run; where that run did not end either, its lowest objective is above the optimum,
    and the distance is overstated.
    """
    problem = load(known.name)
    longest = relax(problem, _LP_LIMIT_S, threads)
    for limit_s, must, aim in ((8.0, 0.5, None), (5.0, None, 0.1)):
        found = relax(problem, limit_s, threads)
        below = (
            100.0 * (longest.objective / found.bound - 1.0)
            if found.bound > 0.0
            else None
        )
        fault = "bound" if max(found.bound, longest.bound) > known.best else None
        yield {
            **judged(
                _case(known),
                f"% below LP, {limit_s:g} s",
                below,
                (must, aim),
                fault=fault,
            ),
            "bound": found.bound,
            "known_bound": known.bound,
            "best_known": known.best,
            "lp": longest.objective,
            "lp_bound": longest.bound,
            "lp_is_exact": longest.is_exact,
            "lp_seconds": longest.seconds,
            "seconds": found.seconds,
        }


def against_greedy(threads: int, *, is_quick: bool) -> Rows:
    """Our cost as a share of that of HetSev's greedy and worst fit (policy `hetsev_greedy`), of the same Problem."""
    for known in _synthetic(is_quick=is_quick):
        if "100" not in known.name or (is_quick and "1000" in known.name):
            continue
        problem = load(known.name)
        made = _shared_run(known.name, 15.0 if "1000" in known.name else 5.0, threads)
        began_s = time.perf_counter()
        plan, report, _ = policy("hetsev_greedy").make_plan(
            problem, Observed(at_s=0.0), None, Budget(seconds=60.0)
        )
        share = 100.0 * made.cost / report.cost_usd_per_hour
        yield {
            **judged(
                _case(known),
                "cost, % of greedy's",
                share,
                (75.0, 70.0),
                fault=made.fault(known),
            ),
            "cost": made.cost,
            "greedy_cost": report.cost_usd_per_hour,
            "greedy_unserved": len(plan.unserved),
            "greedy_seconds": time.perf_counter() - began_s,
        }


def generated(threads: int, *, is_quick: bool) -> Rows:
    """Fresh problems of the same kind, which need no folder and which nothing was tuned on."""
    for gpus, services, seed, limit_s, must, aim in (
        (4, 8, 11, 5.0, None, 0.01),
        (16, 12, 11, 10.0, None, 0.01),
        (100, 30, 11, 5.0, 6.0, 4.0),
        (1000, 100, 11, 2.0, 4.0, 2.5),
        (1000, 100, 11, 15.0, 2.5, 1.0),
    ):
        if is_quick and gpus != 100:
            continue
        made = run(synthetic_problem(gpus, services, seed), limit_s, threads)
        figure = f"% over bound, {limit_s:g} s"
        yield {
            **judged(
                f"new_{gpus}x{services}_s{seed}",
                figure,
                made.gap_percent,
                (must, aim),
                fault=made.fault(),
            ),
            "cost": made.cost,
            **made.figures(),
        }


def uncapped(threads: int, *, is_quick: bool) -> Rows:
    """Fresh problems whose GPUs are shared without SM limits."""
    for gpus, services, seed, limit_s, must in (
        (16, 12, 11, 10.0, None),
        (100, 30, 11, 10.0, 8.0),
        (100, 30, 12, 10.0, 8.0),
        (1000, 100, 11, 60.0, None),
    ):
        if is_quick and seed != 12:
            continue
        made = run(uncapped_problem(gpus, services, seed), limit_s, threads)
        yield {
            **judged(
                f"uncapped_{gpus}x{services}_s{seed}",
                f"% over bound, {limit_s:g} s",
                made.gap_percent,
                (must, None),
                fault=made.fault(),
            ),
            "cost": made.cost,
            **made.figures(),
        }


_V100_GPUS = {
    ("half", 12): (3, 3),
    ("half", 50): (10, 9),
    ("half", 100): (20, 20),
    ("half", 400): (78, 74),
    ("p98", 12): (4, 4),
    ("p98", 50): (13, 12),
    ("p98", 100): (27, 27),
    ("p98", 400): (104, 100),
}
"""GPUs that must do and that are aimed at."""
_IGNITER_GPUS = {12: 3, 50: 10, 100: 22, 400: 83}
"""What iGniter's own program needs under `half`, by services."""
_V100_LIMIT_S = 15.0


def v100(threads: int, *, is_quick: bool) -> Rows:
    """Measured V100s: whole GPUs under both rules, and their proven bounds."""
    for (rule, count), goal in _V100_GPUS.items():
        problem = _v100_problem(rule, count)
        if problem is None or (is_quick and count > 50):
            continue
        made = run(problem, _V100_LIMIT_S, threads)
        known = known_problems().get(f"v100_3models_n{count}_{rule}")
        case = f"v100_n{count}_{rule}"
        yield {
            **judged(
                case,
                f"GPUs in {_V100_LIMIT_S:g} s",
                made.gpus,
                goal,
                fault=made.fault(known),
            ),
            "cost": made.cost,
            "bound_gpus": made.bound / V100_USD_PER_HOUR,
            **made.figures(known),
        }
        if known is not None:
            yield _bound_row(case, known, made)


def rivals(threads: int, *, is_quick: bool) -> Rows:  # noqa: ARG001  they take seconds, on one thread
    """Measured V100s under the rule of iGniter and gpulets, half the SLO: whole GPUs that those policies take."""
    for name in ("igniter", "gpulets"):
        for count, own_gpus in _IGNITER_GPUS.items():
            problem = _v100_problem("half", count)
            if problem is None:
                continue
            began_s = time.perf_counter()
            plan, report, _ = policy(name).make_plan(
                problem, Observed(at_s=0.0), None, Budget(seconds=60.0)
            )
            found = [entry.severity for entry in violations(problem, plan)]
            fault = "broken" if plan.unserved or "physical" in found else None
            gpus = sum(gpu.count for gpu in plan.gpus)
            yield {
                **judged(
                    f"v100_n{count}_half",
                    f"GPUs, {name}",
                    gpus,
                    (None, None),
                    fault=fault,
                ),
                "igniter_program": own_gpus,
                "promises_broken": found.count("promise"),
                "cost": report.cost_usd_per_hour,
                "seconds": time.perf_counter() - began_s,
            }


def _v100_problem(rule: str, count: int) -> Problem | None:
    name = f"v100_3models_n{count}_{rule}"
    if name in known_problems():
        return load(name)
    template = f"v100_3models_n100_{rule}"
    if template not in known_problems() or not SERVICES.is_dir():
        return None
    return with_services(load(template), count)


def melange(threads: int, *, is_quick: bool) -> Rows:  # noqa: ARG001  it takes seconds
    """Mélange's instances: cost against its own proven optimum, in a second and in a tenth of one."""
    for instance in instances():
        problem = melange_problem(instance)
        began_s = time.perf_counter()
        optimum = melange_optimum(instance)
        optimum_s = time.perf_counter() - began_s
        split_anywhere = melange_optimum(instance, is_cut=False)
        for limit_s, goal in ((1.0, (optimum, None)), (0.1, (None, optimum))):
            made = run(problem, limit_s, threads)
            yield {
                **judged(
                    instance.name,
                    f"USD/h in {limit_s:g} s",
                    made.cost,
                    goal,
                    fault=made.fault(),
                ),
                "melange_s": optimum_s,
                "split_anywhere": split_anywhere,
                **made.figures(),
            }


def _synthetic(*, is_quick: bool) -> list[Known]:
    """Those of a size that something is demanded of."""
    return [
        known
        for name, known in known_problems().items()
        if _cost_goals(known, is_quick=False) and (not is_quick or name.endswith("_s1"))
    ]


def _case(known: Known) -> str:
    return known.name.removeprefix("synthetic_")


def _cost_goals(
    known: Known, *, is_quick: bool
) -> list[tuple[float, float | None, float | None]]:
    """Seconds, and the cost that must be reached or is aimed at within them."""
    enough = 1.001 * known.best
    goals: Mapping[str, list[tuple[float, float | None, float | None]]] = {
        "4x8": [(1.0, None, enough), (5.0, enough, None)],
        "16x12": [(3.0, None, enough), (10.0, enough, None)],
        "100x30": [(5.0, 1.003 * known.best, known.best)],
        "1000x100": [
            (1.0, None, 1.025 * known.bound),
            (2.0, 1.04 * known.bound, None),
            (10.0, None, 1.01 * known.bound),
            (15.0, 1.016 * known.bound, None),
        ],
    }
    size = _case(known).partition("_")[0]
    return [goal for goal in goals.get(size, ()) if not is_quick or goal[0] <= _QUICK_S]


@cache
def _shared_run(name: str, limit_s: float, threads: int) -> Run:
    """Several parts look at the same plans."""
    return run(load(name), limit_s, threads)
