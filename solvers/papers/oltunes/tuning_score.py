"""The tuning score: which GPU type, SM percent, batch and variant suit a job.

As printed (OLTunes, equation 4), to be made as large as possible:

    f = λ / ŷ_latency + (1 − λ) · ŷ_throughput + α · max(0, T − ŷ_latency) + β · EPC

It adds seconds, rates and watts as they are, and rewards a high EPC, though the paper's own examples take the lower
one. Here every term is brought to 0..1 over the settings of one job, and the sign of EPC is turned:

    f = λ · n(1 / ŷ_latency) + (1 − λ) · n(ŷ_throughput) + α · max(0, T − ŷ_latency) / T
        − β · ρ · n(EPC) − γ · (1 − ρ) · loss

λ weight of the job; T time until its deadline; ρ load of the fleet, 0 to 1 ("as the workload increases, so does β");
n(x) = (x − min) / (max − min). ŷ_latency is the time until all inputs are done. With it, inputs per second say the same
once more, so ŷ_throughput is that of a whole GPU with as many such jobs as it may have: what counts where no one waits
for the one job.
`loss`, ours, chooses among variants: how far below the best allowed one its accuracy is, 1 at the floor; it counts as
long as the fleet is not full.

EPC (equation 7) takes 60 W as base for every GPU type, as the paper does. All of (GPU type, SM percent, batch) that are
predicted are scored; memory is what the network needs at that batch. The two GPU types with the best scores are kept
(equation 5; the text says three combinations, the formula two types: all settings of these types are kept).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from solvers.papers.oltunes.parameters import ALPHA, BETA
from solvers.predict.data.samples import Reals
from solvers.types.jobs import MAX_JOBS, JobDemand, JobOption, JobSetting, PowerFacts

GAMMA = 0.5
"""Weight of lost accuracy in an idle fleet; ours."""
BASE_W = 60.0
"""P_base of every GPU type, as in the paper's examples."""
TYPES_KEPT = 2


def tune(
    options: Sequence[JobOption],
    boards: Mapping[str, PowerFacts],
    demand: JobDemand,
    *,
    alpha: float = ALPHA,
    beta: float = BETA,
) -> tuple[JobSetting, ...]:
    """The settings of a job, the best first; equal ones by network, GPU type, SM percent and batch.

    Options whose memory exceeds their GPU type's, and batches beyond what the inputs fill, are left out, but for the
    smallest batch. The order of options changes nothing. O(options · log options).
    """
    usable = _usable(options, boards, demand.inputs)
    if not usable:
        return ()
    found = _predicted(usable, boards, demand.inputs)
    documented = scores(demand, found, alpha=alpha, beta=beta)
    score = documented - GAMMA * (1.0 - demand.load) * _loss(usable)
    # Stable, on options that are sorted: equal scores keep the documented order.
    order = np.argsort(-score, kind="stable")
    return tuple(
        _setting(usable[at], found.latency_s[at], found.per_gpu_rps[at], score[at])
        for at in order.tolist()
    )


class ScoredSettings(NamedTuple):
    """What is predicted of N settings, all (N,)."""

    latency_s: Reals
    per_gpu_rps: Reals
    """Inputs per second of a whole GPU with as many of them as it may have."""
    epc: Reals


def scores(
    demand: JobDemand,
    found: ScoredSettings,
    *,
    alpha: float = ALPHA,
    beta: float = BETA,
) -> Reals:
    """(N,) the documented score but for lost accuracy; N ≥ 1."""
    return np.asarray(
        demand.weight * _normalised(1.0 / found.latency_s)
        + (1.0 - demand.weight) * _normalised(found.per_gpu_rps)
        + alpha * _slack(found.latency_s, demand.left_s)
        - beta * demand.load * _normalised(found.epc)
    )


def latency_of(option: JobOption, inputs: int) -> float:
    """Seconds until all inputs are done, batch after batch."""
    # Rounded up: a last batch that is not full takes as long as a full one.
    return -(-inputs // option.batch) * option.iteration_ms / 1000.0


def best_types(settings: Sequence[JobSetting]) -> tuple[str, ...]:
    """The GPU types of the best scores, at most two, the best first."""
    return first_types(setting.gpu_type for setting in settings)


def first_types(gpu_types: Iterable[str]) -> tuple[str, ...]:
    """The first different GPU types, at most two."""
    return tuple(dict.fromkeys(gpu_types))[:TYPES_KEPT]


def mean_latency_s(settings: Sequence[JobSetting], types: Sequence[str]) -> float:
    """Mean predicted latency on these GPU types, at least one of which has a setting."""
    return float(
        np.mean(
            [setting.latency_s for setting in settings if setting.gpu_type in types]
        )
    )


def _usable(
    options: Sequence[JobOption],
    boards: Mapping[str, PowerFacts],
    inputs: int,
) -> list[JobOption]:
    fitting = [
        one
        for one in options
        if one.gpu_type in boards and one.memory_mib <= boards[one.gpu_type].memory_mib
    ]
    # Where every batch is larger than the job, the smallest one is still how it can run.
    smallest = min((one.batch for one in fitting), default=1)
    # A batch is worth trying up to the first size that holds all inputs.
    largest = min(
        (one.batch for one in fitting if one.batch >= inputs),
        default=max(inputs, smallest),
    )
    return sorted(one for one in fitting if one.batch <= max(largest, smallest))


def _predicted(
    options: Sequence[JobOption],
    boards: Mapping[str, PowerFacts],
    inputs: int,
) -> ScoredSettings:
    latency_s = np.array([latency_of(one, inputs) for one in options])
    percents = np.array([one.sm_percent for one in options])
    memory = [one.memory_mib / boards[one.gpu_type].memory_mib for one in options]
    return ScoredSettings(
        latency_s=latency_s,
        per_gpu_rps=jobs_per_gpu(percents) * inputs / latency_s,
        epc=power_consumption_at_base(
            tdp_w=[boards[one.gpu_type].tdp_w for one in options],
            sm_percent=percents,
            memory_share=memory,
            latency_s=latency_s,
        ),
    )


def jobs_per_gpu(sm_percents: Reals) -> Reals:
    """(N,) as many jobs of these SM percents as share a GPU at most: section 3.4.2 limits a batch to four."""
    return np.minimum(MAX_JOBS, 100.0 / sm_percents)


def _normalised(values: Reals) -> Reals:
    low = float(values.min())
    high = float(values.max())
    # Alike for all means that the term chooses nothing, whatever its value.
    return (values - low) / (high - low) if high > low else np.zeros(len(values))


def _slack(latency_s: Reals, left_s: float) -> Reals:
    """Share of the time until the deadline that is left when the job is done; alike for all where there is none."""
    if not np.isfinite(left_s) or left_s <= 0.0:
        return np.zeros(len(latency_s))
    return np.maximum(0.0, left_s - latency_s) / left_s


def _loss(options: Sequence[JobOption]) -> Reals:
    accuracy = np.array([one.accuracy for one in options])
    # Without variants nothing is lost; normalised alone, all of them would count as the worst.
    if accuracy.max() == accuracy.min():
        return np.zeros(len(accuracy))
    return 1.0 - _normalised(accuracy)


def _setting(
    option: JobOption,
    latency_s: float,
    per_gpu_rps: float,
    score: float,
) -> JobSetting:
    return JobSetting(
        network=option.network,
        gpu_type=option.gpu_type,
        sm_percent=option.sm_percent,
        batch=option.batch,
        clock_mhz=option.clock_mhz,
        memory_mib=option.memory_mib,
        latency_s=float(latency_s),
        gpu_throughput_rps=float(per_gpu_rps),
        score=float(score),
    )


def power_consumption_at_base(
    *,
    tdp_w: npt.ArrayLike,
    sm_percent: npt.ArrayLike,
    memory_share: npt.ArrayLike,
    latency_s: npt.ArrayLike,
) -> Reals:
    """EPC with the paper's base for every GPU."""
    return estimated_power_consumption(
        base_w=BASE_W,
        # A GPU's TDP may be below the paper's base of 60 W: its variable part is then 0.
        tdp_w=np.maximum(BASE_W, tdp_w),
        sm_percent=sm_percent,
        memory_share=memory_share,
        latency_s=latency_s,
    )


def estimated_power_consumption(
    *,
    base_w: npt.ArrayLike,
    tdp_w: npt.ArrayLike,
    sm_percent: npt.ArrayLike,
    memory_share: npt.ArrayLike,
    latency_s: npt.ArrayLike,
) -> Reals:
    """EPC as printed, for arrays that go together in shape.

    `memory_share`: memory used / memory of the GPU, 0 to 1. Raises ValueError where a GPU's TDP is below its base.
    """
    base = np.asarray(base_w, dtype=np.float64)
    tdp = np.asarray(tdp_w, dtype=np.float64)
    # The variable part would be negative, and more use of a GPU would count as less power.
    if np.any(tdp < base):
        raise ValueError(f"the base power {base} W must not be above the TDP {tdp} W")
    utilisation = np.asarray(sm_percent) / 100.0 * np.asarray(memory_share)
    return np.asarray(base + (tdp - base) * utilisation * np.asarray(latency_s))
