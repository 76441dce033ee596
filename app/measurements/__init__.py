"""Measurements from files: our own CSV, and what other tools' benchmarks write.

Everything ends as `solvers.predict.samples.Samples` or `Queries`; docs/predict/import.md says how. Whatever cannot be
used is refused with `app.errors.InvalidRequest`, which names file, line and column.
"""
