#!/usr/bin/env bash
# CP-SAT proves a wrong answer optimal when an objective of floats spans 12 decades; integers are right.
#
# Version: ortools 9.15.6755.
# Guess: in  minimise -1.0 x + 1e12 y  the small term is lost in scaling, and the status is OPTIMAL all the same. With
#   integers the answer is exact.
# Seen: the term is lost and the status is OPTIMAL: x = 3 (value -3) where x = 1,000,000 was allowed. But the bound is
#   -1,000,000: it is the true one, and the only sign that something is wrong. OPTIMAL therefore does not mean that
#   objective and bound meet. As integers: x = 1,000,000. (1e15 as an integer is MODEL_INVALID: it may overflow.)
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet ortools==9.15.6755

"$folder/venv/bin/python" - <<'PYTHON'
import sys

from ortools.sat.python import cp_model


def solve(small, large):
    program = cp_model.CpModel()
    x, y = (program.new_int_var(0, 10**6, name) for name in "xy")
    program.add(x + y >= 3)
    program.minimize(small * x + large * y)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.status_name(solver.solve(program))
    answer = (status, solver.value(x), solver.objective_value, solver.best_objective_bound)
    print(f"{small!r} x + {large!r} y: {answer[0]}, x = {answer[1]}, objective {answer[2]}, bound {answer[3]}")
    return answer


floats, integers = solve(-1.0, 1e12), solve(-1, 10**12)
as_seen = floats == ("OPTIMAL", 3, -3.0, -1e6) and integers == ("OPTIMAL", 10**6, -1e6, -1e6)
sys.exit(0 if as_seen else "changed: scaling keeps the small term now, or the status says that it does not")
PYTHON
