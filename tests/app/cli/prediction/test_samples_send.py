"""`plimsoll samples send` and `plimsoll samples fit`: samples and fits on the control plane."""

import json

import yaml

from app.cli.prediction.samples_send import CHUNK
from tests.app.cli.fake_api import FakeApi, Json, problem_document
from tests.app.runner import Result, cli

HEADER = "network,gpu_type,batch,sm_percent,latency_ms"
NETWORKS: dict[str, Json] = {
    f"networks/{name}": {"kind": "Network", "metadata": {"name": name}}
    for name in ("bert", "resnet50")
}
COUNTED = {"gpu_type": "T4", "sample_count": 20}
FITTED: Json = {
    "network": "bert",
    "fits": [
        {**COUNTED, "quantity": "memory_mib", "technique": "memory"},
        {
            **COUNTED,
            "quantity": "latency_ms",
            "technique": "hierarchical_kriging",
            "cross_validated_error": 0.021,
            "cross_validated_error_p90": 0.05,
        },
    ],
    "verdicts": [
        {
            "gpu_type": "T4",
            "applied": True,
            "reason": "no worse than the profile in force (3.0 %)",
        },
        {
            "gpu_type": "V100",
            "applied": False,
            "reason": "there are too few samples to judge it",
        },
    ],
}


def kept(received: int, added: int) -> Json:
    return {"received": received, "added": added}


def send(
    *rows: str, api: FakeApi, options: tuple[str, ...] = (), header: str = HEADER
) -> Result:
    """Sends these rows from stdin."""
    return cli(
        "samples send -", *options, api=api, stdin="\n".join((header, *rows)) + "\n"
    )


def test_samples_go_to_their_networks_with_what_is_known_of_them() -> None:
    answers = {
        "POST networks/bert/samples": kept(2, 1),
        "POST networks/resnet50/samples": kept(1, 1),
    }
    api = FakeApi(objects=dict(NETWORKS), answers=answers)
    header = f"{HEADER},power_w,time_quota_percent,neighbours"
    rows = (
        "bert,T4,1,50,10,,,",
        "resnet50,T4,1.5,50,9,30,80,bert:2:25",
        "bert,T4,2,50,12,,,",
    )
    result = send(*rows, api=api, header=header, options=("--source", "bench"))
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        "NETWORK   SAMPLES  NEW  KNOWN",
        "bert            2    1      1",
        "resnet50        1    1      0",
    ]
    (to_bert, to_resnet50) = api.sent("POST")
    assert to_bert["source"] == to_resnet50["source"] == "bench"
    first = {
        "gpu_type": "T4",
        "batch": 1.0,
        "sm_percent": 50.0,
        "time_quota_percent": 100.0,
        "latency_ms": 10.0,
        "neighbours": [],
    }
    assert to_bert["samples"] == [first, {**first, "batch": 2.0, "latency_ms": 12.0}]
    neighbour = {"network": "bert", "batch": 2.0, "sm_percent": 25.0}
    changed = {"batch": 1.5, "time_quota_percent": 80.0, "latency_ms": 9.0}
    changed |= {"power_w": 30.0, "neighbours": [neighbour]}
    assert to_resnet50["samples"] == [{**first, **changed}]


def test_many_samples_go_in_several_requests_and_are_counted_together() -> None:
    api = FakeApi(
        objects=dict(NETWORKS), answers={"POST networks/bert/samples": kept(CHUNK, 7)}
    )
    result = send(
        *(f"bert,T4,{1 + row},50,10" for row in range(CHUNK + 1)),
        api=api,
        options=("-o", "json"),
    )
    assert [len(body["samples"]) for body in api.sent("POST")] == [CHUNK, 1]  # type: ignore[arg-type]
    (entry,) = json.loads(result.out)["items"]
    assert entry == {
        "network": "bert",
        "received": 2 * CHUNK,
        "added": 14,
        "known": 2 * CHUNK - 14,
    }


def test_an_unknown_network_is_named_with_its_line_before_anything_is_sent() -> None:
    api = FakeApi(
        objects=dict(NETWORKS), answers={"POST networks/bert/samples": kept(1, 1)}
    )
    result = send("bert,T4,1,50,10", "resnet5,T4,1,50,10", api=api)
    assert (result.code, api.sent("POST")) == (1, [])
    assert result.err.startswith(
        "Error: stdin:3: column network: no network is called 'resnet5'; did you mean resnet50?"
    )
    assert "`plimsoll apply`" in send("x,T4,1,50,10", api=api).err


def test_what_the_control_plane_refuses_is_named_with_file_line_and_column() -> None:
    """The second request's second sample is the file's last but one line."""
    words = "no GPU type is called 'T5'; there are T4"
    refused = problem_document(
        422, f"samples.1.gpu_type: {words}", pointers={"/samples/1/gpu_type": words}
    )
    api = FakeApi(
        objects=dict(NETWORKS), answers={"POST networks/bert/samples": kept(2, 2)}
    )
    api.problems["POST networks/resnet50/samples"] = refused
    rows = (
        "resnet50,T4,1,50,9",
        "bert,T4,1,50,10",
        "resnet50,T5,1,50,9",
        "bert,T4,2,50,10",
    )
    result = send(*rows, api=api)
    assert (result.code, result.err) == (
        1,
        f"Error: stdin:4: column gpu_type: {words}\n",
    )


def test_a_fit_shows_errors_and_what_was_applied() -> None:
    api = FakeApi(answers={"POST networks/bert/fit": FITTED})
    result = cli("samples fit bert --apply", api=api)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines() == [
        "QUANTITY    GPU TYPE  SAMPLES  TECHNIQUE             ERROR    P90",
        "latency_ms  T4             20  hierarchical_kriging  2.1 %  5.0 %",
        "memory_mib  T4             20  memory                    -      -",
        "",
        "GPU TYPE  OPERATING POINTS   WHY",
        "T4        new ones in force  no worse than the profile in force (3.0 %)",
        "V100      unchanged          there are too few samples to judge it",
    ]
    assert [request.url.query for request in api.requests] == [b"apply=true"]


def test_a_fit_that_is_not_applied_says_how() -> None:
    api = FakeApi(answers={"POST networks/bert/fit": FITTED})
    assert (
        cli("samples fit bert", api=api)
        .out.splitlines()[-1]
        .startswith("`--apply` uses them where")
    )
    assert [request.url.query for request in api.requests] == [b"apply=false"]
    printed = [
        cli("samples fit bert -o", form, api=api).out for form in ("json", "yaml")
    ]
    assert json.loads(printed[0]) == yaml.safe_load(printed[1]) == FITTED
