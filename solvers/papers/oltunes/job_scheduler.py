"""OLTunes as a scheduler of jobs: what `solvers.types.jobs.JobScheduler` asks for, from the modules that do it."""

from solvers.papers.oltunes.affinity import ratios_of
from solvers.papers.oltunes.schedule import deployment_failed, schedule
from solvers.papers.oltunes.tuning_score import best_types, mean_latency_s, tune

__all__ = [
    "best_types",
    "deployment_failed",
    "mean_latency_s",
    "ratios_of",
    "schedule",
    "tune",
]
