#!/usr/bin/env bash
# A program cut by its node limit is "not recognized", though its solution is there.
#
# Versions: scipy 1.17.1, numpy 2.4.6.
# Guess: milp(node_limit=1) ends like a time limit does: status 1 "iteration or time limit reached".
# Seen: status 4 ("other") and "The HiGHS status code was not recognized. (HiGHS Status 16: Solution limit
#   reached)": HiGHS calls a node limit a solution limit, and SciPy's table has no line for that. The incumbent, its gap
#   and the bound are in the answer all the same. With time_limit=0 the status is 1 and no solution is there. So a caller
#   that takes 4 for a breakdown throws good solutions away.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet scipy==1.17.1 numpy==2.4.6

"$folder/venv/bin/python" - <<'PYTHON'
import sys

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

rng = np.random.default_rng(1)
weights, values = rng.integers(1000, 2000, (5, 40)), rng.integers(1000, 2000, 40)
room = LinearConstraint(weights, -np.inf, weights.sum(axis=1) // 2)


def solve(**limits):
    answer = milp(-values, constraints=room, bounds=Bounds(0, 1), integrality=np.ones(40), options=dict(limits))
    print(f"{limits}: status {answer.status}, value {answer.fun}, gap {answer.mip_gap}: {answer.message}")
    return answer


by_nodes, by_time = solve(node_limit=1), solve(time_limit=0.0)
fits = by_nodes.x is not None and (weights @ np.round(by_nodes.x) <= weights.sum(axis=1) // 2).all()
as_seen = by_nodes.status == 4 and "not recognized" in by_nodes.message and fits and by_time.status == 1
sys.exit(0 if as_seen else "changed: the node limit is told apart now, or leaves no solution")
PYTHON
