"""OLTunes as a scheduler of jobs: what `solvers.types.jobs.JobScheduler` asks for, from the modules that do it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from solvers.papers.oltunes import affinity, least_cost, schedule, tuning_score
from solvers.papers.oltunes.parameters import OltunesParameters
from solvers.types.jobs import (
    DispatchRules,
    DispatchState,
    JobBatch,
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
    """The scheduler with what its operator has set."""
    return OltunesScheduler(parameters_as(parameters, OltunesParameters))


@dataclass(frozen=True, slots=True)
class OltunesScheduler:
    """The scheduler as printed, or at least cost, by the parameter `dispatch`."""

    parameters: OltunesParameters

    def schedule(
        self,
        state: DispatchState,
        gpus: Sequence[JobGpu],
        now_s: float,
        rules: DispatchRules,
    ) -> Round:
        """One round. The order of GPUs and of jobs changes nothing."""
        if self.parameters.dispatch == "as printed":
            return schedule.schedule(state, gpus, now_s, rules)
        # It holds nobody for a window and makes no batch, so that their limits stay as they are.
        batches, queues = least_cost.schedule(
            state.queues,
            gpus,
            now_s,
            rules.prices_usd_per_hour,
            rules.patience_s,
            max_jobs=rules.max_jobs,
        )
        return Round(batches=batches, state=replace(state, queues=queues))

    def deployment_failed(self, state: DispatchState, batch: JobBatch) -> DispatchState:
        """The state, before or after the batch's round, once the batch could not be deployed."""
        return schedule.deployment_failed(state, batch)

    def tune(
        self,
        options: Sequence[JobOption],
        boards: Mapping[str, PowerFacts],
        demand: JobDemand,
    ) -> tuple[JobSetting, ...]:
        """The settings of a job, the best first; the order of options changes nothing."""
        weights = {"alpha": self.parameters.alpha, "beta": self.parameters.beta}
        return tuning_score.tune(options, boards, demand, **weights)

    def best_types(self, settings: Sequence[JobSetting]) -> tuple[str, ...]:
        """The GPU types that suit a job with these settings, the best first."""
        return tuning_score.best_types(settings)

    def mean_latency_s(
        self, settings: Sequence[JobSetting], types: Sequence[str]
    ) -> float:
        """By which its urgency is judged, on these GPU types, at least one of which has a setting."""
        return tuning_score.mean_latency_s(settings, types)

    def ratios_of(
        self, measured: Mapping[str, float], sensitivities: Mapping[str, float]
    ) -> Mapping[str, float]:
        """Compute to memory by network: the measured ones, and all others from their sensitivity."""
        return affinity.ratios_of(measured, sensitivities)
