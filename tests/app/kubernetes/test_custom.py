"""PlimsollService and PlimsollPolicy objects: what they ask for here, and what their status says there."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from app.kubernetes import custom_sync
from app.kubernetes.custom import service_manifest
from app.kubernetes.objects import CustomResource
from tests.app.kubernetes.conftest import running_cluster
from tests.app.kubernetes.kubectl import (
    GROUP,
    PLACE,
    Kubectl,
    control_plane,
    services_path,
)
from tests.integration.api_harness import Api, Prepared, reading
from tests.waiting import until

SPEC = {"network": "resnet50", "slo": {"latency_ms": 100.0, "percentile": 0.98}}


@pytest.fixture(scope="module")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """One cluster for all of these tests: each gives its services names of their own."""
    with running_cluster(tmp_path_factory.mktemp("custom")) as made:
        yield made


@pytest.fixture(scope="module")
def api(
    small_fleet: Prepared, kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Api]:
    cluster = control_plane(kubectl, tmp_path_factory.mktemp("token"))
    with small_fleet.running_api(cluster=cluster) as made:
        yield made


def a_service(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "gpu.plimsoll/v1",
        "kind": "PlimsollService",
        "metadata": {"name": name},
        "spec": {**SPEC, **spec},
    }


def add(kubectl: Kubectl, namespace: str, wanted: dict[str, Any]) -> str:
    """Its path."""
    kubectl.ask("POST", services_path(namespace), wanted)
    return services_path(namespace, wanted["metadata"]["name"])


def condition(kubectl: Kubectl, path: str, name: str = "Accepted") -> Mapping[str, Any]:
    """What is said of the newest specification; empty as long as nothing is."""
    found = kubectl.ask("GET", path)
    for each in found.get("status", {}).get("conditions", []):
        is_newest = each["observedGeneration"] == found["metadata"]["generation"]
        if each["type"] == name and is_newest:
            return dict(each)
    return {}


def until_accepted(kubectl: Kubectl, path: str, status: str = "True") -> str:
    """The condition's message."""
    until(
        lambda: condition(kubectl, path).get("status") == status,
        f"{condition(kubectl, path)}",
    )
    return str(condition(kubectl, path)["message"])


@pytest.mark.integration
def test_a_service_is_written_and_its_status_comes_back(
    api: Api, kubectl: Kubectl
) -> None:
    path = add(kubectl, "team-a", a_service("chat", scaling={"minReplicas": 2}))
    until_accepted(kubectl, path)
    written = api.get("services/chat")
    assert written["metadata"]["project"] == "team-a"
    assert written["spec"]["scaling"]["min_replicas"] == 2
    api.sync(services=[reading("chat")])
    api.tick()
    kubectl.add_pod("chat")
    until(lambda: kubectl.ask("GET", path)["status"]["replicas"] == 1, "no replica")
    status = kubectl.ask("GET", path)["status"]
    assert status["plannedReplicas"] == 2
    assert status["selector"] == "plimsoll/service=chat"
    assert float(status["costUsdPerHour"]) > 0.0
    assert condition(kubectl, path, "Ready")["status"] in ("True", "False", "Unknown")


@pytest.mark.integration
def test_what_is_wrong_is_said_and_mended(api: Api, kubectl: Kubectl) -> None:
    path = add(kubectl, "team-a", a_service("mended", network="resnet05"))
    assert "spec.network: no network is called 'resnet05'" in until_accepted(
        kubectl, path, "False"
    )
    kubectl.patch(path, {"spec": {"network": "resnet50", "replica": 3}})
    assert until_accepted(kubectl, path, "False").startswith("spec.replica: ")
    assert api.call("GET", "services/mended").status_code == 404
    kubectl.patch(path, {"spec": {"replica": None}})
    until_accepted(kubectl, path)
    assert api.get("services/mended")["spec"]["network"] == "resnet50"


@pytest.mark.integration
def test_a_namespace_writes_its_own_project_only(api: Api, kubectl: Kubectl) -> None:
    mine = add(kubectl, "team-a", a_service("wanted"))
    until_accepted(kubectl, mine)
    wanted = a_service("wanted")
    wanted["spec"]["project"] = "team-a"
    others = add(kubectl, "team-b", wanted)
    until_accepted(kubectl, others, "False")
    kubectl.patch(others, {"spec": {"project": None}})
    until(
        lambda: (
            "belongs to another project"
            in condition(kubectl, others).get("message", "")
        ),
        "nothing says that the name is taken",
    )
    # It learns nothing of that service, and its end does not end it.
    assert kubectl.ask("GET", others)["status"]["plannedReplicas"] == 0
    kubectl.ask("DELETE", others)
    until(
        lambda: services_of(kubectl, "team-b") == [], "the refused one is still there"
    )
    assert api.get("services/wanted")["metadata"]["project"] == "team-a"


@pytest.mark.integration
def test_a_namespace_waits_for_its_project_and_hears_of_no_other(
    api: Api, kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custom_sync, "AGAIN_S", 1.0)
    path = add(kubectl, "team-c", a_service("waits"))
    message = until_accepted(kubectl, path, "False")
    assert "team-c" in message and "team-a" not in message
    api.put("projects/team-c", {"kind": "Project", "metadata": {"name": "team-c"}})
    until_accepted(kubectl, path)


def services_of(kubectl: Kubectl, namespace: str) -> list[str]:
    return [
        each["metadata"]["name"] for each in kubectl.items(services_path(namespace))
    ]


@pytest.mark.integration
def test_nobody_else_changes_what_the_cluster_keeps(api: Api, kubectl: Kubectl) -> None:
    path = add(kubectl, "team-a", a_service("kept"))
    until_accepted(kubectl, path)
    written = api.get("services/kept")
    del written["status"]
    refused = api.call("PUT", "services/kept", written, If_Match="*")
    assert refused.status_code == 409
    assert "PlimsollService team-a/kept of the cluster keeps it" in refused.text
    assert api.call("DELETE", "services/kept", If_Match="*").status_code == 409
    # Nor says somebody of another one that the cluster keeps it, which no one could change then.
    written["metadata"]["name"] = "mine"
    assert api.call("PUT", "services/mine", written).status_code == 422


@pytest.mark.integration
def test_an_object_stays_until_nothing_of_its_service_runs(
    api: Api, kubectl: Kubectl
) -> None:
    path = add(kubectl, "team-a", a_service("stays"))
    until_accepted(kubectl, path)
    pod = kubectl.add_pod("stays")
    until(lambda: kubectl.ask("GET", path)["status"]["replicas"] == 1, "no replica")
    kubectl.ask("DELETE", path)
    until(lambda: api.call("GET", "services/stays").status_code == 404, "it is served")
    # What was asked for later is done, and it is still there.
    until_accepted(kubectl, add(kubectl, "team-a", a_service("later")))
    assert "stays" in services_of(kubectl, "team-a")
    kubectl.ask("DELETE", f"{PLACE}/pods/{pod}", {"gracePeriodSeconds": 0})
    until(
        lambda: "stays" not in services_of(kubectl, "team-a"),
        "the object is still there",
    )


@pytest.mark.integration
def test_scale_states_an_exact_number(api: Api, kubectl: Kubectl) -> None:
    path = add(kubectl, "team-a", a_service("scaled"))
    until_accepted(kubectl, path)
    if kubectl.cluster.fake is None:
        kubectl.patch(f"{path}/scale", {"spec": {"replicas": 3}})
    else:
        kubectl.patch(path, {"spec": {"scaling": {"replicas": 3}}})
    until_accepted(kubectl, path)
    scaling = api.get("services/scaled")["spec"]["scaling"]
    assert (scaling["min_replicas"], scaling["max_replicas"]) == (3, 3)


@pytest.mark.integration
def test_the_policy_is_written_too(api: Api, kubectl: Kubectl) -> None:
    path = f"{GROUP}/plimsollpolicies"
    spec = {"policy": "hetsev", "target_attainment": 0.999}
    kubectl.ask(
        "POST",
        path,
        {
            "apiVersion": "gpu.plimsoll/v1",
            "kind": "PlimsollPolicy",
            "metadata": {"name": "default"},
            "spec": spec,
        },
    )
    until_accepted(kubectl, f"{path}/default")
    assert api.get("policies/default")["spec"]["target_attainment"] == 0.999
    kubectl.patch(f"{path}/default", {"spec": {"policy": "hetsef"}})
    assert "hetsev" in until_accepted(kubectl, f"{path}/default", "False")
    assert api.get("policies/default")["spec"]["policy"] == "hetsev"


def test_an_exact_number_takes_the_place_of_limits() -> None:
    wanted = a_service(
        "chat", scaling={"replicas": 3, "maxReplicas": 5, "min_replicas": 1}
    )
    resource = msgspec.convert(wanted, CustomResource)
    assert service_manifest(resource)["spec"]["scaling"] == {
        "min_replicas": 3,
        "max_replicas": 3,
    }


def test_names_of_labels_that_only_a_cluster_may_have_are_left_out() -> None:
    wanted = a_service("chat")
    wanted["metadata"]["labels"] = {"team": "nlp", f"{'x' * 60}.example/a": "b"}
    resource = msgspec.convert(wanted, CustomResource)
    assert service_manifest(resource)["metadata"]["labels"] == {"team": "nlp"}
