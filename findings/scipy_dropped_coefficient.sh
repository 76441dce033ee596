#!/usr/bin/env bash
# A constraint whose coefficient is small is dropped without a word.
#
# Versions: scipy 1.17.1 (it brings its own HiGHS), numpy 2.4.6.
# Guess: 5e-10 * x <= 1 is dropped, and both report success with x = 1e12, where x = 2e9 is right.
# Seen: just so: linprog and milp drop what is below 1e-9, say "Optimization terminated successfully" with status 0,
#   and answer x = 1e12, which breaks the constraint 500 times over. HiGHS itself warns, and SciPy does not pass it on.
#   Ten times the coefficient and ten times the bound, which is the same constraint, is answered right.
# Why it matters here: a capacity per request in units that are too large looks just like this.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet scipy==1.17.1 numpy==2.4.6

"$folder/venv/bin/python" - <<'PYTHON'
import sys
import warnings

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

warnings.simplefilter("error")  # a warning would be an answer too
failed = []
for scale, expected in ((1.0, 1e12), (10.0, 2e9)):
    row, limit = [[5e-10 * scale]], 1.0 * scale
    answers = {
        "linprog": linprog([-1.0], A_ub=row, b_ub=[limit], bounds=[(0, 1e12)]),
        "milp": milp([-1.0], constraints=LinearConstraint(row, -np.inf, limit), bounds=Bounds(0, 1e12)),
    }
    for name, answer in answers.items():
        used = row[0][0] * answer.x[0]
        print(f"{name}: {row[0][0]:g} x <= {limit:g}: status {answer.status}, x = {answer.x[0]:g}, left side {used:g}")
        if answer.status != 0 or abs(answer.x[0] / expected - 1) > 1e-6:
            failed.append(f"{name} at scale {scale:g}")

sys.exit(f"changed: {failed}" if failed else 0)
PYTHON
