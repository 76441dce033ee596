"""From a request to a job: its settings by what is predicted now, kept while predictions and load hardly change."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from app.dispatch.foresight import Foresight
from bench.papers.jobs.requests import JobRequest
from bench.papers.jobs.world import Done, SimGpu
from solvers.papers.oltunes.tuning_score import best_types, mean_latency_s
from solvers.predict.latency.factorisation_features import ServedConditions
from solvers.types.jobs import Job, JobDemand, JobOption, JobSetting, PowerFacts
from solvers.types.state import Variant

REFRESH_ROWS = 200
"""Rows that are learned before settings are sought again."""
LOAD_STEPS = 10
"""Loads are told apart in steps of a tenth."""

Tuner = Callable[
    [Sequence[JobOption], Mapping[str, PowerFacts], JobDemand], tuple[JobSetting, ...]
]


class Grid(NamedTuple):
    """Where a network may run."""

    sm_percents: tuple[float, ...]
    batches: tuple[int, ...]
    memory_mib: Mapping[int, float]
    """By batch."""


@dataclass(slots=True, kw_only=True)
class Settler:
    """Finds the settings of jobs."""

    tune: Tuner
    foresight: Foresight
    gpus: Sequence[SimGpu]
    tdp_w: Mapping[str, float]
    """By GPU type."""
    grids: Mapping[str, Grid]
    """By network."""
    _options: dict[Variant, tuple[JobOption, ...]] = field(default_factory=dict)
    _settings: dict[tuple[object, ...], tuple[JobSetting, ...]] = field(
        default_factory=dict
    )
    _found_at: int = 0
    """The foresight's revision when they were found."""

    def job(self, request: JobRequest, load: float) -> Job | None:
        """The job, with the settings of now; None where no GPU can run it."""
        if self.foresight.revision - self._found_at >= REFRESH_ROWS:
            self._options.clear()
            self._settings.clear()
            self._found_at = self.foresight.revision
        step = round(load * LOAD_STEPS)
        left_s = round(request.deadline_s - request.submitted_s, 3)
        key = (request.variants, request.inputs, request.weight, left_s, step)
        if key not in self._settings:
            wish = JobDemand(
                weight=request.weight,
                inputs=request.inputs,
                left_s=left_s,
                load=step / LOAD_STEPS,
            )
            options = [
                option
                for variant in request.variants
                for option in self._options_of(variant)
            ]
            self._settings[key] = self.tune(options, self._boards(), wish)
        settings = self._settings[key]
        if not settings:
            return None
        types = best_types(settings)
        return Job(
            name=request.name,
            weight=request.weight,
            inputs=request.inputs,
            queued_s=request.submitted_s,
            deadline_s=request.deadline_s,
            variants=request.variants,
            settings=settings,
            best_types=types,
            mean_latency_s=mean_latency_s(settings, types),
        )

    def learn(self, done: Iterable[Done]) -> None:
        """Let the foresight see what jobs took."""
        types = {gpu.id: gpu.gpu_type for gpu in self.gpus}
        for each in done:
            row = ServedConditions(
                each.setting.network,
                types[each.gpu],
                each.setting.batch,
                each.setting.sm_percent,
            )
            if each.job.inputs >= each.setting.batch:
                self.foresight.observe(row, each.batch_ms)

    def _boards(self) -> dict[str, PowerFacts]:
        return {
            gpu.gpu_type: PowerFacts(gpu.memory_mib, self.tdp_w[gpu.gpu_type])
            for gpu in self.gpus
        }

    def _options_of(self, variant: Variant) -> tuple[JobOption, ...]:
        if variant not in self._options:
            clocks = {gpu.gpu_type: gpu.clock_mhz for gpu in self.gpus}
            found = (
                self._on_type(variant, name, clock)
                for name, clock in sorted(clocks.items())
            )
            self._options[variant] = tuple(
                option for options in found for option in options
            )
        return self._options[variant]

    def _on_type(
        self, variant: Variant, gpu_type: str, clock_mhz: float
    ) -> list[JobOption]:
        grid = self.grids[variant.network]
        rows = [
            ServedConditions(variant.network, gpu_type, float(batch), percent)
            for percent in grid.sm_percents
            for batch in grid.batches
        ]
        times_ms = self.foresight.predict_ms(rows).tolist()
        return [
            JobOption(
                network=variant.network,
                accuracy=variant.accuracy,
                gpu_type=gpu_type,
                sm_percent=row.sm_percent,
                batch=int(row.batch),
                clock_mhz=clock_mhz,
                memory_mib=grid.memory_mib[int(row.batch)],
                iteration_ms=time_ms,
            )
            for row, time_ms in zip(rows, times_ms, strict=True)
        ]
