"""Which owners and budgets are wanted: pure functions."""

from typing import Any

import msgspec

from agents.kubernetes.pod import Pod
from app.kubernetes.objects import DisruptionBudget, Pool
from app.kubernetes.pools import TASKS, OwnedPods, pool_requests

NAMESPACE = "plimsoll-replicas"
POOLS = f"/apis/gpu.plimsoll/v1/namespaces/{NAMESPACE}/plimsollpools"
BUDGETS = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


def a_pod(name: str, service: str = "chat", **metadata: Any) -> Pod:
    kind = "task" if service == "" else "service"
    document = {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"uid-{name}",
            "labels": {f"plimsoll/{kind}": service or "train"},
            **metadata,
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    return msgspec.convert(document, Pod)


def a_pool(name: str = "chat", replicas: int = 2, ready: int = 2) -> Pool:
    document = {
        "metadata": {"name": name, "namespace": NAMESPACE, "uid": f"pool-{name}"},
        "spec": {"replicas": replicas},
        "status": {"readyReplicas": ready},
    }
    return msgspec.convert(document, Pool)


def a_budget(name: str = "chat", least: int = 2) -> DisruptionBudget:
    document = {
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"minAvailable": least},
    }
    return msgspec.convert(document, DisruptionBudget)


def asked(
    planned: dict[str, int],
    *there: Pod | Pool | DisruptionBudget,
) -> list[tuple[str, str, Any]]:
    """Method, path and what is asked for, without what says which object it is."""

    def of(kind: type) -> dict[str, Any]:
        return {
            f"{each.metadata.namespace}/{each.metadata.name}": each
            for each in there
            if isinstance(each, kind)
        }

    owned = OwnedPods(
        namespace=NAMESPACE,
        pods=of(Pod),
        pools=of(Pool),
        budgets=of(DisruptionBudget),
        budget_version="policy/v1",
    )
    found = []
    for each in pool_requests(planned, owned):
        document = dict(each.document or {})
        spec = document.get("spec", document.get("status", document.get("metadata")))
        found.append((each.method, each.path, spec))
    return found


def test_a_planned_service_gets_a_pool_and_a_budget_of_all_its_replicas() -> None:
    budget = {
        "minAvailable": 2,
        "selector": {"matchLabels": {"plimsoll/service": "chat"}},
    }
    assert asked({"chat": 2}) == [
        ("PATCH", f"{POOLS}/chat", {"replicas": 2}),
        ("PATCH", f"{BUDGETS}/chat", budget),
    ]


def test_what_is_in_step_is_left_alone() -> None:
    owned = [{"uid": "pool-chat"}]
    pods = [a_pod(f"chat-{place}", ownerReferences=owned) for place in range(2)]
    assert asked({"chat": 2}, *pods, a_pool(), a_budget()) == []


def test_a_pod_without_an_owner_gets_its_services_pool() -> None:
    ((method, path, metadata),) = asked(
        {"chat": 1}, a_pod("chat-0"), a_pool(replicas=1, ready=1), a_budget(least=1)
    )
    assert (method, path) == ("PATCH", f"{PODS}/chat-0")
    assert metadata["uid"] == "uid-chat-0"
    (owner,) = metadata["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == ("pool-chat", True)


def test_a_plan_that_changes_moves_pool_and_budget() -> None:
    changed = asked({"chat": 3}, a_pool(replicas=2, ready=0), a_budget())
    assert [
        (path, spec.get("replicas", spec.get("minAvailable")))
        for _, path, spec in changed
    ] == [
        (f"{POOLS}/chat", 3),
        (f"{BUDGETS}/chat", 3),
    ]


def test_a_service_that_is_gone_keeps_its_pool_until_its_pods_are_gone() -> None:
    owned = a_pod("chat-0", ownerReferences=[{"uid": "pool-chat"}])
    assert asked({}, owned, a_pool(replicas=0, ready=1), a_budget()) == [
        ("DELETE", f"{BUDGETS}/chat", None)
    ]
    assert asked({}, a_pool(replicas=0, ready=0)) == [("DELETE", f"{POOLS}/chat", None)]


def test_tasks_have_one_pool_and_no_budget() -> None:
    paths = [
        path for _, path, _ in asked({}, a_pod("train-0", ""), a_pod("train-1", ""))
    ]
    assert paths == [f"{POOLS}/{TASKS}"]
