"""Scenarios are read strictly: what cannot be meant is refused, in words that name the field and the remedy."""

from typing import Any

import pytest
from pydantic import ValidationError

from app.base.yaml_lines import dotted
from app.simulate.scenario.scenario import SimulationScenario, loop_of
from tests.app.runs import MODEL, POOL, SERVICE, a_document, a_scenario

WORK = {"network": "resnet18-training", "batch": 128}
TASK = {"name": "t-1", "kind": "training", "iterations": 5, **WORK}
LIST = {"name": "jobs", "file": "jobs.csv", "kind": "training", "networks": [WORK]}


def refusal(**spec: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        SimulationScenario.model_validate(a_document(**spec))
    return " / ".join(
        f"{dotted(error['loc'])}: {error['msg']}" for error in caught.value.errors()
    )


GROUP = {"name": "low", "policy": "hetsev", "labels": {"tier": "low"}}


def with_policy(**fields: Any) -> dict[str, Any]:
    return {"policies": [{"policy": "joint", **fields}]}


def with_settings(**settings: Any) -> dict[str, Any]:
    return with_policy(settings=settings)


def with_service(**fields: Any) -> dict[str, Any]:
    return {"services": [{**SERVICE, **fields}]}


def with_group(**fields: Any) -> dict[str, Any]:
    """A group of the loop."""
    group = {"name": "web", "policy": "joint", "projects": ["default"], **fields}
    return {"loop": {"groups": [group]}}


def with_load(**load: Any) -> dict[str, Any]:
    return with_service(load=load)


def with_fault(**fault: Any) -> dict[str, Any]:
    return {"faults": [{"node": "v100-1", "start_s": 1, **fault}]}


def test_a_policy_may_be_a_name_or_say_in_what_it_differs() -> None:
    scenario = a_scenario(
        policies=[
            "hetsev",
            {
                "policy": "joint",
                "name": "eager",
                "settings": {"fit_quantile": 0.5, "min_dwell_s": 0},
            },
        ]
    )
    plain, eager = scenario.spec.policies
    assert (plain.label, eager.label) == ("hetsev", "eager")
    assert loop_of(scenario.spec, plain).fit_quantile == 0.9
    assert (
        loop_of(scenario.spec, eager).fit_quantile,
        loop_of(scenario.spec, eager).policy,
    ) == (0.5, "joint")
    assert loop_of(scenario.spec, eager).period_s == 10.0


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"policies": ["hetsevv"]}, "policies[0].policy: no policy is called"),
        ({"policies": ["joint", "joint"]}, "policies[1]: 'joint' is there twice"),
        (
            with_settings(fit_quantil=0.5),
            "fit_quantil: no setting is called 'fit_quantil'; did you",
        ),
        ({"services": [SERVICE, SERVICE]}, "services[1].name: 'resnet50' is"),
        ({"fleet": [POOL, POOL]}, "fleet[1].name: 'v100' is there twice"),
        ({"duration_s": 100}, "duration_s: less warm_up_s it is 100 s, which"),
        ({"warm_up_s": 120}, "warm_up_s: 120 s are the whole run of 120 s, so"),
        ({"warm_up_s": 300}, "warm_up_s: 300 s are longer than the run of 120 s"),
        ({"step_s": 12}, "step_s: must be a multiple of agent_period_s, 5 s"),
        ({"step_s": 30, "warm_up_s": 60, "agent_period_s": 4}, "agent_period_s, 4 s"),
        ({"step_s": 1, "warm_up_s": 1, "duration_s": 2}, "warm_up_s: must be a"),
        (
            {"seeds": list(range(1000)), "policies": ["joint", "hetsev"]},
            "spec.seeds: times the policies they are 2000 runs; at most 1000",
        ),
        ({"seeds": [1, 2, 1]}, "seeds[2]: 1 is there twice"),
        ({"agent_period_s": 10}, "loop.window_s: must be at least the 10 s of"),
        (with_settings(window_s=1), "policies[0].settings.window_s: must be at least"),
        (with_settings(governor="none"), "settings.governor: must be one of"),
        (with_settings(policy="hetsev"), "settings.policy: settings cannot make"),
        (with_policy(name="two\nlines"), "policies[0].name: Value error, must be"),
        (with_policy(name=" "), "policies[0].name: Value error, must be printable"),
        ({"loop": {"mode": "advise"}}, "loop.mode: must be auto, not advise"),
        ({"loop": {"paused": True}}, "loop.paused: must be false: no one here"),
        (with_settings(mode="off", paused=True), "mode: must be auto, not"),
        (with_service(mode="approve"), "services[0].mode: must be auto, not approve"),
        (
            {"services": [{**MODEL, "load": {"clients": 4}}]},
            "clients: are for services",
        ),
        (
            with_service(gpu_types={"allowed": ["A100-40GB", "T4"]}),
            "spec.services[0].gpu_types.allowed: leaves resnet50 no GPU; the fleet has",
        ),
        (with_service(gpu_types={"excluded": ["T4", "V100-32GB"]}), "leaves resnet50"),
        ({"loop": {"policy": "igniter"}}, "loop.policy: is not for here"),
        (with_group(policy="hetsevv"), "loop.groups[0].policy: no policy is called"),
        (
            {"loop": {"period_s": 1, "parameters": {"hetsev": {"queues": 0}}}},
            "spec.loop.parameters.hetsev.queues: must be a whole number from 1 to 64",
        ),
        (with_group(mode="approve"), "loop.groups[0].mode: must be auto, not approve"),
        (with_settings(groups=[GROUP]), "settings.groups[0]: no service is of the"),
        (with_settings(groups=[{"name": "all", "policy": "joint"}]), "give projects"),
        (
            {**with_policy(clairvoyant=True), **with_load(clients=3)},
            "spec.policies[0].clairvoyant: no policy can know what the clients of",
        ),
        (with_fault(kind="silent", end_s=1), "it ends at 1 s, but begins at 1 s only"),
        (with_fault(kind="straggler"), "a straggler needs a factor other than 1"),
        (with_fault(kind="gpu_lost", factor=2), "factor is for stragglers; leave it"),
        (with_fault(kind="stale"), "stale telemetry needs delay_s: it comes so much"),
        (with_fault(kind="silent", delay_s=2), "delay_s is for stale telemetry; leave"),
        (with_fault(kind="node_lost", gpu=0), "node_lost is of a whole node; leave"),
        (with_fault(kind="gpu_lost", node="busiest", gpu=0), "gpu is for a node that"),
        (with_fault(kind="silent", node="v100-3"), "faults[0].node: no node is called"),
        (with_fault(kind="gpu_lost", gpu=1), "faults[0].gpu: v100-1 has 1, counted"),
        (with_fault(kind="gpu_lost", gpu=1000), "there is no GPU 1000"),
        (with_fault(kind="silent", start_s=120), "faults[0].start_s: silent on"),
        (
            with_load(
                rate_rps=1, spikes=[{"start_s": 200, "length_s": 1, "factor": 2}]
            ),
            "spec.services[0].load.spikes[0].start_s: a spike of resnet50 would begin",
        ),
        (
            with_load(
                clients=[{"start_s": 0, "clients": 1}, {"start_s": 130, "clients": 2}]
            ),
            "spec.services[0].load.clients[1].start_s: a number of clients of resnet50",
        ),
        (
            {"tasks": [{**TASK, "submit_s": 50, "deadline_s": 50}]},
            "spec.tasks[0]: Value error, its deadline is at 50 s, but it is submitted",
        ),
        ({"tasks": [TASK, TASK]}, "tasks[1].name: 't-1' is there twice"),
        ({"tasks": [{**TASK, "submit_s": 120}]}, "tasks[0].submit_s: task t-1"),
        (
            {"tasks": [TASK], "task_lists": [{**LIST, "name": "t"}]},
            "spec.tasks[0].name: 't-1' may be the name of a task of the list t",
        ),
        ({"task_lists": [LIST, LIST]}, "task_lists[1].name: 'jobs' is there"),
        ({"task_lists": [{**LIST, "start_s": 121}]}, "would begin at 121"),
        ({"task_lists": [{**LIST, "gpu_type": "T4"}]}, "[0].gpu_type: no GPU"),
        (with_load(), "give one of rate_rps, trace, levels, clients, not none of them"),
        (with_load(rate_rps=1, clients=3), "not rate_rps and clients"),
        (with_load(clients=3, day={"amplitude": 1}), "day shapes a rate_rps; with"),
        (
            with_load(levels={"rates_rps": [1, 2], "mean_stays_s": [1, 2, 3]}),
            "2 rates_rps need as many",
        ),
        (with_load(rate_rps=-1), "greater than or equal to 0"),
        (with_load(clients=[]), "at least 1 item"),
        (with_load(clients=0), "services[0].load.clients: Value error, must be a"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_words(
    spec: dict[str, Any], words: str
) -> None:
    assert words in refusal(**spec)


def test_four_fields_are_enough() -> None:
    whole = a_document()
    least = {
        name: whole["spec"][name]
        for name in ("duration_s", "policies", "fleet", "services")
    }
    scenario = SimulationScenario.model_validate({**whole, "spec": least})
    assert scenario.spec.loop.window_s == scenario.spec.agent_period_s == 5.0
    assert (
        SimulationScenario.model_validate(scenario.model_dump(mode="json")) == scenario
    )


def test_groups_are_chosen_by_the_labels_of_simulated_services() -> None:
    labelled = {**SERVICE, "labels": {"tier": "low", "team": "a"}}
    spec = a_scenario(services=[labelled], loop={"groups": [GROUP]}).spec
    assert [each.name for each in loop_of(spec, spec.policies[0]).groups] == ["low"]
