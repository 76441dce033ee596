"""Bad input: a clear answer that names the field and the remedy, and never a server error."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.api_harness import (
    Api,
    Prepared,
    gpu_type,
    node,
    profile,
    service,
)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def api(small_fleet: Prepared) -> Iterator[Api]:
    with small_fleet.running_api() as running:
        yield running


def _with(manifest: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    """The manifest with one field changed."""
    head, _, rest = path.partition(".")
    inner = _with(manifest.get(head, {}), rest, value) if rest else value
    return {**manifest, head: inner}


def _sent_raw(api: Api, path: str, body: bytes) -> Any:
    headers = {
        "Authorization": f"Bearer {api.secrets['admin']}",
        "Content-Type": "application/json",
    }
    return api.client.put(f"/api/v1/{path}", content=body, headers=headers)


@pytest.mark.parametrize(
    ("change", "value", "pointer"),
    [
        ("spec.colour", "red", "/spec/colour"),
        ("spec.network", "resnet51", "/spec/network"),
        ("spec.slo.percentile", 0.4, "/spec/slo/percentile"),
        ("spec.slo.percentile", 1.0, "/spec/slo/percentile"),
        ("spec.slo.latency_ms", 0, "/spec/slo/latency_ms"),
        ("spec.slo.latency_ms", "fast", "/spec/slo/latency_ms"),
        ("spec.gpu_types.allowed", ["T4", "T5"], "/spec/gpu_types/allowed"),
        ("spec.gpu_types.excluded", ["T5"], "/spec/gpu_types/excluded"),
        ("spec.scaling.min_replicas", -1, "/spec/scaling/min_replicas"),
        ("spec.scaling.max_replicas", 0, "/spec/scaling/max_replicas"),
        ("spec.priority", "urgent", "/spec/priority"),
        ("spec.variants", [{"network": "resnet18", "accuracy": 0.7}], "/spec/variants"),
        (
            "spec.variants",
            [{"network": "resnet50", "accuracy": 1.1}],
            "/spec/variants/0/accuracy",
        ),
        (
            "spec.variants",
            [{"network": "resnet50", "accuracy": 0.7}] * 2,
            "/spec/variants",
        ),
        ("spec.accuracy_floor", 0.5, "/spec/accuracy_floor"),
        ("spec.survive", "rack", "/spec/survive"),
        ("spec.survive_share", 0.5, "/spec/survive_share"),
        ("spec.mode", "perhaps", "/spec/mode"),
        ("metadata.name", "other", "/metadata/name"),
        ("metadata.project", "nobody", "/metadata/project"),
        ("kind", "Deployment", "/kind"),
        ("apiVersion", "plimsoll/v2", "/apiVersion"),
        ("status", {}, "/status"),
    ],
)
def test_a_malformed_service_names_its_field(
    api: Api, change: str, value: object, pointer: str
) -> None:
    answer = api.call("PUT", "services/chat", _with(service(), change, value))
    assert answer.status_code == 422
    assert pointer in [entry["pointer"] for entry in answer.json()["errors"]]


def test_unknown_names_are_answered_with_those_that_exist(api: Api) -> None:
    metadata = {"name": "default"}
    for path, change, words in (
        ("services/chat", {"network": "resnet51"}, "There are resnet50"),
        ("services/chat", {"gpu_types": {"allowed": ["T5"]}}, "there are T4"),
        ("services/chat", {"gpu_types": {"allowed": []}}, "no GPU type is left"),
        ("services/chat", {"gpu_types": {"excluded": ["T4"]}}, "no GPU type is left"),
        ("policies/default", {"policy": "magic"}, "hetsev"),
        ("policies/default", {"governor": "magic"}, "batch_dvfs, clipper_latency"),
    ):
        policy = {"kind": "Policy", "metadata": metadata, "spec": change}
        body = service(**change) if path == "services/chat" else policy
        answer = api.call("PUT", path, body, If_Match="*")
        assert answer.status_code == 422
        assert words in answer.json()["detail"]


def test_a_service_on_a_training_network_is_refused_with_what_to_do_instead(
    api: Api,
) -> None:
    metadata = {"name": "steps-training", "labels": {"kind": "training"}}
    training = {"kind": "Network", "metadata": metadata, "spec": {}}
    api.put("networks/steps-training", training)
    wanted = service(network="steps-training")
    answer = api.call("PUT", "services/chat?force=true", wanted)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["pointer"] == "/spec/network"
    assert "training step" in error["detail"]
    assert "run it as a task" in error["detail"]


def test_an_impossible_slo_is_answered_with_the_least_possible_one_which_is_accepted(
    api: Api,
) -> None:
    refused = api.call("PUT", "services/hasty", service("hasty", latency_ms=3.0))
    assert refused.status_code == 422
    told = refused.json()
    assert told["detail"].endswith("; `?force=true` accepts it anyway")
    (field,) = told["errors"]
    assert (field["pointer"], field["may_force"]) == ("/spec/slo", True)
    assert "the shortest possible SLO is 7 ms" in field["detail"]
    assert "force" not in field["detail"]
    assert api.status("PUT", "services/hasty", service("hasty", latency_ms=6.99)) == 422
    assert api.status("PUT", "services/hasty", service("hasty", latency_ms=7.0)) == 201


def test_an_impossible_slo_can_be_forced_and_the_status_says_so(api: Api) -> None:
    hasty = service("forced", latency_ms=3.0)
    assert api.status("PUT", "services/forced?force=true", hasty) == 201
    told = api.get("services/forced")["status"]["conditions"]
    (feasible,) = (each for each in told if each["type"] == "Feasible")
    assert feasible["reason"] == "SloOutOfReach"
    assert "7 ms" in feasible["message"]


def test_camel_case_scaling_is_accepted(api: Api) -> None:
    api.put(
        "services/camel", service("camel", scaling={"minReplicas": 1, "maxReplicas": 3})
    )
    assert api.get("services/camel")["spec"]["scaling"]["max_replicas"] == 3


@pytest.mark.parametrize("latency", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused_with_their_place(
    api: Api, latency: str
) -> None:
    body = json.dumps(service()).replace(
        '"latency_ms": 100.0', f'"latency_ms": {latency}'
    )
    answer = _sent_raw(api, "services/chat", body.encode())
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/spec/slo/latency_ms"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"\xff\xfe\x00",
        b'{"a": 1, "a": 2}',
        b"[" * 100_000,
        b'{"x": ' + b"9" * 5000 + b"}",
        b'"\\ud800"',
        b'{"kind":"Service","metadata":{"name":"chat","labels":{"a":"\\u0000"}}}',
    ],
)
def test_what_is_no_manifest_is_refused(api: Api, body: bytes) -> None:
    answer = _sent_raw(api, "services/chat", body)
    assert answer.status_code in (400, 422)
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_a_body_of_another_type_is_refused(api: Api) -> None:
    own = {"Authorization": f"Bearer {api.secrets['admin']}"}
    for kind, status, words in (
        ("text/plain", 415, "`Content-Type: application/json`, not 'text/plain'"),
        (None, 415, "which is missing"),
        ("application/merge-patch+json; charset=utf-8", 422, ""),
    ):
        headers = own if kind is None else {**own, "Content-Type": kind}
        path = "/api/v1/services/chat"
        answer = api.client.put(path, content=b"{}", headers=headers)
        assert answer.status_code == status
        assert words in answer.json()["detail"]


@pytest.mark.parametrize("encoding", ["zstd", "br", "deflate", "gzip", "gzip, zstd"])
def test_a_compressed_body_is_refused_as_such(api: Api, encoding: str) -> None:
    headers = {"Content_Encoding": encoding, "If_Match": "*"}
    answer = api.call("PUT", "services/chat", {}, **headers)
    assert answer.status_code == 415
    assert f"without the header `Content-Encoding: {encoding}`" in answer.text
    plain = api.call("PUT", "services/chat", {}, Content_Encoding="Identity")
    assert plain.status_code == 422


def test_a_bad_name_is_answered_with_what_names_are_made_of(api: Api) -> None:
    answer = api.call("GET", "services/a b")
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(
        "name: must be 1 to 63 lower-case letters, digits and -"
    )


def test_a_path_and_a_method_that_nothing_answers_say_where_to_look(api: Api) -> None:
    assert "/openapi.json" in api.call("GET", "profiles/resnet50").json()["detail"]
    assert "Allow" in api.call("DELETE", "services").json()["detail"]


def test_stalls_are_stated_by_row_and_come_back(api: Api) -> None:
    def put(stall_ms: object) -> Any:
        wanted = _with(profile(), "spec.stall_ms", stall_ms)
        return api.call("PUT", "profiles/resnet50/T4", wanted, If_Match="*")

    for wrong, pointer in (
        ([1.0], "/spec/stall_ms"),
        ([1.0, -1.0, 1.0, 1.0], "/spec/stall_ms/1"),
    ):
        answer = put(wrong)
        assert answer.status_code == 422
        assert [entry["pointer"] for entry in answer.json()["errors"]] == [pointer]
    for stated in ([0.0, 1.5, 2.5, 9.0], None):
        assert put(stated).json()["spec"]["stall_ms"] == stated
        read = api.call("GET", "profiles/resnet50/T4").json()["spec"]
        assert (read["stall_ms"], len(read["rows"][0])) == (stated, 9)


@pytest.mark.parametrize(
    ("rows", "pointer"),
    [
        ([[0, 1, 1590, 1, 1, 1, 1, 1, 0]], "/spec/rows/0/0"),
        ([[101, 1, 1590, 1, 1, 1, 1, 1, 0]], "/spec/rows/0/0"),
        ([[50, 0, 1590, 1, 1, 1, 1, 1, 0]], "/spec/rows/0/1"),
        ([[50, 1, 0, 1, 1, 1, 1, 1, 0]], "/spec/rows/0/2"),
        ([[50, 1, 1590, -1, 1, 1, 1, 1, 0]], "/spec/rows/0/3"),
        ([[50, 1, 1590, 0, 0, 0, 1, 1, 0]], "/spec/rows/0"),
        ([[50, 1, 1590, 1, 1, 1, 1, 1, 0]] * 2, "/spec/rows"),
        ([[50, 1, 1590, 1, 1, 1, 1, 1]], "/spec/rows/0/8"),
        ([], "/spec/rows"),
    ],
)
def test_odd_operating_points_name_their_row(
    api: Api, rows: list[list[float]], pointer: str
) -> None:
    body = _with(profile(), "spec.rows", rows)
    assert api.wrong("PUT", "profiles/resnet50/T4", body)[0] == pointer


@pytest.mark.parametrize(
    ("path", "manifest", "pointer"),
    [
        ("gpu-types/T5", gpu_type("T5", power_cap_w=5), "/spec/power_cap_w"),
        (
            "gpu-types/T5",
            gpu_type("T5", price_usd_per_hour=0),
            "/spec/price_usd_per_hour",
        ),
        ("gpu-types/T5", gpu_type("T5", clocks_mhz=[3, 1]), "/spec/clocks_mhz"),
        (
            "nodes/n5",
            node("n5") | {"spec": {"gpus": [{"index": 1, "gpu_type": "T4"}] * 2}},
            "/spec/gpus",
        ),
        (
            "nodes/n5",
            node("n5") | {"spec": {"gpus": [{"index": 0, "gpu_type": "T5"}]}},
            "/spec/gpus",
        ),
        ("profiles/resnet50/T5", profile(gpu_type_name="T5"), "/spec/gpu_type"),
        ("profiles/resnet50/V100", profile(), "/spec"),
        (
            "nodes/n5",
            {**node("n5"), "metadata": {"name": "n5", "project": "team-a"}},
            "/metadata/project",
        ),
    ],
)
def test_odd_inventory_names_its_field(
    api: Api, path: str, manifest: object, pointer: str
) -> None:
    answer = api.call("PUT", path, manifest)
    assert answer.status_code == 422
    assert pointer in [entry["pointer"] for entry in answer.json()["errors"]]


def test_a_node_name_that_is_taken_is_told(api: Api) -> None:
    answer = api.call("PUT", "nodes/n1", node("n1", gpus=1), If_None_Match="*")
    assert (answer.status_code, answer.json()["code"]) == (412, "precondition-failed")


@pytest.mark.parametrize("name", ["Upper", "-a", "a" * 64, "a_b", "%00", "a%2Fb"])
def test_names_are_dns_labels(api: Api, name: str) -> None:
    assert api.status("GET", f"services/{name}") in (404, 422)
