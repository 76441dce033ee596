"""What the engines of a scenario's language models run and are asked."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from agents.sim.load.models import ModelService
from agents.sim.queues.engine_queue import TokenLimits
from agents.sim.truth.llm_steps import EngineTruth, MakeEngine, ModelShape
from app.catalogue.language_models import find_architecture
from app.manifests.objects import LengthsSpec, LlmSpec
from app.simulate.scenario.models import PUBLISHED
from app.simulate.scenario.parts import SimulatedService
from app.simulate.scenario.trace_shapes import request_lengths
from solvers.llm.architecture import Architecture
from solvers.llm.lengths import Counts, MeanLengths, length_table

EngineOf: TypeAlias = Callable[[str], MakeEngine]
"""How engines of a network are made, by its name."""


def model_services(
    services: Iterable[SimulatedService], folder: Path, make_engine: EngineOf
) -> dict[str, ModelService]:
    """The language models among the services, by name. `folder`: where the scenario's files are."""
    return {
        each.name: _model(each, folder, make_engine(each.network))
        for each in services
        if each.kind == "llm"
    }


def measured_engine(network: str) -> MakeEngine:
    """Engines of a dense network whose steps are sums of measured kernels."""
    return partial(EngineTruth, shape_of(find_architecture(network)))


def _model(
    service: SimulatedService, folder: Path, make_truth: MakeEngine
) -> ModelService:
    llm = service.llm or LlmSpec()
    prompt, output = _lengths(service, llm, folder)
    return ModelService(
        make_truth=make_truth,
        precision=PUBLISHED,
        limits=TokenLimits(
            ttft_s=(service.slo.ttft_ms or 0.0) / 1000.0,
            itl_s=(service.slo.itl_ms or 0.0) / 1000.0,
        ),
        prompt_tokens=prompt,
        output_tokens=output,
        is_in_order=service.load.requests is not None,
    )


def _lengths(
    service: SimulatedService, llm: LlmSpec, folder: Path
) -> tuple[Counts, Counts]:
    """(K,) tokens of prompts and of answers: what is asked may be other than what the service states, or learns."""
    longest = llm.max_model_len
    if service.load.requests is not None:
        prompt, output = request_lengths(service.load.requests, folder)
        # Engines refuse what exceeds the context: such prompts are as long as they may be, and answers are cut.
        prompt = np.minimum(prompt, longest - 1)
        return prompt, np.minimum(output, longest - prompt)
    true = service.load.lengths or llm.lengths or LengthsSpec()
    means = MeanLengths(prompt=true.prompt, output=true.output, spread=true.spread)
    table = length_table(means, longest=longest)
    return table.prompt, table.output


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
