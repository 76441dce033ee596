"""What the admission policies let an agent do: their expressions, on Pods as agents make them. Pure."""

import sys
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from agents.kubernetes.manifest import PodSettings, manifest
from tests.agents.kubernetes.test_manifest import prepared

POLICIES = (
    Path(__file__).parents[3] / "deploy/kubernetes/components/admission/agent-pods.yaml"
)
AGENT = "system:serviceaccount:plimsoll-replicas:plimsoll-agent"
NODE = "gpu-1.example"
FOLDER = Path("/var/lib/plimsoll-agent-workers/workers/chat-0~2")
Object = dict[str, Any]


def policy(name: str) -> Mapping[str, Any]:
    (found,) = (
        each["spec"]
        for each in yaml.safe_load_all(POLICIES.read_text())
        if each["kind"] == "ValidatingAdmissionPolicy"
        and each["metadata"]["name"] == name
    )
    spec: Mapping[str, Any] = found
    return spec


@pytest.fixture(autouse=True)
def recursion_limit() -> Iterator[None]:
    """As it was: the evaluator raises it for the process, and with it what other tests take for too deep."""
    limit = sys.getrecursionlimit()
    yield
    sys.setrecursionlimit(limit)


def evaluate(expression: str, values: Mapping[str, Any]) -> Any:
    import celpy

    environment = celpy.Environment()
    program = environment.program(environment.compile(expression))
    return program.evaluate(dict(values))


def refusals(
    name: str, *, node: str = NODE, user: str = AGENT, **objects: Object
) -> list[str]:
    """Messages of the policy's validations that do not hold, as a server evaluates them."""
    import celpy

    spec = policy(name)
    extra = {"authentication.kubernetes.io/node-name": [node]}
    sent = {"request": {"userInfo": {"username": user, "extra": extra}}, **objects}
    values = {name: celpy.json_to_cel(each) for name, each in sent.items()}
    if not all(
        evaluate(each["expression"], values) for each in spec["matchConditions"]
    ):
        return []
    values["variables"] = celpy.celtypes.MapType()
    for each in spec["variables"]:
        name = celpy.celtypes.StringType(each["name"])
        values["variables"][name] = evaluate(each["expression"], values)
    return [
        each["message"]
        for each in spec["validations"]
        if not evaluate(each["expression"], values)
    ]


@pytest.fixture
def pod() -> Object:
    """As the agent of that node makes it."""
    made: Any = manifest(prepared(FOLDER), PodSettings(node=NODE, image="worker:1"))
    return dict(made)


def test_what_an_agent_makes_is_let_through(pod: Object) -> None:
    assert refusals("plimsoll-agent-creates", object=pod) == []


def changes() -> Iterator[tuple[str, Callable[[Object], object]]]:
    yield "own node", lambda spec: spec.pop("affinity")
    yield "another node", lambda spec: spec.update(nodeName="gpu-2")
    yield "namespace of the host", lambda spec: spec.update(hostPID=True)
    yield "namespace of the host", lambda spec: spec.update(hostNetwork=True)
    yield "account's token", lambda spec: spec.update(automountServiceAccountToken=True)
    yield (
        "account's token",
        lambda spec: spec.update(serviceAccountName="plimsoll-agent"),
    )
    for source in (
        {"hostPath": {"path": "/"}},
        {"hostPath": {"path": "/var/lib/plimsoll-agent-workers-not"}},
        {"secret": {"secretName": "plimsoll-database"}},
        {"projected": {"sources": []}},
    ):
        yield (
            "of the host",
            lambda spec, source=source: spec["volumes"].append({"name": "x", **source}),
        )
    yield "init containers", lambda spec: spec.update(initContainers=[])
    for security in ({"privileged": True}, {"allowPrivilegeEscalation": True}):
        yield (
            "without privileges",
            lambda spec, security=security: spec["containers"][0][
                "securityContext"
            ].update(security),
        )
    yield (
        "without privileges",
        lambda spec: spec["containers"].append({"name": "beside", "image": "x"}),
    )
    yield "as root", lambda spec: spec["securityContext"].update(runAsUser=0)


@pytest.mark.parametrize(("said", "change"), list(changes()))
def test_what_would_give_it_more_is_refused(
    pod: Object, said: str, change: Callable[[Object], object]
) -> None:
    changed = deepcopy(pod)
    change(changed["spec"])
    (message,) = refusals("plimsoll-agent-creates", object=changed)
    assert said in message


def test_another_nodes_agent_creates_nothing_here(pod: Object) -> None:
    assert len(refusals("plimsoll-agent-creates", node="gpu-2", object=pod)) == 1


def test_others_are_not_meant(pod: Object) -> None:
    pod["spec"]["hostPID"] = True
    assert refusals("plimsoll-agent-creates", user="somebody", object=pod) == []


def test_an_agent_deletes_its_own_nodes_replicas_only(pod: Object) -> None:
    pod["spec"]["nodeName"] = NODE
    assert refusals("plimsoll-agent-deletes", oldObject=pod) == []
    assert len(refusals("plimsoll-agent-deletes", node="gpu-2", oldObject=pod)) == 1
    pod["metadata"]["labels"] = {"app": "plimsoll-router"}
    assert len(refusals("plimsoll-agent-deletes", oldObject=pod)) == 1
