#!/usr/bin/env bash
# Two interfaces call a program without a bound infeasible.
#
# Versions: pulp 3.3.2 with highspy 1.16.0 and its own CBC, cvxpy 1.9.3 with ortools 9.15.6755.
# Guess (not written down before the first probe): each says "unbounded" of  minimise -x, x >= 0.
# Seen: of an integer program PuLP says "Infeasible" with HiGHS, though x = 0 is allowed; the same program without
#   integers is "Unbounded". With CBC it says "Unbounded", and also of an integer program with 2y = 3, which nothing
#   meets. CVXPY says "infeasible" with GLOP and "unbounded" with CLARABEL. A planner that answers "no plan meets the
#   demand" from such a status misleads.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pulp==3.3.2 highspy==1.16.0 cvxpy==1.9.3 ortools==9.15.6755 clarabel==0.11.1

"$folder/venv/bin/python" - <<'PYTHON'
import sys

import cvxpy as cp
import pulp


def by_pulp(solver, *, category, odd=False):
    problem = pulp.LpProblem("p", pulp.LpMinimize)
    x, y = (pulp.LpVariable(name, 0, None, cat=category) for name in "xy")
    problem += -x
    problem += (2 * y == 3) if odd else (y <= 5)
    return pulp.LpStatus[problem.solve(solver)]


def by_cvxpy(solver):
    x = cp.Variable(2)
    problem = cp.Problem(cp.Minimize(-x[0]), [x >= 0, x[1] <= 5])
    problem.solve(solver=solver)
    return problem.status


highs, cbc = pulp.HiGHS(msg=False), pulp.PULP_CBC_CMD(msg=False)
seen = {
    "PuLP, HiGHS, continuous": (by_pulp(highs, category="Continuous"), "Unbounded"),
    "PuLP, HiGHS, integer": (by_pulp(highs, category="Integer"), "Infeasible"),
    "PuLP, CBC, integer": (by_pulp(cbc, category="Integer"), "Unbounded"),
    "PuLP, CBC, integer and 2y = 3": (by_pulp(cbc, category="Integer", odd=True), "Unbounded"),
    "CVXPY, CLARABEL": (by_cvxpy("CLARABEL"), "unbounded"),
    "CVXPY, GLOP": (by_cvxpy("GLOP"), "infeasible"),
}
for name, (status, _) in seen.items():
    print(f"{name}: {status}")
changed = [name for name, (status, expected) in seen.items() if status != expected]
sys.exit(f"changed: {changed}" if changed else 0)
PYTHON
