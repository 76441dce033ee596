"""The solver libraries load together in any order: with other versions some orders crash or fail to import.

Each order is a process of its own, since a library loads once. The pins in pyproject.toml make all of them pass:
ortools, highspy and PuLP each bring symbols of HiGHS, and CVXPY loads highspy and OSQP.
"""

import subprocess
import sys

import pytest

from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

ORDERS = (
    # PuLP before OSQP: a crash in OSQP's set-up with PuLP 3.3.
    # ortools before highspy: an ImportError with highspy 1.15.
    "pulp cvxpy ortools highspy",
    "ortools highspy pulp cvxpy",
    "highspy ortools cvxpy pulp",
    "cvxpy pulp ortools highspy",
)

IMPORTS = {
    "pulp": "import pulp",
    "cvxpy": "import cvxpy",
    "ortools": "from ortools.sat.python import cp_model",
    "highspy": "import highspy",
}

SOLVE_WITH_EACH = """
x = cvxpy.Variable()
for solver in (cvxpy.OSQP, cvxpy.CLARABEL):
    cvxpy.Problem(cvxpy.Minimize((x - 1) ** 2), [x >= 2]).solve(solver=solver)
    assert abs(x.value - 2) < 1e-3, x.value

sat = cp_model.CpModel()
y = sat.new_int_var(0, 9, "y")
sat.maximize(y)
solver = cp_model.CpSolver()
assert solver.solve(sat) == cp_model.OPTIMAL and solver.value(y) == 9

highs = highspy.Highs()
highs.setOptionValue("output_flag", False)
z = highs.addVariable(lb=0, ub=3)
highs.maximize(z)
assert highs.getInfo().objective_function_value == 3

count = pulp.LpVariable("count", 0, 7, cat="Integer")
programme = pulp.LpProblem("most", pulp.LpMaximize)
programme += count
programme.solve(pulp.PULP_CBC_CMD(msg=False))
assert count.value() == 7
print("solved")
"""


@pytest.mark.thorough
@pytest.mark.parametrize("order", ORDERS)
def test_solver_libraries_load_and_solve_in_this_order(order: str) -> None:
    script = "\n".join(IMPORTS[library] for library in order.split()) + SOLVE_WITH_EACH
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (run.returncode, run.stdout.strip()) == (0, "solved"), run.stderr
