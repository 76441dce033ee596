"""`get` and `describe`: tables for people, JSON and YAML for programs."""

import json
from typing import get_args

import pytest

from app.store.plan_states import PlanState
from tests.app.cli.fake_api import FakeApi, Json, service
from tests.app.runner import cli

NODE: dict[str, object] = {
    "apiVersion": "plimsoll/v1",
    "kind": "Node",
    "metadata": {"name": "n1", "labels": {"rack": "a"}},
    "spec": {
        "gpus": [{"index": 0, "gpu_type": "T4"}, {"index": 1, "gpu_type": "T4"}],
        "cordoned": False,
    },
    "status": {
        "last_seen_at": "2026-03-01T12:00:00Z",
        "silent_for_s": 1.4,
        "agent_version": "0.1.0",
        "observed_generation": 7,
        "wanted_generation": 7,
        "clock_skew_s": 0.01,
        "problems": [],
        "healthy_gpus": 2,
    },
}
GPU_TYPE: dict[str, object] = {
    "metadata": {"name": "RTX-2080-Ti"},
    "spec": {
        "price_usd_per_hour": "0.526000",
        "memory_mib": 15360.0,
        "idle_w": 10.0,
        "power_cap_w": 70.0,
        "clocks_mhz": [1110.0, 1350.0, 1590.0],
        "sm_percent_step": 5.0,
    },
    "status": {"provenance": ""},
}
PLAN: dict[str, object] = {
    "id": 12,
    "at": "2026-03-01T12:00:00+01:00",
    "state": "target",
    "policy": "hetsev",
    "generation": 5,
    "solution": "optimal",
    "cost_usd_per_hour": 3.06,
    "gap_percent": 0.25,
    "seconds": 0.0123,
    "method": "autoscale cp-sat + sharing cvxpy-clarabel + placement cp-sat",
    "reason": "",
}


def fleet() -> FakeApi:
    return FakeApi(
        objects={
            "services/chat": service(),
            "services/photo": service(
                "photo", reading=None, conditions=[], replicas={}
            ),
            "nodes/n1": NODE,
            "gpu-types/RTX-2080-Ti": GPU_TYPE,
            "plans/12": PLAN,
        }
    )


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        (
            "services",
            [
                "NAME   NETWORK  SLO            RPS  SLO MET  REPLICAS  READY",
                "chat   bert     p98 ≤ 50 ms  118.2  99.50 %         3  Serving",
                "photo  bert     p98 ≤ 50 ms      -        -         0  Unknown",
            ],
        ),
        (
            "nodes",
            [
                "NAME  STATE     SEEN  GENERATION  GPUS",
                "n1    ready  1 s ago           7  2 × T4",
            ],
        ),
        (
            "gpu-types",
            [
                "NAME         PRICE/H  MEMORY MIB  IDLE W  CAP W  CLOCKS MHZ",
                "RTX-2080-Ti   $0.526      15,360      10     70  1110 to 1590 (3)",
            ],
        ),
        (
            "plans",
            [
                "ID  AT                       STATE   SOLUTION  COST/H  GAP %  REASON OR METHOD",
                "12  2026-03-01 11:00:00 UTC  target  optimal    $3.06    0.2  "
                "autoscale cp-sat + sharing cvxpy-clarabel + placement cp-sat",
            ],
        ),
    ],
)
def test_a_table_has_one_line_for_each_object(kind: str, lines: list[str]) -> None:
    result = cli("get", kind, api=fleet())
    assert (result.code, result.out.splitlines()) == (0, lines)


@pytest.mark.parametrize(
    ("spec", "status", "state"),
    [
        ({}, {"last_seen_at": None}, "never"),
        ({}, {"silent_for_s": 40.0}, "silent"),
        ({}, {"wanted_generation": 6}, "ahead"),
        ({}, {"wanted_generation": 8}, "ready"),
        ({"cordoned": True}, {}, "cordoned"),
        ({}, {"healthy_gpus": 1}, "unhealthy"),
    ],
)
def test_a_node_s_state_says_what_is_wrong(
    spec: Json, status: Json, state: str
) -> None:
    node = {
        **NODE,
        "spec": {**written(NODE, "spec"), **spec},
        "status": {**written(NODE, "status"), **status},
    }
    line = cli("get nodes", api=FakeApi(objects={"nodes/n1": node})).out.splitlines()[1]
    assert line.split()[1] == state


def written(document: Json, part: str) -> Json:
    value = document[part]
    assert isinstance(value, dict)
    return value


def test_plans_that_changed_nothing_are_listed_on_demand() -> None:
    api = fleet()
    assert cli("get plans", api=api).code == 0
    assert cli("get plans --all", api=api).code == 0
    asked, everything = (
        request.url.params.get_list("state") for request in api.requests
    )
    assert {*asked, "kept"} == set(get_args(PlanState)) and "kept" not in asked
    assert everything == []
    assert "--all is for plans" in cli("get nodes --all", api=api).err


def test_json_lists_are_under_items_over_all_pages() -> None:
    api = fleet()
    api.page_size = 1
    items = json.loads(cli("get services -o json", api=api).out)["items"]
    assert [entry["metadata"]["name"] for entry in items] == ["chat", "photo"]
    assert (
        len(json.loads(cli("get services -o json --limit 1", api=api).out)["items"])
        == 1
    )


def test_profiles_are_listed_as_yaml_that_can_be_applied() -> None:
    listed: Json = {"id": 7, "network": "bert", "gpu_type": "T4"}
    manifest: Json = {"kind": "Profile", "spec": {"network": "bert", "rows": []}}
    api = FakeApi(
        objects={"profiles/bert/T4": manifest},
        answers={"GET profiles": {"items": [listed], "next_cursor": None}},
    )
    assert "kind: Profile" in cli("get profiles -o yaml", api=api).out
    assert "kind" not in cli("get profiles -o json", api=api).out


def test_watching_shows_it_again_until_interrupted_and_ends_well() -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    result = cli("get nodes -w", api=fleet(), sleep=sleep)
    assert (result.code, result.out.count("NAME"), pauses) == (0, 3, [2.0, 2.0, 2.0])


def test_describe_shows_fields_conditions_and_events() -> None:
    api = fleet()
    event = {
        "at": "2026-03-01T12:00:00Z",
        "kind": "ServiceCreated",
        "actor": "token/ann",
        "reason": "",
    }
    api.answers["GET events"] = {"items": [event], "next_cursor": None}
    lines = cli("describe service chat", api=api).out.splitlines()
    assert lines[0] == "Service chat"
    assert "    latency_ms: 50" in lines
    ready = [line for line in lines if line.split()[:2] == ["Ready", "Serving"]]
    assert ready == ["    Ready      Serving  3 replicas serve it"]
    assert "  2026-03-01 12:00:00 UTC  ServiceCreated  token/ann  -" in lines
    assert api.requests[-1].url.params["subject"] == "service/chat"


def test_describe_network_shows_the_choice_its_error_and_what_serving_says() -> None:
    known = {
        "gpu_type": "V100-32GB",
        "provenance": "measured",
        "technique": "linear_fractional",
        "cross_validated_error": 0.0214,
        "samples": 120,
        "correction": 1.034,
        "error": 0.012,
        "band": 0.08,
        "alarm_since": None,
    }
    guessed = dict.fromkeys(known) | {
        "gpu_type": "T4",
        "provenance": "estimated",
        "samples": 0,
    }
    drifted = {**known, "gpu_type": "L4", "error": 0.262}
    drifted["alarm_since"] = "2026-03-01T12:00:00Z"
    status = {"gpu_types": ["L4"], "predictions": [drifted, guessed, known]}
    network: Json = {"kind": "Network", "metadata": {"name": "bert"}, "status": status}
    lines = cli(
        "describe network bert", api=FakeApi(objects={"networks/bert": network})
    ).out.splitlines()
    first = lines.index("  predictions:")
    assert lines[first + 1 : first + 6] == [
        "    GPU TYPE   KNOWN AS   TECHNIQUE          ERROR  SAMPLES  SERVED     OFF",
        "    L4         measured   linear_fractional  2.1 %      120  × 1.03  26.2 %",
        "    T4         estimated  -                      -        0       -       -",
        "    V100-32GB  measured   linear_fractional  2.1 %      120  × 1.03   1.2 %",
        "    L4: off by more than 8.0 % since 2026-03-01 12:00:00 UTC; plans leave room",
    ]
    assert max(map(len, lines)) <= 80


def test_wide_adds_columns() -> None:
    line = cli("get services -o wide", api=fleet()).out.splitlines()[1]
    assert line.split() == [
        *("chat", "bert", "p98", "≤", "50", "ms", "118.2", "99.50", "%", "3"),
        *("default", "10", "auto", "130.0", "41.0", "T4=2,", "V100=1", "-", "Serving"),
    ]


def test_describe_lays_lists_of_objects_out_as_tables() -> None:
    lines = cli("describe node n1", api=fleet()).out.splitlines()
    assert lines[lines.index("  gpus:") + 1 :][:3] == [
        "    INDEX  GPU_TYPE",
        "    0      T4",
        "    1      T4",
    ]


def test_what_is_not_there_ends_with_1() -> None:
    result = cli("get service nope", api=fleet())
    assert (result.code, result.err) == (1, "Error: there is no services/nope\n")
    result = cli("get gpu nope", api=fleet())
    assert (result.code, result.err) == (
        1,
        "Error: there is no Gpu 'nope'\nHint: `plimsoll get gpus` lists them\n",
    )
