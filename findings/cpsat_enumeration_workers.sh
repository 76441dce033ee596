#!/usr/bin/env bash
# CP-SAT with several workers "enumerates all solutions" and finds some of them.
#
# Version: ortools 9.15.6755.
# Guess: with 4 workers the parameters are refused, or one worker does it; the count is the same.
# Seen: of the 12 ways to share 4 replicas among 3 GPUs (3 at most on each), one worker reports 12. Four workers report
#   4, in each of five runs. The status is OPTIMAL both times, which stands for "all were found", and nothing is said.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet ortools==9.15.6755

"$folder/venv/bin/python" - <<'PYTHON'
import sys

from ortools.sat.python import cp_model


class Count(cp_model.CpSolverSolutionCallback):
    def __init__(self):
        super().__init__()
        self.found = set()

    def on_solution_callback(self):
        self.found.add(tuple(self.value(each) for each in replicas))


program = cp_model.CpModel()
replicas = [program.new_int_var(0, 3, f"gpu{i}") for i in range(3)]
program.add(sum(replicas) == 4)

counts, ends = {}, set()
for workers in (1, 4):
    for attempt in range(5):
        solver, count = cp_model.CpSolver(), Count()
        solver.parameters.enumerate_all_solutions = True
        solver.parameters.num_workers = workers
        ends.add(solver.status_name(solver.solve(program, count)))
        counts.setdefault(workers, []).append(len(count.found))

print(f"found by 1 worker {counts[1]}, by 4 workers {counts[4]}; statuses {sorted(ends)}")
as_seen = set(counts[1]) == {12} and min(counts[4]) < 12 and ends == {"OPTIMAL"}
sys.exit(0 if as_seen else "changed: several workers enumerate now, or say that they do not")
PYTHON
