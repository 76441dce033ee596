"""Language models in a scenario: what their engines run and are asked, and which of them can be simulated."""

from collections.abc import Iterable, Iterator

from agents.sim.load.models import ModelService
from agents.sim.queues.engine_queue import TokenLimits
from agents.sim.truth.llm_steps import EnginePlace, ModelShape, measured_kernels
from agents.sim.truth.truth import TruthError
from app.catalogue.catalogue import CatalogueError
from app.catalogue.language_models import find_architecture
from app.manifests.objects import LlmSpec
from app.simulate.scenario.checks import Complaint
from app.simulate.scenario.parts import ScenarioFields, SimulatedService
from solvers.llm.architecture import Architecture
from solvers.llm.lengths import MeanLengths, length_table

_PUBLISHED = "bf16"
"""What shipped networks' weights are taken for, as the planner takes them."""


def model_services(
    services: Iterable[SimulatedService],
) -> dict[str, ModelService]:
    """The language models among the services, by name."""
    return {each.name: _model(each) for each in services if each.kind == "llm"}


def model_complaints(spec: ScenarioFields) -> Iterator[Complaint]:
    """Language models that nobody knows, or that cannot be simulated on the fleet."""
    for place, service in enumerate(spec.services):
        if service.kind == "llm":
            for field, problem in _complaints(service, spec):
                yield ("services", place, *field), problem


def _complaints(
    service: SimulatedService, spec: ScenarioFields
) -> Iterator[tuple[tuple[str, ...], str]]:
    try:
        network = find_architecture(service.network)
    except CatalogueError as error:
        yield ("network",), str(error)
        return
    if not is_dense(network):
        yield (
            ("network",),
            f"{service.network} has experts or compressed keys, whose kernels do not add up to what servers take: "
            "dense language models alone are simulated",
        )
    choice = service.gpu_types
    for gpu_type in sorted({pool.gpu_type for pool in spec.fleet}):
        if gpu_type in choice.excluded or gpu_type not in (
            choice.allowed or [gpu_type]
        ):
            continue
        try:
            measured_kernels(_place(service, gpu_type))
        except TruthError as error:
            yield ("gpu_types",), f"exclude {gpu_type}: {error}"


def _model(service: SimulatedService) -> ModelService:
    network, llm = find_architecture(service.network), service.llm or LlmSpec()
    lengths = length_table(
        MeanLengths(
            prompt=llm.lengths.prompt,
            output=llm.lengths.output,
            spread=llm.lengths.spread,
        ),
        longest=llm.max_model_len,
    )
    return ModelService(
        shape=shape_of(network),
        precision=_PUBLISHED,
        limits=TokenLimits(
            ttft_s=(service.slo.ttft_ms or 0.0) / 1000.0,
            itl_s=(service.slo.itl_ms or 0.0) / 1000.0,
        ),
        prompt_tokens=lengths.prompt,
        output_tokens=lengths.output,
    )


def is_dense(network: Architecture) -> bool:
    """Whether all of its layers are of the kinds whose kernels were measured."""
    return network.experts is None and network.compressed_keys is None


def shape_of(network: Architecture) -> ModelShape:
    """What kernels of a dense network are looked up by."""
    return ModelShape(
        layers=network.layers,
        hidden=network.hidden,
        heads=network.heads,
        kv_heads=network.kv_heads,
        head_dim=network.head_dim,
        intermediate=network.dense_intermediate,
        vocab=network.vocab,
    )


def _place(service: SimulatedService, gpu_type: str) -> EnginePlace:
    """Any place on that type: precisions and links are the same whatever a replica takes of it."""
    precision = service.llm.dtype if service.llm else None
    return EnginePlace(
        gpu_type=gpu_type, gpus=1, precision=precision or _PUBLISHED, memory_mib=0.0
    )
