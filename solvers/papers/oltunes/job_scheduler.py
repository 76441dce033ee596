"""OLTunes as a scheduler of jobs: what `solvers.types.jobs.JobScheduler` asks for, from the modules that do it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from solvers.papers.oltunes import affinity, least_cost, schedule, tuning_score
from solvers.papers.oltunes.parameters import OltunesParameters
from solvers.types.jobs import (
    DispatchRules,
    DispatchState,
    JobDemand,
    JobGpu,
    JobOption,
    JobScheduler,
    JobSetting,
    PowerFacts,
    Round,
)
from solvers.types.parameters import PolicyParameters, parameters_as


def scheduler(parameters: PolicyParameters) -> JobScheduler:
    """The scheduler with these parameters."""
    return OltunesScheduler(parameters_as(parameters, OltunesParameters))


@dataclass(frozen=True, slots=True)
class OltunesScheduler:
    """The scheduler as printed, or at least cost, by the parameter `dispatch`."""

    parameters: OltunesParameters

    deployment_failed = staticmethod(schedule.deployment_failed)
    best_types = staticmethod(tuning_score.best_types)
    mean_latency_s = staticmethod(tuning_score.mean_latency_s)
    ratios_of = staticmethod(affinity.ratios_of)

    def schedule(
        self,
        state: DispatchState,
        gpus: Sequence[JobGpu],
        now_s: float,
        rules: DispatchRules,
    ) -> Round:
        """One round, as printed or at least cost."""
        if self.parameters.dispatch == "as printed":
            return schedule.schedule(state, gpus, now_s, rules)
        # It holds no job for a window and makes no batch, so that their limits stay as they are.
        batches, queues = least_cost.schedule(
            state.queues,
            gpus,
            now_s,
            rules.prices_usd_per_hour,
            rules.patience_s,
            max_jobs=rules.max_jobs,
        )
        return Round(batches=batches, state=replace(state, queues=queues))

    def tune(
        self,
        options: Sequence[JobOption],
        boards: Mapping[str, PowerFacts],
        demand: JobDemand,
    ) -> tuple[JobSetting, ...]:
        """The settings of a job by the score with these weights."""
        return tuning_score.tune(
            options,
            boards,
            demand,
            alpha=self.parameters.alpha,
            beta=self.parameters.beta,
        )
