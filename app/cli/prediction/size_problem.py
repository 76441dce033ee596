"""What `plimsoll size` found, as a Problem file: one service, and all ways to run it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from app.catalogue.catalogue import load_gpu_types
from app.catalogue.language_models import load_hardware
from app.cli.common.errors import CliError
from app.cli.common.files import summary_stream, write_text
from solvers.types.documents.problem_json import problem_to_json
from solvers.types.llm import LengthPairs, LlmDemand, LlmPoints, StepLaw
from solvers.types.problem import Problem
from solvers.types.state import GpuType

if TYPE_CHECKING:
    from solvers.llm.sizing import Sized, SizeRequest

_SERVICE = "service"
_LENGTHS = "stated"
_PER_1000 = 1000.0
_MAX_RPS = 1e6


class ProblemTarget(NamedTuple):
    """What a Problem is written for, and where to."""

    rate_rps: float
    path: Path


def problem_target(text: str) -> ProblemTarget:
    """What --problem says. Raises CliError."""
    rate, _, path = text.partition("=")
    try:
        rate_rps = float(rate)
    except ValueError:
        rate_rps = 0.0
    # Written so that NaN is refused, too.
    if not (path and 0.0 < rate_rps <= _MAX_RPS):
        raise CliError(f"--problem {text}: must be RPS=FILE, such as 20=problem.json")
    return ProblemTarget(rate_rps, Path(path))


def write_problem(
    target: ProblemTarget,
    network: str,
    request: "SizeRequest",
    sizes: "Sequence[Sized]",
) -> None:
    """The Problem of one service. Raises CliError where nothing can serve it."""
    priced = {each.name for each in load_gpu_types()}
    if not any(each.capacity_rps > 0.0 and each.gpu_type in priced for each in sizes):
        raise CliError(
            "no GPU type that has a price can serve it",
            hint="the same command without --problem says what each carries, or why it carries nothing",
        )
    service = SizedService(
        network=network, request=request, rate_rps=target.rate_rps, sizes=tuple(sizes)
    )
    text = problem_to_json(service.problem()) + "\n"
    write_text(target.path, text, stream=summary_stream(target.path))


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedService:
    """One service with all ways to run it."""

    network: str
    request: "SizeRequest"
    rate_rps: float
    sizes: "tuple[Sized, ...]"

    def problem(self) -> Problem:
        """As many GPUs as wanted of each type that has a price, with what audits look at."""
        # Here: it takes SciPy, and --help does not.
        from solvers.laws.capacity_law import make_capacity_law

        types = [each for each in load_gpu_types() if self._ways(each.name)]
        return Problem(
            max_replicas_per_gpu=1,
            # Of no use here; a Problem has one.
            capacity_law=make_capacity_law([self.request.slo.percentile], [1]),
            gpu_types=tuple(
                replace(each, gpus_per_node=load_hardware()[each.name].gpus_per_node)
                for each in types
            ),
            services=(),
            points=(),
            llm_services=(self._demand(),),
            llm_points=tuple(map(self._points, types)),
            step_laws=tuple(
                self._law(one) for each in types for one in self._ways(each.name)
            ),
            length_tables=(self._lengths(),),
        )

    def _ways(self, gpu_type: str) -> "list[Sized]":
        """The ways to run it on a GPU type."""
        own = (each for each in self.sizes if each.gpu_type == gpu_type)
        return [each for each in own if each.capacity_rps > 0.0]

    def _points(self, gpu_type: GpuType) -> LlmPoints:
        from app.catalogue.llm_rows import provenance_of, row_of, usual_start_s

        ways = self._ways(gpu_type.name)
        start_s = usual_start_s(self.request.network, self.request.precision)
        return LlmPoints(
            service=_SERVICE,
            gpu_type=gpu_type.name,
            network=self.network,
            provenance=provenance_of(gpu_type.name, ways),
            rows=tuple(row_of(each, gpu_type, start_s) for each in ways),
        )

    def _demand(self) -> LlmDemand:
        return LlmDemand(
            name=_SERVICE,
            network=self.network,
            slo=self.request.slo,
            arrival_rate_rps=self.rate_rps,
            lengths=_LENGTHS,
            arrival_cv=self.request.arrival_cv,
        )

    def _lengths(self) -> LengthPairs:
        lengths = self.request.lengths
        return LengthPairs(
            name=_LENGTHS,
            input_tokens=tuple(map(int, lengths.prompt)),
            output_tokens=tuple(map(int, lengths.output)),
        )

    def _law(self, sized: "Sized") -> StepLaw:
        # Laws take a second to load, which `plimsoll --help` has no use for.
        from solvers.llm.step_law import WAY_STEPS

        steps = sized.steps
        return StepLaw(
            network=self.network,
            gpu_type=sized.gpu_type,
            tp=sized.tp,
            tokens=tuple(map(float, steps.tokens)),
            step_ms=tuple(map(float, steps.step_ms)),
            per_sequence_ms=steps.sequence_ms,
            per_cached_token_ms=steps.cached_token_ms,
            per_attended_pair_ms=steps.pair_ms,
            prompt_step_ms=steps.prompt_step_ms,
            request_ms=steps.request_ms,
            per_1000_prompt_tokens_ms=_PER_1000 * steps.prompt_token_ms,
            request_steps=WAY_STEPS,
            kv_tokens=sized.kv_tokens,
        )
