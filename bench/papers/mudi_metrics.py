"""What a run of Mudi's experiments came to, figure by figure: lateness, completion of training, use of the GPUs."""

from functools import cache
from statistics import fmean

from agents.sim.truth.running import RunningPart
from agents.sim.truth.truth import load_truth
from app.simulate.report.report import violations
from app.simulate.run.results import RunResult, TaskResult
from bench.papers.mudi_scenario import GPU_TYPE, kind_of

_HIGHEST_MHZ = 1410.0
"""An A100's."""


def late_percent(run: RunResult) -> float:
    """Requests in violation, of all services'."""
    return 100.0 * violations(run)


def worst_late_percent(run: RunResult) -> float:
    """The same of the service for which it is highest."""
    return 100.0 * max(
        1.0 - each.attainment for each in run.services if each.attainment is not None
    )


def completion_s(task: TaskResult) -> float:
    """From its submission; of a task that is not done to the run's end."""
    return task.until_s - task.submitted_s


def mean_completion_s(run: RunResult) -> float:
    """Over all tasks."""
    return fmean(map(completion_s, run.tasks))


def mean_waiting_s(run: RunResult) -> float:
    """How long a task did not run, over all tasks."""
    return fmean(task.waited_s for task in run.tasks)


def unfinished_percent(run: RunResult) -> float:
    """Tasks that are not done when the run ends."""
    return 100.0 * fmean(task.finished_s is None for task in run.tasks)


def mean_normalised_completion(run: RunResult) -> float:
    """Over all tasks, so that short ones count like long ones."""
    return fmean(map(normalised_completion, run.tasks))


def normalised_completion(task: TaskResult) -> float:
    """Completion over what the task takes alone on a whole GPU: 1 = nothing else was there."""
    return completion_s(task) / (task.iterations * task.reference_ms / 1000.0)


def trained_percent(run: RunResult) -> float:
    """What training got done, in hours of GPUs that do nothing else, of the hours of all GPUs."""
    trained = sum(task.counted_gpu_hours for task in run.tasks)
    return 100.0 * trained / sum(run.gpu_hours.values())


def used_percent(run: RunResult) -> float:
    """The same of training and requests together."""
    served_ms = sum(each.served * request_ms(each.network) for each in run.services)
    served_percent = 100.0 * served_ms / 3.6e6 / sum(run.gpu_hours.values())
    return trained_percent(run) + served_percent


@cache
def request_ms(network: str) -> float:
    """GPU time of a request: its part of the largest batch, alone on a whole GPU."""
    truth = load_truth()
    batch = truth.max_batch(network)
    alone = RunningPart(
        network=network,
        gpu_type=GPU_TYPE,
        sm_percent=100.0,
        batch=batch,
        clock_mhz=_HIGHEST_MHZ,
    )
    return float(truth.batch_ms(alone)[batch]) / batch


def completion_by_kind(run: RunResult) -> dict[str, float]:
    """Mean completion time by kind."""
    found: dict[str, list[float]] = {}
    for task in run.tasks:
        found.setdefault(kind_of(task.task), []).append(completion_s(task))
    return {kind: fmean(times) for kind, times in found.items()}


def factors(mine: RunResult, theirs: RunResult) -> dict[str, float]:
    """By kind of training, their completion time over ours."""
    ours, rivals = completion_by_kind(mine), completion_by_kind(theirs)
    return {kind: rivals[kind] / ours[kind] for kind in ours}
