"""GPUs that are cut into MIG slices, beside those that are shared, in one master problem.

Internal until version 2 of the contract carries slices: version 1 cannot ask for them, so no policy calls
`solve.solve_with_slices` yet, and its tests are what holds it. What the planner itself has of slices are the sliced
modes of `tables` and their pricing.
"""
