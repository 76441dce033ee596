#!/usr/bin/env bash
# Through CVXPY a solver that ran into its limit says "optimal_inaccurate", or "user_limit", as it likes.
#
# Versions: cvxpy 1.9.3, clarabel 0.11.1, osqp 1.1.3, scs 3.3.1.
# Guess: a limit of one iteration, or of a nanosecond, ends with "user_limit" (or SolverError) from every solver.
# Seen: CLARABEL and OSQP say "user_limit". SCS says "optimal_inaccurate" with a value of -36.9 for a minimum of -5.0:
#   nothing of it is optimal. What is cut and what is nearly there carry the same status, so "optimal_inaccurate" of SCS
#   may be used only after checking the constraints oneself.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet cvxpy==1.9.3 clarabel==0.11.1 osqp==1.1.3 scs==3.3.1

"$folder/venv/bin/python" - <<'PYTHON'
import sys
import warnings

import cvxpy as cp

warnings.simplefilter("ignore")  # CVXPY's warning is the same for all three


def solve(solver, **limits):
    x = cp.Variable(2)
    problem = cp.Problem(cp.Minimize(-2 * x[0] - x[1]), [x[0] + x[1] <= 3, x >= 0, x[0] - x[1] == 1])
    problem.solve(solver=solver, **limits)
    broken = max(float(each.violation().max()) for each in problem.constraints)
    print(f"{solver} {limits}: {problem.status}, value {problem.value:.4g}, constraints broken by {broken:.2g}")
    return problem.status, problem.value


answers = {
    "clarabel": solve("CLARABEL", max_iter=1),
    "osqp": solve("OSQP", max_iter=1),
    "scs": solve("SCS", max_iters=1),
    "scs, time": solve("SCS", time_limit_secs=1e-9),
}
as_seen = [answers[name][0] for name in answers] == ["user_limit"] * 2 + ["optimal_inaccurate"] * 2
far = all(abs(answers[name][1] + 5) > 5 for name in ("scs", "scs, time"))
sys.exit(0 if as_seen and far else "changed: a cut solve has another status now")
PYTHON
