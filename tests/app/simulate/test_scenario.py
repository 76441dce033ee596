"""Scenarios are read strictly: what cannot be meant is refused, in words that name the field and the remedy."""

from typing import Any

import pytest
from pydantic import ValidationError

from app.simulate.scenario import Scenario, loop_of
from tests.app.simulate.runs import POOL, SERVICE, a_document, a_scenario


def refusal(**spec: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        Scenario.model_validate(a_document(**spec))
    return " / ".join(error["msg"] for error in caught.value.errors())


def with_load(**load: Any) -> dict[str, Any]:
    return {"services": [{**SERVICE, "load": load}]}


def with_fault(**fault: Any) -> dict[str, Any]:
    return {"faults": [{"node": "v100-1", "start_s": 1, **fault}]}


def test_a_policy_may_be_a_name_or_say_in_what_it_differs() -> None:
    scenario = a_scenario(
        policies=["hetsev", {"policy": "joint", "name": "eager", "settings": {"headroom": 1.5, "min_dwell_s": 0}}]
    )
    plain, eager = scenario.spec.policies
    assert (plain.label, eager.label) == ("hetsev", "eager")
    assert loop_of(scenario.spec, plain).headroom == 1.1
    assert (loop_of(scenario.spec, eager).headroom, loop_of(scenario.spec, eager).policy) == (1.5, "joint")
    assert loop_of(scenario.spec, eager).period_s == 10.0


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"policies": ["hetsevv"]}, "no policy is called 'hetsevv'; there are"),
        ({"policies": ["joint", "joint"]}, "'joint' is there twice among the policies; give one of them a name"),
        (
            {"policies": [{"policy": "joint", "settings": {"hedroom": 2}}]},
            "settings of policy 'joint': hedroom: Extra inputs are not permitted",
        ),
        ({"services": [SERVICE, SERVICE]}, "'resnet50' is there twice among the services"),
        ({"fleet": [POOL, POOL]}, "'v100' is there twice among the pools"),
        ({"duration_s": 100}, "duration_s less warm_up_s is 100 s, which must be a multiple of step_s 60"),
        ({"warm_up_s": 120}, "duration_s less warm_up_s is 0 s"),
        ({"seeds": list(range(1000)), "policies": ["joint", "hetsev"]}, "2000 runs; at most 1000"),
        ({"seeds": [1, 2, 1]}, "1 is there twice among the seeds"),
        ({"agent_period_s": 10}, "loop.window_s must be at least the 10 s of agent_period_s"),
        (
            {"policies": [{"policy": "joint", "settings": {"window_s": 1}}]},
            "settings of policy 'joint': window_s must be at least the 5 s of agent_period_s",
        ),
        (
            {"policies": [{"policy": "joint", "settings": {"governor": "none"}}]},
            "settings of policy 'joint': governor: must be one of",
        ),
        ({"policies": [{"policy": "joint", "settings": {"policy": "hetsev"}}]}, "cannot make another policy of it"),
        ({"loop": {"policy": "igniter"}}, "loop.policy is not for here"),
        (
            {"policies": [{"policy": "joint", "clairvoyant": True}], **with_load(clients=3)},
            "nobody knows what the clients of resnet50 will do",
        ),
        (with_fault(kind="silent", end_s=1), "it ends at 1 s, but begins at 1 s only"),
        (with_fault(kind="straggler"), "needs a factor that is not 1; this is straggler"),
        (with_fault(kind="gpu_lost", factor=2), "needs a factor that is not 1; this is gpu_lost"),
        (with_fault(kind="stale"), "needs delay_s; this is stale"),
        (with_fault(kind="silent", delay_s=2), "needs delay_s; this is silent"),
        (with_fault(kind="node_lost", gpu=0), "node_lost is of a whole node; leave gpu out"),
        ({"faults": [{"kind": "silent", "node": "v100-3", "start_s": 1}]}, "there are v100-1, v100-2"),
        ({"faults": [{"kind": "gpu_lost", "node": "v100-1", "gpu": 1, "start_s": 1}]}, "which has 1"),
        (with_load(), "give one of rate_rps, trace, levels, clients, not none of them"),
        (with_load(rate_rps=1, clients=3), "not rate_rps and clients"),
        (with_load(clients=3, day={"amplitude": 1}), "day shapes a rate_rps; with clients it means nothing"),
        (with_load(levels={"rates_rps": [1, 2], "mean_stays_s": [1, 2, 3]}), "2 rates_rps need as many"),
        (with_load(rate_rps=-1), "greater than or equal to 0"),
        (with_load(clients=[]), "at least 1 item"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(spec: dict[str, Any], words: str) -> None:
    assert words in refusal(**spec)


def test_unknown_fields_are_refused() -> None:
    assert "Extra inputs are not permitted" in refusal(gpus=3)
