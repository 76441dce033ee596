"""Parts of `bench.plan`: what plans from nothing cost, how soon, and how near the bound."""

import time
from functools import cache

from bench.melange_problems import instances, melange_optimum, melange_problem
from bench.plan_runs import Known, Rows, Run, judged, known_problems, load, relax, run
from bench.synthetic_problems import synthetic_problem
from bench.v100_problems import SERVICES, with_services
from solvers.outcome import Budget
from solvers.policies import policy
from solvers.problem import Problem
from solvers.state import Observed

V100_USD_PER_HOUR = 3.06
_FIRST_SHARE = 0.1
"""Of a budget: within it there is a first plan."""
_LP_LIMIT_S = 25.0
_BOUND_LIMIT_S = 8.0
_BOUND_AIM_S = 5.0


def costs(threads: int, *, is_quick: bool) -> Rows:
    """Shared synthetic problems: cost within time, and the bound against the known one."""
    for known in _synthetic(is_quick=is_quick):
        for limit_s, must, aim in _cost_goals(known):
            if is_quick and limit_s > 5.0:
                continue
            made = _shared_run(known.name, limit_s, threads)
            yield {
                **judged(known.name, "USD/h", made.cost, (must, aim), is_sound=made.is_sound),
                "best_known": known.best,
                "known_bound": known.bound,
                **made.figures(),
            }


def first_plans(threads: int, *, is_quick: bool) -> Rows:
    """A tenth of the budget must do for a plan that serves everything; the cost is for information."""
    for known in _synthetic(is_quick=is_quick):
        limit_s = _FIRST_SHARE * max(limit_s for limit_s, _, _ in _cost_goals(known))
        made = _shared_run(known.name, limit_s, threads)
        latest_s = max(1.1 * limit_s, limit_s + 0.05)
        yield {
            **judged(known.name, "first plan, s", made.seconds, (latest_s, limit_s), is_sound=made.is_sound),
            "cost": made.cost,
            "best_known": known.best,
            "limit_s": limit_s,
            "found_s": made.found_s,
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
        is_proven = made.status == "optimal"
        yield {
            **judged(known.name, "proven optimum, s", made.seconds if is_proven else None, (None, limit_s)),
            "cost": made.cost,
            "best_known": known.best,
            "known_bound": known.bound,
            **made.figures(),
        }


def bounds(threads: int, *, is_quick: bool) -> Rows:
    """1000 × 100: how far the bound is below the relaxation's optimum after 8 and after 5 seconds.

    The optimum is that of a longer run; where that run did not end either, its lowest objective is above the optimum,
    and the distance is overstated.
    """
    for known in _synthetic(is_quick=is_quick):
        if "1000x100" not in known.name or is_quick:
            continue
        problem = load(known.name)
        longest = relax(problem, _LP_LIMIT_S, threads)
        for limit_s, must, aim in ((_BOUND_LIMIT_S, 0.5, None), (_BOUND_AIM_S, None, 0.1)):
            found = relax(problem, limit_s, threads)
            below = 100.0 * (longest.objective / found.bound - 1.0)
            yield {
                **judged(known.name, f"% below LP in {limit_s:g} s", below, (must, aim)),
                "bound": found.bound,
                "known_bound": known.bound,
                "lp": longest.objective,
                "lp_bound": longest.bound,
                "lp_is_exact": longest.is_exact,
                "lp_seconds": longest.seconds,
                "seconds": found.seconds,
            }


def against_greedy(threads: int, *, is_quick: bool) -> Rows:
    """How much cheaper than HetSev's greedy and worst fit (policy `hetsev_greedy`), of the same Problem."""
    for known in _synthetic(is_quick=is_quick):
        if "100" not in known.name or (is_quick and "1000" in known.name):
            continue
        problem = load(known.name)
        made = _shared_run(known.name, 15.0 if "1000" in known.name else 5.0, threads)
        began_s = time.perf_counter()
        plan, report, _ = policy("hetsev_greedy").make_plan(problem, Observed(at_s=0.0), None, Budget(seconds=60.0))
        seconds = time.perf_counter() - began_s
        # Less is better: our share of its cost.
        share = 100.0 * made.cost / report.cost_usd_per_hour
        yield {
            **judged(known.name, "cost, % of greedy's", share, (75.0, 70.0), is_sound=made.is_sound),
            "cheaper_percent": 100.0 - share,
            "cost": made.cost,
            "greedy_cost": report.cost_usd_per_hour,
            "greedy_unserved": len(plan.unserved),
            "greedy_seconds": seconds,
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
        name = f"generated_{gpus}x{services}_s{seed}"
        yield {
            **judged(name, "% over own bound", made.gap_percent, (must, aim), is_sound=made.is_sound),
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
"""GPUs that must do and that are aimed at. iGniter needs 3, 10, 22 and 83 under `half`."""
_V100_LIMIT_S = 15.0


def v100(threads: int, *, is_quick: bool) -> Rows:
    """Measured V100s: whole GPUs under both rules."""
    known = known_problems()
    for (rule, count), (must, aim) in _V100_GPUS.items():
        problem = _v100_problem(rule, count)
        if problem is None or (is_quick and count > 50):
            continue
        made = run(problem, _V100_LIMIT_S, threads)
        name = f"v100_3models_n{count}_{rule}"
        least = known[name].bound / V100_USD_PER_HOUR if name in known else None
        yield {
            **judged(name, "GPUs", made.gpus, (must, aim), is_sound=made.is_sound),
            "known_bound_gpus": least,
            "bound_gpus": made.bound / V100_USD_PER_HOUR,
            "status": made.status,
            "limit_s": made.limit_s,
            "seconds": made.seconds,
            "found_s": made.found_s,
            "sound": made.is_sound,
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
    """Mélange's instances: cost against its own proven optimum, in a second."""
    for instance in instances():
        problem = melange_problem(instance)
        began_s = time.perf_counter()
        optimum = melange_optimum(instance)
        optimum_s = time.perf_counter() - began_s
        made = run(problem, 1.0, threads)
        yield {
            **judged(instance.name, "USD/h", made.cost, (optimum, None), is_sound=made.is_sound),
            "split_anywhere": melange_optimum(instance, is_cut=False),
            "optimum_s": optimum_s,
            **made.figures(),
        }
        yield judged(instance.name, "time of the plan, s", made.found_s, (1.0, 0.1), is_sound=made.is_sound)


def _synthetic(*, is_quick: bool) -> list[Known]:
    return [
        known
        for name, known in known_problems().items()
        if name.startswith("synthetic") and (not is_quick or name.endswith("_s1"))
    ]


def _cost_goals(known: Known) -> list[tuple[float, float | None, float | None]]:
    """Seconds, and the cost that must be reached or is aimed at within them."""
    if "1000x100" in known.name:
        factors = ((1.0, None, 1.025), (2.0, 1.04, None), (10.0, None, 1.01), (15.0, 1.025, None))
        return [(limit_s, must and must * known.bound, aim and aim * known.bound) for limit_s, must, aim in factors]
    if "100x30" in known.name:
        return [(5.0, 1.02 * known.best, known.best)]
    enough = 1.001 * known.best
    return (
        [(1.0, None, enough), (5.0, enough, None)]
        if "4x8" in known.name
        else [(3.0, None, enough), (10.0, enough, None)]
    )


@cache
def _shared_run(name: str, limit_s: float, threads: int) -> Run:
    """Several parts look at the same plans."""
    return run(load(name), limit_s, threads)
