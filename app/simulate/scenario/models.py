"""Language models in a scenario: which of them can be simulated, and on which of the fleet's GPU types."""

from collections.abc import Iterator

from agents.sim.truth.llm_steps import EnginePlace, measured_kernels
from agents.sim.truth.truth import TruthError
from app.catalogue.catalogue import CatalogueError
from app.catalogue.language_models import find_architecture, find_hardware
from app.simulate.scenario.checks import Complaint
from app.simulate.scenario.parts import ScenarioFields, SimulatedService
from solvers.llm.architecture import Architecture

PUBLISHED = "bf16"
"""What shipped networks' weights are taken for, as the planner takes them."""


def model_complaints(spec: ScenarioFields) -> Iterator[Complaint]:
    """Language models that are unknown, or that cannot be simulated on the fleet."""
    for place, service in enumerate(spec.services):
        if service.kind == "llm":
            for field, problem in _complaints(service, spec):
                yield ("services", place, *field), problem
            continue
        for name in ("lengths", "requests"):
            if getattr(service.load, name) is not None:
                yield (
                    ("services", place, "load", name),
                    "is for services of kind llm: leave it out",
                )


def _complaints(
    service: SimulatedService, spec: ScenarioFields
) -> Iterator[tuple[tuple[str, ...], str]]:
    try:
        network = find_architecture(service.network)
    except CatalogueError as error:
        yield ("network",), str(error)
        return
    is_planned = spec.truth == "planned"
    if not (is_planned or is_dense(network)):
        yield (
            ("network",),
            f"{service.network} has experts or compressed keys, whose kernels do not add up to what servers take: "
            "state truth: planned",
        )
    choice = service.gpu_types
    for gpu_type in sorted({pool.gpu_type for pool in spec.fleet}):
        if gpu_type in choice.excluded or gpu_type not in (
            choice.allowed or [gpu_type]
        ):
            continue
        problem = _unknown(gpu_type) if is_planned else _unmeasured(service, gpu_type)
        if problem:
            yield ("gpu_types",), f"exclude {gpu_type}: {problem}"


def _unknown(gpu_type: str) -> str:
    """Why no engine can be planned there; empty: one can."""
    if find_hardware(gpu_type) is None:
        return "nothing is known of it for language models"
    return ""


def _unmeasured(service: SimulatedService, gpu_type: str) -> str:
    """Why it is unknown how long an engine's kernels take there; empty: they were measured."""
    try:
        measured_kernels(_place(service, gpu_type))
    except TruthError as error:
        return str(error)
    return ""


def is_dense(network: Architecture) -> bool:
    """Whether all of its layers are of the kinds whose kernels were measured."""
    return network.experts is None and network.compressed_keys is None


def _place(service: SimulatedService, gpu_type: str) -> EnginePlace:
    """Any place on that type: precisions and links are the same whatever a replica takes of it."""
    precision = service.llm.dtype if service.llm else None
    return EnginePlace(
        gpu_type=gpu_type, gpus=1, precision=precision or PUBLISHED, memory_mib=0.0
    )
