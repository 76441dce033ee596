"""Settings that are not tuned: what a well-informed owner would ask for. The baselines' settings.

Per GPU type one: the most accurate variant, the largest batch that the inputs fill, and the least SM percent that gives
ENOUGH of the speed that the whole GPU gives at this batch (what Orion calls the SMs that a job needs). Neither paper
says what its users ask for; less would slow the job, more would keep others out.
"""

from collections.abc import Iterable, Mapping, Sequence

from solvers.papers.oltunes.tuning_score import tune
from solvers.types.jobs import JobDemand, JobOption, JobSetting, PowerFacts

ENOUGH = 0.9


def as_submitted(
    options: Sequence[JobOption], boards: Mapping[str, PowerFacts], wish: JobDemand
) -> tuple[JobSetting, ...]:
    """One setting per GPU type that can run the job, by GPU type."""
    best = max((one.accuracy for one in options), default=0.0)
    settings = tune([one for one in options if one.accuracy == best], boards, wish)
    by_type: dict[str, list[JobSetting]] = {}
    for setting in settings:
        by_type.setdefault(setting.gpu_type, []).append(setting)
    return tuple(_needed(found) for _, found in sorted(by_type.items()))


def _needed(settings: Iterable[JobSetting]) -> JobSetting:
    found = list(settings)
    batch = max(setting.batch for setting in found)
    largest = sorted(
        (setting for setting in found if setting.batch == batch),
        key=lambda one: (one.sm_percent, one.network),
    )
    allowed_s = min(setting.latency_s for setting in largest) / ENOUGH
    return next(setting for setting in largest if setting.latency_s <= allowed_s)
