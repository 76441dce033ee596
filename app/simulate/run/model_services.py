"""What the engines of a scenario's language models run and are asked."""

from collections.abc import Iterable

from agents.sim.load.models import ModelService
from agents.sim.queues.engine_queue import TokenLimits
from agents.sim.truth.llm_steps import ModelShape
from app.catalogue.language_models import find_architecture
from app.manifests.objects import LengthsSpec, LlmSpec
from app.simulate.scenario.models import PUBLISHED
from app.simulate.scenario.parts import SimulatedService
from solvers.llm.architecture import Architecture
from solvers.llm.lengths import MeanLengths, length_table


def model_services(
    services: Iterable[SimulatedService],
) -> dict[str, ModelService]:
    """The language models among the services, by name."""
    return {each.name: _model(each) for each in services if each.kind == "llm"}


def _model(service: SimulatedService) -> ModelService:
    network, llm = find_architecture(service.network), service.llm or LlmSpec()
    # What is asked may be other than what the service states, or learns.
    true = service.load.lengths or llm.lengths or LengthsSpec()
    lengths = length_table(
        MeanLengths(prompt=true.prompt, output=true.output, spread=true.spread),
        longest=llm.max_model_len,
    )
    return ModelService(
        shape=shape_of(network),
        precision=PUBLISHED,
        limits=TokenLimits(
            ttft_s=(service.slo.ttft_ms or 0.0) / 1000.0,
            itl_s=(service.slo.itl_ms or 0.0) / 1000.0,
        ),
        prompt_tokens=lengths.prompt,
        output_tokens=lengths.output,
    )


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
