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
    service,
)

pytestmark = pytest.mark.integration
WEB = {"name": "web", "policy": "hetsev_greedy", "projects": ["team-a"]}
LOAD = {"chat": 100, "search": 50}


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
        running.observe(2, {"chat": 900, "search": 300}, generation=1)
        assert running.tick().state == "target"
        running.clock.advance(0.5)
        assert running.tick().state == "kept"
        running.observe(3, {}, generation=2)
        running.add_token("a-viewer", "viewer", ("team-a",))
        yield running


def _start(api: Api) -> None:
    fill(api)
    api.put("services/chat", service())
    api.put("services/search", service("search", project="team-a"))
    api.observe(1, LOAD)


def _propose(api: Api) -> int:
    api.put_policy(mode="approve")
    outcome = api.tick()
    assert outcome.state == "proposed" and outcome.plan_id is not None
    return outcome.plan_id


def test_plans_are_listed_by_state_and_shown_with_gpus_steps_and_demands(
    seen: Api,
) -> None:
    states = [item["state"] for item in seen.get("plans")["items"]]
    assert states == ["kept", "target", "superseded"]
    chosen = seen.get("plans?state=target&state=superseded")["items"]
    assert [item["id"] for item in chosen] == [2, 1]
    assert seen.status("GET", "plans?state=perhaps") == 422
    plan = seen.get("plans/2")
    assert (plan["generation"], plan["parent"]) == (2, 1)
    replicas = [replica for gpu in plan["gpus"] for replica in gpu["replicas"]]
    assert {replica["service"] for replica in replicas} == {"chat", "search"}
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
    told = seen.get("plans/2/explain")
    (chat, _) = told["services"]
    assert chat["planned_rps"] == pytest.approx(chat["demand_rps"])
    assert chat["capacity_rps"] >= chat["planned_rps"]
    assert chat["limit"].startswith("capacity: ")
    assert chat["replicas"][0]["execution_ms"] > 0.0
    assert told["steps"] and told["changes"]
    assert told["price_unit"] is None and told["gpus"] == []
    assert seen.get("plans/3/explain")["summary"].endswith(": nothing would change")
    text = seen.call("GET", "plans/2/explain", token="a-viewer").text
    assert "search" in text and "chat" not in text


def test_a_joint_plan_keeps_its_prices_and_is_explained_without_solving_again(
    api: Api,
) -> None:
    api.put_policy(policy="joint")
    plan_id = api.tick().plan_id
    told = api.get(f"plans/{plan_id}/explain")
    assert told["price_unit"] == "usd_per_hour"
    # Both fit one GPU, and both must run: its price may fall on either, on its requests or on its presence.
    worth = [
        one["worth_per_rps"] * one["demand_rps"] + one["price_per_replica"]
        for one in told["services"]
    ]
    assert sum(worth) > 0.0 and all(one["bindings"] for one in told["services"])
    assert [entry["gpu_type"] for entry in told["gpu_types"]] == ["T4"]
    (gpu, *_) = told["gpus"]
    assert gpu["price"] > 0.0 and gpu["alternatives"] == []
    assert sum(one["earns"] for one in gpu["replicas"]) > 0.0
    assert told["moves"]["replicas_started"] > 0
    assert told["lower_bound_usd_per_hour"] <= told["cost_usd_per_hour"]
    api.add_token("bound", "viewer", ("team-a",))
    told = api.get(f"plans/{plan_id}/explain", token="bound")
    del told["summary"]
    assert "chat" not in str(told)
    assert (told["moves"], told["gpu_types"]) == (None, [])


def test_a_thorough_explanation_has_alternatives_also_of_a_plan_without_prices(
    seen: Api,
) -> None:
    path = "plans/2/explain?thorough=true"
    told = seen.get(f"{path}&time_limit_s=20")
    assert told["price_unit"] == "usd_per_hour"
    alternatives = [one for gpu in told["gpus"] for one in gpu["alternatives"]]
    assert alternatives and all(one["loss"] >= -1e-3 for one in alternatives)
    assert seen.status("GET", path, token="a-viewer") == 403
    assert seen.status("GET", f"{path}&time_limit_s=90") == 422


def test_demand_is_the_rate_that_was_planned_for(seen: Api) -> None:
    newest = {item["service"]: item for item in seen.get("demand")["items"]}
    assert set(newest) == {"chat", "search"} and newest["chat"]["plan_id"] == 3
    history = seen.get("demand/chat?until=2026-03-01T13:00:00Z")["items"]
    assert [item["plan_id"] for item in history] == [1, 2, 3]
    (own,) = seen.get("demand", token="a-viewer")["items"]
    assert own["service"] == "search"


def test_the_status_of_a_service_says_that_it_is_served(seen: Api) -> None:
    status = seen.get("services/chat")["status"]
    told = {
        each["type"]: (each["status"], each["reason"]) for each in status["conditions"]
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
    assert api.post(f"plans/{plan_id}/approve")["state"] == "approved"
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
    assert api.post("policies/default/pause")["spec"]["paused"] is True
    assert api.tick().state is None
    assert api.post("policies/default/resume")["spec"]["paused"] is False
    assert api.tick().state == "target"
    kinds = [item["kind"] for item in api.get("events?subject=policy/default")["items"]]
    assert kinds == ["PolicyResumed", "PolicyPaused"]


def test_a_policys_governor_reaches_the_nodes_with_the_next_target_and_leaves_them_again(
    api: Api,
) -> None:
    for sequence, governor in ((2, "batch_dvfs"), (3, None)):
        api.put_policy(governor=governor)
        assert api.get("policies/default")["spec"]["governor"] == governor
        assert api.tick().state == "target"
        gpus = api.command(sequence=sequence, generation=sequence - 2)["gpus"]
        assert {gpu.get("governor", {}).get("name") for gpu in gpus} == {governor}
    (newest, *_) = api.get("events?kind=PlanPushed")["items"]
    assert newest["reason"] == "governor none"


def test_policy_versions_are_kept(api: Api) -> None:
    for period_s in (3.0, 4.0):
        api.put_policy(period_s=period_s)
    newest, *older = api.get("policies/default/versions")["items"]
    periods = [item["spec"]["period_s"] for item in (newest, *older)]
    assert periods == [4.0, 3.0, 5.0]
    version = api.get("policies/default")["status"]["version"]
    assert version == newest["metadata"]["generation"]


def test_a_what_if_answers_cost_and_changes_and_writes_nothing(api: Api) -> None:
    api.tick()
    before = api.get("plans")
    wanted = {"demand_factor": {"chat": 20.0}}
    more = api.post("plans/preview", wanted)
    cost, delta = more["cost_usd_per_hour"], more["cost_delta_usd_per_hour"]
    assert more["cost_before_usd_per_hour"] == pytest.approx(0.35)
    assert delta == pytest.approx(cost - 0.35)
    (chat, *_) = more["demands"]
    (planned, *_) = api.get("demand")["items"]
    assert chat["service"] == planned["service"] == "chat"
    rates = [each["arrival_rate_rps"] for each in (chat, planned)]
    assert rates[0] == pytest.approx(20.0 * rates[1])
    assert more["changes"] and not more["violations"]
    assert api.get("plans") == before
    assert api.get("events?kind=PlanPreviewed")["items"][0]["before"] == wanted


def test_a_what_if_takes_services_that_do_not_exist(seen: Api) -> None:
    wanted = {
        "services": [service("new")],
        "without": ["search"],
        "demand_rps": {"new": 30.0},
    }
    told = seen.post("plans/preview", wanted)
    assert [entry["service"] for entry in told["demands"]] == ["chat", "new"]
    assert "new" in {change["service"] for change in told["changes"]}
    assert seen.status("GET", "services/new") == 404


def test_scenarios_are_planned_each_by_itself_and_ranked_against_today(
    seen: Api,
) -> None:
    before = seen.get("plans")
    scenarios = [
        {"demand_factor": {"all": 4.0}},
        {"gpus": {"T4": 1}},
        {"name": "cheaper", "price_usd_per_hour": {"T4": 0.1}},
        {"slo_ms": {"chat": 500}, "without": ["search"]},
        {"services": [service("new")], "demand_rps": {"new": 30.0}},
    ]
    wanted = {"scenarios": scenarios, "policy": "joint", "time_limit_s": 20}
    told = seen.post("plans/preview", wanted)
    today, answers = told["today"], told["answers"]
    assert (today["question"], today["difference_usd_per_hour"]) == ("as it is", 0.0)
    by_name = {answer["question"]: answer for answer in answers}
    assert set(by_name) == {
        "all demand × 4",
        "+1 T4",
        "cheaper",
        "SLO of chat 500 ms, without search",
        "demand of new 30 rps, with new",
    }
    served = [each for each in answers if not each["unserved_percent"]]
    costs = [answer["cost_usd_per_hour"] for answer in served]
    assert costs == sorted(costs)
    assert by_name["+1 T4"]["difference_usd_per_hour"] <= 1e-9
    assert by_name["all demand × 4"]["difference_usd_per_hour"] >= 0.0
    for name, services in (
        ("SLO of chat 500 ms, without search", {"chat"}),
        ("demand of new 30 rps, with new", {"chat", "new", "search"}),
    ):
        assert {each["service"] for each in by_name[name]["mix"]} == services
    for answer in (today, *answers):
        taken = sum(each["sm_percent"] for each in answer["mix"])
        assert 0 < taken <= 100 * answer["gpus"]["T4"]
        assert {each["gpu_type"] for each in answer["mix"]} == {"T4"}
        assert all(each["replicas"] >= 1 for each in answer["mix"])
    assert seen.get("plans") == before


def test_no_scenario_has_no_answer_and_suggestions_have(seen: Api) -> None:
    plain = seen.post("plans/preview", {})
    assert (plain["today"], plain["answers"]) == (None, [])
    wanted = {"suggest": True, "policy": "hetsev_greedy"}
    found = seen.post("plans/preview", wanted)["answers"]
    suggested = {answer["question"] for answer in found}
    assert {"+1 T4", "-1 T4", "all demand × 1.2"} <= suggested


def test_a_what_if_about_a_service_on_a_training_network_is_refused(api: Api) -> None:
    metadata = {"name": "steps-training", "labels": {"kind": "training"}}
    training = {"kind": "Network", "metadata": metadata, "spec": {}}
    api.put("networks/steps-training", training)
    api.put("profiles/steps-training/T4", profile("steps-training"))
    asked = {"services": [service("new", network="steps-training")]}
    pointer, words = api.wrong("POST", "plans/preview", asked)
    assert pointer == "/services/0/spec/network"
    assert "run it as a task" in words


OF_T5 = {"services": [service("new", gpu_types={"allowed": ["T5"]})]}


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("preview", {"scenarios": [{}, {"gpus": {"t4": 1}}]}, "/scenarios/1/gpus"),
        ("preview", {"scenarios": [{"gpus": {"T4": -9}}]}, "/scenarios/0/gpus"),
        (
            "preview",
            {"scenarios": [{"demand_factor": {"caht": 2}}]},
            "/scenarios/0/demand_factor",
        ),
        (
            "preview",
            {"scenarios": [{"slo_ms": {"chat": 0}}]},
            "/scenarios/0/slo_ms/chat",
        ),
        ("preview", {"scenarios": [{"without": ["no"]}]}, "/scenarios/0/without"),
        (
            "preview",
            {"scenarios": [OF_T5]},
            "/scenarios/0/services/0/spec/gpu_types/allowed",
        ),
        ("preview", {"demand_factor": {"nobody": 2}}, "/demand_factor"),
        ("preview", {"without": ["nobody"]}, "/without"),
        ("preview", {"policy": "magic"}, "/policy"),
        ("preview", OF_T5, "/services/0/spec/gpu_types/allowed"),
        (
            "preview",
            {"services": [service("new", network="x")]},
            "/services/0/spec/network",
        ),
        ("preview", {"groups": [{**WEB, "policy": "hetsef"}]}, "/groups/0/policy"),
        ("compare", {"policies": ["joint", "hetsef"]}, "/policies"),
    ],
)
def test_a_what_if_that_makes_no_sense_is_named(
    seen: Api, path: str, body: object, pointer: str
) -> None:
    found, words = seen.wrong("POST", f"plans/{path}", body)
    assert found == pointer
    assert "scenarios" in pointer or "here are " in words


def test_policies_are_compared_on_what_runs_and_nothing_is_pushed(api: Api) -> None:
    api.tick()
    before = api.get("plans")
    wanted = {"policies": ["k8s_hpa", "joint", "inss"]}
    told = api.post("plans/compare", wanted)
    assert told["in_force"] == "joint"
    assert [each["policy"] for each in told["policies"]] == wanted["policies"]
    hpa, joint, inss = told["policies"]
    assert (inss["violations"], inss["reason"]) == (0, "")
    # The present plan runs already: joint starts nothing; the baseline wants whole GPUs.
    assert (joint["starts"], joint["violations"]) == (0, 0)
    assert hpa["cost_usd_per_hour"] >= joint["cost_usd_per_hour"] > 0.0
    assert joint["gpus"] == sum(joint["gpus_by_type"].values())
    assert api.get("plans") == before
    assert api.get("events?kind=PoliciesCompared")["items"][0]["before"] == wanted
    assert api.status("POST", "plans/compare", {}, token="viewer") == 403


def test_groups_are_kept_with_the_policy_and_each_group_s_policy_speaks(
    api: Api,
) -> None:
    labels = {"tier": "low"}
    low = {"name": "low", "policy": "joint", "labels": labels, "mode": "advise"}
    api.put_policy(groups=[WEB, low])
    web, kept = api.get("policies/default")["spec"]["groups"]
    assert web == {**WEB, "labels": {}, "mode": "auto"}
    assert (kept["labels"], kept["mode"]) == (labels, "advise")
    outcome = api.tick()
    assert outcome.state == "target"
    plan = api.get(f"plans/{outcome.plan_id}")
    document = plan["document"]
    assert document["policy"] == "joint; web: hetsev_greedy; low: joint"
    said = [words.split(",")[0] for words in document["report"]["messages"]]
    told = [words for words in said if "decided" in words]
    assert told == ["web: hetsev_greedy decided", "others: joint decided"]
    # Two services, of two groups: no GPU carries both.
    assert all(len(gpu["replicas"]) == 1 for gpu in plan["gpus"])
    assert api.get(f"plans/{outcome.plan_id}/explain")["steps"]
    # A what-if takes them, too.
    wanted = {"groups": [WEB], "from_running": True}
    previewed = api.post("plans/preview", wanted)["document"]
    assert previewed["policy"] == "joint; web: hetsev_greedy"


def test_labels_choose_a_group_and_its_mode_holds_a_plan_back(api: Api) -> None:
    labels = {"tier": "low"}
    labelled = service()
    labelled["metadata"]["labels"] = labels
    api.put("services/chat", labelled)
    low = {"name": "low", "policy": "hetsev", "labels": labels, "mode": "approve"}
    api.put_policy(groups=[low])
    outcome = api.tick()
    assert outcome.state == "proposed"
    assert "before a person approves" in outcome.reason


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
    metadata = {"name": "default"}
    body = {"kind": "Policy", "metadata": metadata, "spec": {"groups": groups}}
    assert seen.wrong("PUT", "policies/default", body)[0] == pointer


def test_the_first_plan_after_a_switch_waits_where_that_is_asked_for_and_the_next_one_does_not(
    api: Api,
) -> None:
    assert api.tick().state == "target"
    api.put_policy(policy="k8s_hpa", approve_switch=True)
    api.observe(2, {"chat": 600, "search": 300}, generation=1)
    proposed = api.tick()
    assert proposed.state == "proposed"
    api.post(f"plans/{proposed.plan_id}/approve")
    assert api.tick().state == "target"
    api.observe(3, {"chat": 2400, "search": 1200}, generation=2)
    assert api.tick().state in ("target", "kept")
