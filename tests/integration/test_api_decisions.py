"""Plans over the API: lists, explanations, differences, approval, what-if, demand, reports, status of services."""

from collections.abc import Iterator

import pytest

from app.postgres import server as postgres
from tests.integration.api_harness import (
    Api,
    Prepared,
    fill,
    prepared,
    profile,
    reading,
    service,
)

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def started(
    postgres_server: postgres.Server, migrated_template: str
) -> Iterator[Prepared]:
    with prepared(postgres_server, migrated_template, _start) as found:
        yield found


@pytest.fixture
def api(started: Prepared) -> Iterator[Api]:
    with started.running_api() as running:
        yield running


@pytest.fixture(scope="module")
def seen(started: Prepared) -> Iterator[Api]:
    """An API with two targets and a kept plan, which tests of this module only read."""
    with started.running_api() as running:
        assert running.tick().state == "target"
        _observe(running, 2, arrivals=600, generation=1)
        assert running.tick().state == "target"
        running.clock.advance(0.5)
        assert running.tick().state == "kept"
        assert (
            running.sync(
                sequence=3, generation=2, window_start_s=running.clock.now_s() - 2.0
            ).status_code
            == 200
        )
        running.add_token("a-viewer", "viewer", ("team-a",))
        yield running


def _start(api: Api) -> None:
    fill(api)
    api.put("services/chat", service())
    api.put("services/search", service("search", project="team-a"))
    _observe(api, 1)


def _observe(
    api: Api, sequence: int, *, arrivals: int = 100, generation: int = 0
) -> None:
    """Two seconds with as many arrivals of each service; the whole load came to the one node."""
    api.clock.advance(2.0)
    readings = [reading("chat", arrivals), reading("search", arrivals // 2)]
    answer = api.sync(
        sequence=sequence,
        services=readings,
        generation=generation,
        window_start_s=api.clock.now_s() - 2.0,
    )
    assert answer.status_code == 200, answer.text


def _put_policy(api: Api, **spec: object) -> None:
    api.put(
        "policies/default",
        {"kind": "Policy", "metadata": {"name": "default"}, "spec": spec},
    )


def _propose(api: Api) -> int:
    _put_policy(api, mode="approve")
    outcome = api.tick()
    assert outcome.state == "proposed" and outcome.plan_id is not None
    return outcome.plan_id


def test_plans_are_listed_newest_first_and_by_state(seen: Api) -> None:
    states = [item["state"] for item in seen.get("plans")["items"]]
    assert states == ["kept", "target", "superseded"]
    assert [
        item["id"] for item in seen.get("plans?state=target&state=superseded")["items"]
    ] == [2, 1]
    assert seen.status("GET", "plans?state=perhaps") == 422


def test_a_plan_is_shown_with_gpus_steps_and_demands(seen: Api) -> None:
    plan = seen.get("plans/2")
    assert plan["generation"] == 2 and plan["parent"] == 1
    assert {
        replica["service"] for gpu in plan["gpus"] for replica in gpu["replicas"]
    } == {"chat", "search"}
    assert [entry["service"] for entry in plan["demands"]] == ["chat", "search"]
    assert plan["steps"][0]["technique"] == "joint"
    assert plan["document"]["report"]["cost_usd_per_hour"] == plan["cost_usd_per_hour"]


def test_a_difference_is_against_the_plan_that_it_was_made_from(seen: Api) -> None:
    assert seen.get("plans/1/diff")["before"] is None
    growth = seen.get("plans/2/diff")
    assert (growth["before"], growth["after"]) == (1, 2) and growth["changes"]
    assert growth == seen.get("plans/2/diff?against=1")
    assert seen.get("plans/2/diff?against=2")["changes"] == []
    assert seen.status("GET", "plans/2/diff?against=99") == 404


def test_an_explanation_says_what_limits_each_service(seen: Api) -> None:
    explanation = seen.get("plans/2/explain")
    chat = next(
        entry for entry in explanation["services"] if entry["service"] == "chat"
    )
    assert (
        chat["capacity_rps"] >= chat["planned_rps"] == pytest.approx(chat["demand_rps"])
    )
    assert chat["limit"].startswith("capacity: ")
    assert chat["replicas"][0]["execution_ms"] > 0.0
    assert explanation["steps"] and explanation["changes"]
    assert seen.get("plans/3/explain")["summary"].endswith(": nothing would change")


def _planned_jointly(api: Api) -> int:
    _put_policy(api, policy="joint")
    outcome = api.tick()
    assert outcome.state == "target" and outcome.plan_id is not None
    return outcome.plan_id


def test_a_joint_plan_keeps_its_prices_and_is_explained_without_solving_again(
    api: Api,
) -> None:
    told = api.get(f"plans/{_planned_jointly(api)}/explain")
    assert told["price_unit"] == "usd_per_hour"
    # Both fit one GPU, and both must run: its price may fall on either, on its requests or on its presence.
    worth = [
        one["worth_per_rps"] * one["demand_rps"] + one["price_per_replica"]
        for one in told["services"]
    ]
    assert sum(worth) > 0.0 and all(one["bindings"] for one in told["services"])
    assert [entry["gpu_type"] for entry in told["gpu_types"]] == ["T4"]
    (gpu, *_) = told["gpus"]
    assert (
        gpu["price"] > 0.0
        and sum(one["earns"] for one in gpu["replicas"]) > 0.0
        and gpu["alternatives"] == []
    )
    assert told["moves"]["replicas_started"] > 0
    assert told["lower_bound_usd_per_hour"] <= told["cost_usd_per_hour"]


def test_a_thorough_explanation_has_alternatives_also_of_a_plan_without_prices(
    seen: Api,
) -> None:
    plain = seen.get("plans/2/explain")
    assert plain["price_unit"] is None and plain["gpus"] == []
    told = seen.get("plans/2/explain?thorough=true&time_limit_s=20")
    assert told["price_unit"] == "usd_per_hour"
    alternatives = [one for gpu in told["gpus"] for one in gpu["alternatives"]]
    assert alternatives and all(one["loss"] >= -1e-3 for one in alternatives)
    assert seen.status("GET", "plans/2/explain?thorough=true", token="a-viewer") == 403
    assert seen.status("GET", "plans/2/explain?thorough=true&time_limit_s=90") == 422


def test_a_bound_token_sees_gpus_of_its_own_services_only(api: Api) -> None:
    plan_id = _planned_jointly(api)
    api.add_token("bound", "viewer", ("team-a",))
    told = api.call("GET", f"plans/{plan_id}/explain", token="bound").json()
    assert "chat" not in str(
        {name: value for name, value in told.items() if name != "summary"}
    )
    assert (told["moves"], told["gpu_types"]) == (None, [])


def test_a_bound_token_gets_the_explanation_of_its_own_services_only(seen: Api) -> None:
    text = seen.call("GET", "plans/2/explain", token="a-viewer").text
    assert "search" in text and "chat" not in text


def test_demand_is_the_rate_that_was_planned_for(seen: Api) -> None:
    newest = {item["service"]: item for item in seen.get("demand")["items"]}
    assert set(newest) == {"chat", "search"} and newest["chat"]["plan_id"] == 3
    history = seen.get("demand/chat?until=2026-03-01T13:00:00Z")["items"]
    assert [item["plan_id"] for item in history] == [1, 2, 3]
    assert [
        item["service"] for item in seen.get("demand", token="a-viewer")["items"]
    ] == ["search"]


def test_the_status_of_a_service_says_that_it_is_served(seen: Api) -> None:
    status = seen.get("services/chat")["status"]
    told = {
        condition["type"]: (condition["status"], condition["reason"])
        for condition in status["conditions"]
    }
    assert told == {
        "Ready": ("True", "Serving"),
        "TelemetryAvailable": ("True", "MetricsFound"),
        "Feasible": ("True", "DemandServed"),
        "Applied": ("True", "NodesFollow"),
        "PredictionsHold": ("Unknown", "NotServedYet"),
        "SLOMet": ("True", "AttainmentKept"),
    }
    assert status["reading"]["attainment"] == 1.0
    assert sum(status["replicas"].values()) >= 1
    assert seen.get("services")["items"][0]["status"] == status


def test_reports_are_cut_by_project_and_time(seen: Api) -> None:
    rows = seen.get("reports/plan_history")["rows"]
    assert len(rows) == 3
    assert seen.get("reports/plan_history?since=2030-01-01T00:00:00Z")["rows"] == []
    assert seen.status("GET", "reports/plan_history?project=team-a") == 422
    assert seen.status("GET", "reports/no_such_report") == 404
    assert "node_health" in [item["name"] for item in seen.get("reports")["items"]]


def test_a_proposed_plan_is_pushed_after_approval_only(api: Api) -> None:
    plan_id = _propose(api)
    assert api.sync(sequence=2).json()["command"] is None
    assert (
        api.call("POST", f"plans/{plan_id}/approve", token="operator").json()["state"]
        == "approved"
    )
    assert api.tick().state == "target"
    assert api.command(sequence=3)["generation"] == 1
    line = api.get("events?kind=PlanApproved")["items"][0]
    assert (line["actor"], line["plan_id"]) == ("token/operator", plan_id)
    again = api.call("POST", f"plans/{plan_id}/approve")
    assert (again.status_code, again.json()["code"]) == (409, "conflict")


def test_a_rejected_plan_stays_out(api: Api) -> None:
    plan_id = _propose(api)
    assert api.call("POST", f"plans/{plan_id}/reject").json()["state"] == "rejected"
    assert api.status("POST", f"plans/{plan_id}/approve") == 409
    assert api.status("POST", "plans/99/approve") == 404


def test_a_paused_loop_decides_nothing_until_it_is_resumed(api: Api) -> None:
    assert (
        api.call("POST", "policies/default/pause", token="operator").json()["spec"][
            "paused"
        ]
        is True
    )
    assert api.tick().state is None
    assert (
        api.call("POST", "policies/default/resume", token="operator").json()["spec"][
            "paused"
        ]
        is False
    )
    assert api.tick().state == "target"
    kinds = [item["kind"] for item in api.get("events?subject=policy/default")["items"]]
    assert kinds == ["PolicyResumed", "PolicyPaused"]


def test_a_policys_governor_reaches_the_nodes_with_the_next_target_and_leaves_them_again(
    api: Api,
) -> None:
    for sequence, governor in ((2, "batch_dvfs"), (3, None)):
        _put_policy(api, governor=governor)
        assert api.get("policies/default")["spec"]["governor"] == governor
        assert api.tick().state == "target"
        gpus = api.command(sequence=sequence, generation=sequence - 2)["gpus"]
        assert {gpu.get("governor", {}).get("name") for gpu in gpus} == {governor}
    (newest, *_) = api.get("events?kind=PlanPushed")["items"]
    assert newest["reason"] == "governor none"


def test_policy_versions_are_kept(api: Api) -> None:
    for period_s in (3.0, 4.0):
        _put_policy(api, period_s=period_s)
    versions = api.get("policies/default/versions")["items"]
    assert [item["spec"]["period_s"] for item in versions] == [4.0, 3.0, 5.0]
    assert (
        api.get("policies/default")["status"]["version"]
        == versions[0]["metadata"]["generation"]
    )


def test_a_what_if_answers_cost_and_changes_and_writes_nothing(api: Api) -> None:
    api.tick()
    before = api.get("plans")
    more = api.call(
        "POST", "plans/preview", {"demand_factor": {"chat": 20.0}}, token="operator"
    ).json()
    assert more["cost_before_usd_per_hour"] == pytest.approx(0.35)
    assert more["cost_delta_usd_per_hour"] == pytest.approx(
        more["cost_usd_per_hour"] - 0.35
    )
    rates = {entry["service"]: entry["arrival_rate_rps"] for entry in more["demands"]}
    planned = {
        item["service"]: item["arrival_rate_rps"] for item in api.get("demand")["items"]
    }
    assert rates["chat"] == pytest.approx(20.0 * planned["chat"])
    assert more["changes"] and not more["violations"]
    assert api.get("plans") == before
    assert api.get("events?kind=PlanPreviewed")["items"][0]["before"] == {
        "demand_factor": {"chat": 20.0}
    }


def test_a_what_if_takes_services_that_do_not_exist(api: Api) -> None:
    wanted = {
        "services": [service("new")],
        "without": ["search"],
        "demand_rps": {"new": 30.0},
    }
    told = api.call("POST", "plans/preview", wanted).json()
    assert [entry["service"] for entry in told["demands"]] == ["chat", "new"]
    assert {change["service"] for change in told["changes"]} == {"chat", "new"}
    assert api.status("GET", "services/new") == 404


def test_scenarios_are_planned_each_by_itself_and_ranked_against_today(
    api: Api,
) -> None:
    api.tick()
    before = api.get("plans")
    scenarios = [
        {"demand_factor": {"all": 4.0}},
        {"gpus": {"T4": 1}},
        {"name": "cheaper", "price_usd_per_hour": {"T4": 0.1}},
        {"slo_ms": {"chat": 500}, "without": ["search"]},
        {"services": [service("new")], "demand_rps": {"new": 30.0}},
    ]
    wanted = {"scenarios": scenarios, "policy": "joint", "time_limit_s": 20}
    told = api.call("POST", "plans/preview", wanted, token="operator").json()
    today, answers = told["today"], told["answers"]
    assert (today["question"], today["difference_usd_per_hour"]) == ("as it is", 0.0)
    assert {answer["question"] for answer in answers} == {
        "all demand × 4",
        "+1 T4",
        "cheaper",
        "SLO of chat 500 ms, without search",
        "demand of new 30 rps, with new",
    }
    served = [
        answer["cost_usd_per_hour"]
        for answer in answers
        if not answer["unserved_percent"]
    ]
    assert served == sorted(served)
    by_name = {answer["question"]: answer for answer in answers}
    assert by_name["+1 T4"]["difference_usd_per_hour"] <= 1e-9
    assert by_name["all demand × 4"]["difference_usd_per_hour"] >= 0.0
    assert all(sum(answer["gpus"].values()) > 0 for answer in answers)
    assert {
        each["service"] for each in by_name["SLO of chat 500 ms, without search"]["mix"]
    } == {"chat"}
    assert {
        each["service"] for each in by_name["demand of new 30 rps, with new"]["mix"]
    } == {"chat", "new", "search"}
    for answer in (today, *answers):
        taken = sum(each["sm_percent"] for each in answer["mix"])
        assert 0 < taken <= 100 * answer["gpus"]["T4"]
        assert all(
            each["gpu_type"] == "T4" and each["replicas"] >= 1 for each in answer["mix"]
        )
    assert api.get("plans") == before


def test_no_scenario_has_no_answer_and_suggestions_have(api: Api) -> None:
    plain = api.call("POST", "plans/preview", {}).json()
    assert (plain["today"], plain["answers"]) == (None, [])
    asked = api.call(
        "POST", "plans/preview", {"suggest": True, "policy": "hetsev_greedy"}
    ).json()
    assert {"+1 T4", "-1 T4", "all demand × 1.2"} <= {
        answer["question"] for answer in asked["answers"]
    }


@pytest.mark.parametrize(
    ("scenario", "pointer"),
    [
        ({"gpus": {"t4": 1}}, "/scenarios/1/gpus"),
        ({"gpus": {"T4": -9}}, "/scenarios/1/gpus"),
        ({"demand_factor": {"caht": 2}}, "/scenarios/1/demand_factor"),
        ({"slo_ms": {"chat": 0}}, "/scenarios/1/slo_ms/chat"),
        ({"without": ["nobody"]}, "/scenarios/1/without"),
        (
            {"services": [service("new", gpu_types={"allowed": ["T5"]})]},
            "/scenarios/1/services/0/spec/gpu_types/allowed",
        ),
    ],
)
def test_a_scenario_that_makes_no_sense_is_named(
    seen: Api, scenario: object, pointer: str
) -> None:
    answer = seen.call("POST", "plans/preview", {"scenarios": [{}, scenario]})
    assert (answer.status_code, answer.headers["Content-Type"]) == (
        422,
        "application/problem+json",
    )
    assert answer.json()["errors"][0]["pointer"] == pointer


def test_a_what_if_about_a_service_on_a_training_network_is_refused(api: Api) -> None:
    training = {
        "kind": "Network",
        "metadata": {"name": "steps-training", "labels": {"kind": "training"}},
        "spec": {},
    }
    api.put("networks/steps-training", training)
    api.put("profiles/steps-training/T4", profile("steps-training"))
    asked = {
        **service("new"),
        "spec": {**service()["spec"], "network": "steps-training"},
    }
    answer = api.call("POST", "plans/preview", {"services": [asked]})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/services/0/spec/network"
    assert "run it as a task" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("wanted", "pointer"),
    [
        ({"demand_factor": {"nobody": 2}}, "/demand_factor"),
        ({"without": ["nobody"]}, "/without"),
        ({"policy": "magic"}, "/policy"),
        (
            {"services": [service("new", gpu_types={"allowed": ["T5"]})]},
            "/services/0/spec/gpu_types/allowed",
        ),
        (
            {
                "services": [
                    {**service("new"), "spec": {**service()["spec"], "network": "x"}}
                ]
            },
            "/services/0/spec/network",
        ),
    ],
)
def test_a_what_if_about_unknown_names_says_what_there_is(
    seen: Api, wanted: object, pointer: str
) -> None:
    answer = seen.call("POST", "plans/preview", wanted)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == pointer
    assert "there are " in answer.json()["detail"]


def test_policies_are_compared_on_what_runs_and_nothing_is_pushed(api: Api) -> None:
    api.tick()
    before = api.get("plans")
    told = api.call(
        "POST",
        "plans/compare",
        {"policies": ["k8s_hpa", "joint", "inss"]},
        token="operator",
    ).json()
    assert told["in_force"] == "joint"
    hpa, joint, inss = told["policies"]
    assert [hpa["policy"], joint["policy"], inss["policy"]] == [
        "k8s_hpa",
        "joint",
        "inss",
    ]
    assert (inss["violations"], inss["reason"]) == (0, "")
    # The present plan runs already: joint starts nothing anew; the baseline wants whole GPUs.
    assert (joint["starts"], joint["violations"]) == (0, 0)
    assert hpa["cost_usd_per_hour"] >= joint["cost_usd_per_hour"] > 0.0
    assert joint["gpus"] == sum(joint["gpus_by_type"].values())
    assert api.get("plans") == before
    assert api.get("events?kind=PoliciesCompared")["items"][0]["before"] == {
        "policies": ["k8s_hpa", "joint", "inss"]
    }


def test_a_comparison_wants_policies_that_exist_and_an_operator(seen: Api) -> None:
    answer = seen.call("POST", "plans/compare", {"policies": ["joint", "hetsef"]})
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (
        422,
        "/policies",
    )
    assert "'hetsef'" in answer.json()["detail"]
    assert seen.status("POST", "plans/compare", {}, token="viewer") == 403


WEB = {"name": "web", "policy": "hetsev_greedy", "projects": ["team-a"]}


def test_groups_are_kept_with_the_policy_and_each_group_s_policy_speaks(
    api: Api,
) -> None:
    _put_policy(
        api,
        groups=[
            WEB,
            {
                "name": "low",
                "policy": "joint",
                "labels": {"tier": "low"},
                "mode": "advise",
            },
        ],
    )
    spec = api.get("policies/default")["spec"]
    assert spec["groups"][0] == {**WEB, "labels": {}, "mode": "auto"}
    assert (spec["groups"][1]["labels"], spec["groups"][1]["mode"]) == (
        {"tier": "low"},
        "advise",
    )
    outcome = api.tick()
    assert outcome.state == "target"
    document = api.get(f"plans/{outcome.plan_id}")["document"]
    assert document["policy"] == "joint; web: hetsev_greedy; low: joint"
    told = [
        words.split(",")[0]
        for words in document["report"]["messages"]
        if "decided" in words
    ]
    assert told == ["web: hetsev_greedy decided", "others: joint decided"]
    # Two services, of two groups: no GPU carries both.
    assert all(
        len(gpu["replicas"]) == 1 for gpu in api.get(f"plans/{outcome.plan_id}")["gpus"]
    )
    assert api.get(f"plans/{outcome.plan_id}/explain")["steps"]


def test_labels_choose_a_group_and_its_mode_holds_a_plan_back(api: Api) -> None:
    labelled = service()
    labelled["metadata"]["labels"] = {"tier": "low"}
    api.put("services/chat", labelled)
    _put_policy(
        api,
        groups=[
            {
                "name": "low",
                "policy": "hetsev",
                "labels": {"tier": "low"},
                "mode": "approve",
            }
        ],
    )
    outcome = api.tick()
    assert (outcome.state, "before a person approves" in outcome.reason) == (
        "proposed",
        True,
    )


@pytest.mark.parametrize(
    ("groups", "pointer"),
    [
        ([{**WEB, "policy": "hetsef"}], "/spec/groups/0/policy"),
        ([{"name": "all", "policy": "joint"}], "/spec/groups/0"),
        ([WEB, WEB], "/spec/groups"),
        ([{**WEB, "mode": "off"}], "/spec/groups/0/mode"),
    ],
)
def test_groups_that_make_no_sense_are_named(
    seen: Api, groups: object, pointer: str
) -> None:
    body = {
        "kind": "Policy",
        "metadata": {"name": "default"},
        "spec": {"groups": groups},
    }
    answer = seen.call("PUT", "policies/default", body, If_Match="*")
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (
        422,
        pointer,
    ), answer.text


def test_the_first_plan_after_a_switch_waits_where_that_is_asked_for_and_the_next_one_does_not(
    api: Api,
) -> None:
    assert api.tick().state == "target"
    _put_policy(api, policy="k8s_hpa", approve_switch=True)
    _observe(api, 2, arrivals=600, generation=1)
    proposed = api.tick()
    assert proposed.state == "proposed"
    assert (
        api.status("POST", f"plans/{proposed.plan_id}/approve", token="operator") == 200
    )
    assert api.tick().state == "target"
    _observe(api, 3, arrivals=2400, generation=2)
    assert api.tick().state in ("target", "kept")


def test_a_what_if_takes_groups_and_goes_from_what_runs(api: Api) -> None:
    api.tick()
    wanted = {"groups": [WEB], "from_running": True}
    told = api.call("POST", "plans/preview", wanted, token="operator").json()
    assert told["document"]["policy"] == "joint; web: hetsev_greedy"
    bad = api.call("POST", "plans/preview", {"groups": [{**WEB, "policy": "hetsef"}]})
    assert (bad.status_code, bad.json()["errors"][0]["pointer"]) == (
        422,
        "/groups/0/policy",
    )
