"""Language models in scenarios: which can be simulated, and what their engines are asked."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agents.sim.load.models import ModelService, SimulatedModels
from agents.sim.truth.llm_steps import EnginePlace
from app.simulate.run.model_services import measured_engine, model_services
from app.simulate.scenario.reading import scenario_of
from app.simulate.scenario.scenario import SimulationScenario
from app.simulate.scenario.unusable_files import unusable_files
from tests.app.runs import MODEL, POOL, a_document, a_scenario

H100 = {**POOL, "gpu_type": "H100", "gpus_per_node": 2}


def services_of(
    scenario: SimulationScenario, folder: Path = Path()
) -> dict[str, ModelService]:
    return model_services(scenario.spec.services, folder, measured_engine)


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
            "state truth: planned",
        ),
        (MODEL, POOL, "spec.services.0.gpu_types", "exclude V100-32GB: no kernels of"),
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


def test_engines_are_asked_for_what_the_manifest_states() -> None:
    service = {
        **MODEL,
        "llm": {
            "lengths": {"prompt": 500, "output": 100, "spread": 0.0},
            "max_model_len": 1024,
        },
    }
    scenario = a_scenario(services=[service], fleet=[H100])
    (found,) = services_of(scenario).values()
    assert (found.limits.ttft_s, found.limits.itl_s) == (2.0, 0.1)
    assert np.unique(found.prompt_tokens).tolist() == [500]
    assert np.unique(found.output_tokens).tolist() == [100]
    place = EnginePlace(
        gpu_type="H100", gpus=1, precision="bf16", memory_mib=0.9 * 81_920
    )
    assert found.make_truth(place).kv_blocks > 10_000


REQUESTS = {"file": "requests.csv", "prompt": "context_tokens", "output": "generated"}


def test_requests_of_a_file_come_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "requests.csv").write_text(
        "t_s,context_tokens,generated\n0.1,700,20\n0.2,900000,40\n0.4,50,0\n"
    )
    service = {
        **MODEL,
        "llm": {"max_model_len": 2048},
        "load": {"rate_rps": 1, "requests": REQUESTS},
    }
    scenario = a_scenario(services=[service], fleet=[H100])
    (found,) = services_of(scenario, tmp_path).values()
    # What exceeds the context is as long as it may be, and an answer has a token at least.
    assert found.prompt_tokens.tolist() == [700, 2047, 50]
    assert found.output_tokens.tolist() == [20, 1, 1]
    models = SimulatedModels({"chat": found}, seed=1)
    drawn = [models._lengths("chat", count)[0].tolist() for count in (2, 3)]
    assert drawn == [[700, 2047], [50, 700, 2047]]


def test_a_file_without_the_columns_is_named_with_those_that_it_has(
    tmp_path: Path,
) -> None:
    (tmp_path / "requests.csv").write_text("t_s,context_tokens\n0.1,700\n")
    load = {"rate_rps": 1, "requests": REQUESTS}
    scenario = a_scenario(services=[{**MODEL, "load": load}], fleet=[H100])
    ((path, problem),) = unusable_files(scenario, tmp_path)
    assert path == ("services", 0, "load", "requests")
    assert "has no column generated; it has t_s, context_tokens" in problem


@pytest.mark.parametrize(
    "text",
    [
        '{"timestamp": 0, "input_length": 700, "output_length": 20, "hash_ids": [0]}\n'
        '{"timestamp": 900, "input_length": 50, "output_length": 0, "hash_ids": []}\n',
        "Timestamp,Session ID,Model,Request tokens,Response tokens\n5,a,GPT-4,700,20\n6,b,GPT-4,50,0\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,700,20\n2024-05-10 00:00:01,50,0\n",
    ],
    ids=["Mooncake", "BurstGPT", "Azure"],
)
def test_published_traces_need_no_names_of_their_columns(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "trace").write_text(text)
    load = {"rate_rps": 1, "requests": {"file": "trace"}}
    scenario = a_scenario(services=[{**MODEL, "load": load}], fleet=[H100])
    (found,) = services_of(scenario, tmp_path).values()
    assert (found.prompt_tokens.tolist(), found.output_tokens.tolist()) == (
        [700, 50],
        [20, 1],
    )
