"""Language models in scenarios: which can be simulated, and what their engines are asked."""

from typing import Any

import numpy as np
import pytest

from app.simulate.run.model_services import model_services
from app.simulate.scenario.reading import scenario_of
from tests.app.runs import MODEL, POOL, a_document, a_scenario

H100 = {**POOL, "gpu_type": "H100", "gpus_per_node": 2}


def complaints(service: dict[str, Any], pool: dict[str, Any]) -> dict[str, str]:
    """What is wrong with a scenario of one service on one pool, by the path of its field."""
    document = a_document(services=[service], fleet=[pool])
    found = scenario_of(document, lambda _scenario: iter(()))
    assert isinstance(found, tuple)
    return {".".join(map(str, path)): problem for path, problem in found}


@pytest.mark.parametrize(
    ("service", "pool", "field", "problem"),
    [
        (
            {**MODEL, "network": "resnet50"},
            H100,
            "spec.services.0.network",
            "the catalogue has no language model 'resnet50'",
        ),
        (
            {**MODEL, "network": "Kimi-K2.5"},
            H100,
            "spec.services.0.network",
            "dense language models alone are simulated",
        ),
        (
            MODEL,
            POOL,
            "spec.services.0.gpu_types",
            "exclude V100-32GB: no kernels of language models were measured on V100-32GB",
        ),
        (
            {**MODEL, "llm": {"dtype": "int4"}},
            H100,
            "spec.services.0.gpu_types",
            "exclude H100: weights in int4 were not measured on H100; bf16 and fp8 were",
        ),
    ],
)
def test_what_cannot_be_simulated_is_said_with_its_field(
    service: dict[str, Any], pool: dict[str, Any], field: str, problem: str
) -> None:
    assert problem in complaints(service, pool)[field]


def test_types_that_a_model_leaves_out_need_no_kernels() -> None:
    service = {**MODEL, "gpu_types": {"excluded": ["V100-32GB"]}}
    document = a_document(services=[service], fleet=[POOL, {**H100, "name": "h100"}])
    assert not isinstance(scenario_of(document, lambda _scenario: iter(())), tuple)


def test_engines_are_asked_for_what_the_manifest_states() -> None:
    service = {
        **MODEL,
        "llm": {
            "lengths": {"prompt": 500, "output": 100, "spread": 0.0},
            "max_model_len": 1024,
        },
    }
    scenario = a_scenario(services=[service], fleet=[H100])
    (found,) = model_services(scenario.spec.services).values()
    assert (found.limits.ttft_s, found.limits.itl_s) == (2.0, 0.1)
    assert np.unique(found.prompt_tokens).tolist() == [500]
    assert np.unique(found.output_tokens).tolist() == [100]
    assert (found.shape.layers, found.shape.kv_heads) == (32, 8)
