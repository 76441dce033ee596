"""The cluster's objects follow the plan, and nodes follow the cluster; on the fake API and on a real server."""

from typing import Any

import pytest

from app.kubernetes.cluster import Cluster
from tests.agents.kubernetes.fake_api import NAMESPACE
from tests.app.kubernetes.kubectl import PLACE, POOLS, Kubectl
from tests.integration.api_harness import Api, Prepared, node, reading, service
from tests.waiting import until

pytestmark = pytest.mark.integration


def plan_two_replicas(api: Api) -> None:
    api.put("services/chat", service(scaling={"min_replicas": 2}))
    api.sync(services=[reading()])
    api.tick()


def test_pods_get_an_owner_and_a_budget_by_the_plan(api: Api, kubectl: Kubectl) -> None:
    plan_two_replicas(api)
    names = [kubectl.add_pod("chat") for _ in range(2)]
    until(
        lambda: (
            [each.get("status") for each in kubectl.items(POOLS)]
            == [{"readyReplicas": 2}]
        ),
        "no pool with two ready replicas",
    )
    (pool,) = kubectl.items(POOLS)

    def owners() -> list[tuple[str, bool]]:
        pods = [kubectl.ask("GET", f"{PLACE}/pods/{name}") for name in names]
        found = [pod["metadata"].get("ownerReferences", []) for pod in pods]
        return [(each["uid"], each["controller"]) for one in found for each in one]

    # They get it in the round after the one that made the pool.
    until(lambda: len(owners()) == 2, "Pods have no owner")
    assert owners() == [(pool["metadata"]["uid"], True)] * 2
    (budget,) = kubectl.items(kubectl.budgets)
    assert budget["spec"]["minAvailable"] == 2
    if kubectl.cluster.fake is None:
        check_evictions(kubectl, names)
    else:
        loses_its_label(api, kubectl)
        loses_its_service(api, kubectl)


def check_evictions(kubectl: Kubectl, names: list[str]) -> None:
    """None below the plan's replicas; one as soon as there is one more, which is how a drain goes."""

    def evict(name: str) -> int:
        body = {"metadata": {"name": name, "namespace": NAMESPACE}}
        body |= {"apiVersion": "policy/v1beta1", "kind": "Eviction"}
        try:
            kubectl.ask("POST", f"{PLACE}/pods/{name}/eviction", body)
        except Exception as error:
            assert "disruption budget" in str(error)
            return 429
        return 201

    def allowed() -> Any:
        (budget,) = kubectl.items(kubectl.budgets)
        return budget.get("status", {}).get("disruptionsAllowed")

    until(lambda: allowed() == 0, "the budget is not known")
    assert evict(names[0]) == 429
    kubectl.add_pod("chat")
    until(lambda: allowed() == 1, "a third replica allows nothing")
    assert evict(names[0]) == 201


def loses_its_service(api: Api, kubectl: Kubectl) -> None:
    """A plan without it takes pool and budget away, once its Pods are gone."""
    for each in kubectl.items(f"{PLACE}/pods"):
        path = f"{PLACE}/pods/{each['metadata']['name']}"
        kubectl.ask("DELETE", path, {"gracePeriodSeconds": 0})
    assert api.call("DELETE", "services/chat", If_Match="*").status_code == 204
    api.tick()
    until(
        lambda: not kubectl.items(POOLS) and not kubectl.items(kubectl.budgets),
        "they are still there",
    )


def loses_its_label(api: Api, kubectl: Kubectl) -> None:
    """A node does, and is named."""
    kubectl.patch("/api/v1/nodes/n1", {"metadata": {"labels": {"plimsoll/gpus": None}}})
    until(lambda: api.get("events?kind=ClusterOutOfStep")["items"], "nothing says so")
    (event,) = api.get("events?kind=ClusterOutOfStep")["items"]
    assert "node n1 has lost its label plimsoll/gpus=true" in event["reason"]
    labels = {"plimsoll/gpus": "true"}
    kubectl.patch("/api/v1/nodes/n1", {"metadata": {"labels": labels}})


def test_a_cordoned_node_drains_and_is_used_again(api: Api, kubectl: Kubectl) -> None:
    kubectl.patch("/api/v1/nodes/n1", {"spec": {"unschedulable": True}})
    until(lambda: api.get("nodes/n1")["status"]["drain"], "it does not drain")
    kubectl.patch("/api/v1/nodes/n1", {"spec": {"unschedulable": None}})
    until(lambda: not api.get("nodes/n1")["spec"]["cordoned"], "it is not used again")
    assert api.get("nodes/n1")["status"]["drain"] is None
    kinds = [
        event["kind"] for event in api.get("events?actor=token/kubernetes")["items"]
    ]
    assert kinds == ["NodeUncordoned", "NodeDraining"]


def test_what_a_person_keeps_out_of_use_stays_so(api: Api, kubectl: Kubectl) -> None:
    assert api.call("POST", "nodes/n1/cordon").status_code == 200
    kubectl.patch("/api/v1/nodes/n1", {"spec": {"unschedulable": True}})
    until(lambda: api.get("nodes/n1")["status"]["drain"], "it does not drain")
    kubectl.patch("/api/v1/nodes/n1", {"spec": {"unschedulable": None}})
    until(lambda: not api.get("nodes/n1")["spec"]["cordoned"], "it is not used again")
    # And one that only a person has touched, though another one follows the cluster after that.
    assert api.call("POST", "nodes/n1/drain", {"deadline_s": 60}).status_code == 200
    api.put("nodes/n2", node("n2"))
    kept_out = {"metadata": {"name": "n2", "labels": {"plimsoll/gpus": "true"}}}
    kubectl.add("/api/v1/nodes", {**kept_out, "spec": {"unschedulable": True}})
    until(lambda: api.get("nodes/n2")["status"]["drain"], "the other does not drain")
    assert api.get("nodes/n1")["status"]["drain"]
    if kubectl.cluster.fake is None:
        kubectl.ask("DELETE", "/api/v1/nodes/n2")


def test_a_right_that_is_missing_is_named_and_the_api_serves_on(
    small_fleet: Prepared, kubectl: Kubectl, cluster: Cluster
) -> None:
    fake = kubectl.cluster.fake
    if fake is None:
        pytest.skip("a real server's roles are others' test")
    fake.refused = "plimsollpools"
    with small_fleet.running_api(cluster=cluster) as api:
        until(
            lambda: api.get("events?kind=ClusterOutOfStep")["items"], "nothing says so"
        )
        (event,) = api.get("events?kind=ClusterOutOfStep")["items"]
        assert "plimsollpools is forbidden" in event["reason"]
        assert "is deploy/kubernetes of this release applied" in event["reason"]
        # Given the right, it goes on by itself.
        fake.refused = ""
        plan_two_replicas(api)
        until(lambda: kubectl.items(POOLS), "no pool")
