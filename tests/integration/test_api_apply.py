"""Many manifests at once: all or none, by the rights of each, and a dry run that ends as the write would."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from httpx2 import Response

from app.api.http.fairness import Pace
from app.api.http.parts import ApiParts
from tests.integration.api_harness import Api, Prepared, gpu_type, network, service

pytestmark = pytest.mark.integration

Bundle = dict[str, object]


def project(name: str, **quota: object) -> dict[str, object]:
    metadata = {"name": name}
    return {"kind": "Project", "metadata": metadata, "spec": {"quota": quota}}


def profile(slow: float = 1.0) -> dict[str, object]:
    rows = [
        [share, 1, 1590, 0.1, 0.1, slow * 480 / share, 2000, 20, 0.1]
        for share in (50, 100)
    ]
    spec = {"network": "resnet50", "gpu_type": "T4", "rows": rows}
    return {"kind": "Profile", "metadata": {"name": "any"}, "spec": spec}


def bundle(**changes: object) -> Bundle:
    return {
        "services": [service("chat", project="vision")],
        "projects": [project("vision")],
        "gpu_types": [gpu_type()],
        "networks": [network()],
        "profiles": [profile()],
        **changes,
    }


def state(api: Api) -> list[object]:
    """What there is, and what the audit says."""
    kinds = ("projects", "gpu-types", "networks", "services", "profiles", "events")
    return [api.get(kind)["items"] for kind in kinds]


def refused(api: Api, body: Bundle, *, token: str = "admin") -> Response:
    """The refusal of a write, which is that of a dry run as well; neither changes anything."""
    before = state(api)
    dry = api.call("POST", "apply?dry_run=true", body, token=token)
    written = api.call("POST", "apply", body, token=token)
    kept = ("status", "detail", "errors", "code")
    one, other = (
        {key: answer.json().get(key) for key in kept} for answer in (dry, written)
    )
    assert one == other
    # A refusal for lack of rights is itself a line in the audit.
    assert state(api)[:-1] == before[:-1]
    return written


@pytest.fixture
def api(no_fleet: Prepared) -> Iterator[Api]:
    with no_fleet.running_api() as running:
        yield running


def test_objects_are_written_in_the_order_of_what_they_need(api: Api) -> None:
    dry = api.call("POST", "apply?dry_run=true", bundle()).json()
    assert (dry["dry_run"], api.get("services")["items"]) == (True, [])
    written = api.call("POST", "apply", bundle())
    assert written.status_code == 200
    told = written.json()
    assert [one["path"] for one in told["objects"]] == [
        "projects/vision",
        "gpu-types/T4",
        "networks/resnet50",
        "profiles/resnet50/T4",
        "services/chat",
    ]
    assert all(one["is_created"] for one in told["objects"])
    kinds = [event["kind"] for event in api.get("events")["items"]]
    assert "ServiceCreated" in kinds
    # A dry run has told the same, but for what the clock and the database number.
    assert [one["path"] for one in dry["objects"]] == [
        one["path"] for one in told["objects"]
    ]


def test_the_last_refusal_takes_everything_back(api: Api) -> None:
    answer = refused(api, bundle(profiles=[profile(slow=1000.0)]))
    assert answer.status_code == 422
    (wrong,) = answer.json()["errors"]
    assert (wrong["pointer"], wrong["may_force"]) == ("/services/0/spec/slo", True)
    assert "the shortest possible SLO is" in wrong["detail"]
    forced = api.call(
        "POST", "apply?force=true", bundle(profiles=[profile(slow=1000.0)])
    )
    assert forced.status_code == 200


def test_each_kind_needs_its_own_rights(api: Api) -> None:
    answer = refused(api, bundle(), token="operator")
    assert answer.status_code == 403
    assert answer.json()["detail"].startswith(
        "projects/vision: this needs a token of scope admin"
    )
    assert refused(api, bundle(), token="viewer").status_code == 403
    api.call("POST", "apply", bundle(services=[]))
    own = {"services": [service("chat", project="vision")]}
    assert api.status("POST", "apply", own, token="operator") == 200
    api.add_token("elsewhere", "operator", ("default",))
    other = {"services": [service("photo", project="vision")]}
    assert refused(api, other, token="elsewhere").status_code == 403


def test_quotas_count_what_comes_together(api: Api) -> None:
    limited = service("chat", project="vision", scaling={"max_replicas": 2})
    second = service("photo", project="vision", scaling={"max_replicas": 2})
    quota = [project("vision", max_replicas=3)]
    answer = refused(api, bundle(projects=quota, services=[limited, second]))
    assert answer.status_code == 422
    (wrong,) = answer.json()["errors"]
    assert wrong["pointer"] == "/services/1/spec/scaling/max_replicas"


def test_what_changed_meanwhile_is_not_written_over(api: Api) -> None:
    api.call("POST", "apply", bundle())
    again = {"services": [service("chat", project="vision")]}
    answer = refused(api, again)
    assert answer.status_code == 412
    assert answer.json()["detail"].startswith("services/chat: the object exists")
    stale = {**again, "etags": {"services/chat": '"99"'}}
    assert refused(api, stale).status_code == 412
    seen = {**again, "etags": {"services/chat": '"1"'}}
    told = api.call("POST", "apply", seen).json()
    assert [one["is_created"] for one in told["objects"]] == [False]


def test_a_name_that_nothing_has_is_told_with_its_place(api: Api) -> None:
    wrong = service("chat", project="vision", network="resnet51")
    answer = refused(api, bundle(services=[wrong]))
    (field,) = answer.json()["errors"]
    assert field["pointer"] == "/services/0/spec/network"
    assert "did you mean resnet50?" in field["detail"]


def test_a_dry_run_takes_nothing_of_the_pace_of_changes(api: Api) -> None:
    api.call("POST", "apply", bundle(services=[]))
    pace = Pace(rate=0.01, burst=3.0, wait_s=0.0, what="changes per second")
    parts: ApiParts = api.client.app.state.parts  # type: ignore[attr-defined]
    api.client.app.state.parts = replace(parts, service_changes=pace)  # type: ignore[attr-defined]
    many = {"services": [service(f"s{n}", project="vision") for n in range(3)]}
    for _ in range(2):
        assert api.status("POST", "apply?dry_run=true", many) == 200
    assert api.status("POST", "apply", many) == 200


def test_a_webhook_s_secret_is_not_shown_before_it_is_kept(api: Api) -> None:
    hook = {
        "kind": "Webhook",
        "metadata": {"name": "pager"},
        "spec": {"url": "https://example.com/hook", "kinds": ["PlanRefused"]},
    }
    dry = api.call("POST", "apply?dry_run=true", {"webhooks": [hook]}).json()
    assert dry["objects"][0]["object"]["status"]["secret"] is None
    kept = api.call("POST", "apply", {"webhooks": [hook]}).json()
    assert kept["objects"][0]["object"]["status"]["secret"].startswith("whsec_")
