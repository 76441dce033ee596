"""A budget that degrades, on a real database: from what was spent, over the tick, to what is planned; and back."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from app.db.workloads.budgets import step_degraded
from tests.app.runner import cli
from tests.integration.api_harness import (
    Api,
    Prepared,
    gpu_type,
    reading,
    service,
)

pytestmark = pytest.mark.integration

RATES = {"nightly": 800, "chat": 40}
"""Requests in a window of two seconds."""


@pytest.fixture
def api(small_fleet: Prepared) -> Iterator[Api]:
    """Two T4s that serve nightly of low and chat of critical priority; ten minutes of a day that began at noon."""
    with small_fleet.running_api() as running:
        running.put("services/nightly", service("nightly", "team-a", priority="batch"))
        running.put("services/chat", service("chat", "team-a", priority="critical"))
        hear(running, 1)
        running.tick()
        hear(running, 2, after_s=600.0)
        yield running


def hear(api: Api, sequence: int, *, after_s: float = 0.0) -> None:
    """The node reports what comes in, now."""
    api.clock.advance(after_s)
    start = api.clock.now().timestamp() - 2.0
    services = [reading(name, arrivals) for name, arrivals in RATES.items()]
    targets = api.get("plans?state=target&limit=1")["items"]
    generation = targets[0]["generation"] if targets else 0
    answer = api.sync(
        sequence=sequence,
        window_start_s=start,
        services=services,
        generation=generation,
    )
    assert answer.status_code == 200, answer.text


def look(api: Api) -> int:
    """What the leader does every minute."""
    now = api.clock.now()
    return api.on_connection(lambda connection: step_degraded(connection, now))


def put(api: Api, usd: Decimal, **changes: object) -> None:
    spec = {"usd": str(usd), "project": "team-a", "period": "day", "action": "degrade"}
    metadata = {"name": "limit"}
    body = {"kind": "Budget", "metadata": metadata, "spec": {**spec, **changes}}
    api.put("budgets/limit", body)


def status(api: Api) -> Any:
    return api.get("budgets/limit")["status"]


def planned(api: Api) -> dict[str, tuple[float, str]]:
    """Rate and method by service, of the newest plan."""
    return {
        each["service"]: (each["arrival_rate_rps"], each["method"])
        for each in api.get("demand")["items"]
    }


def spend(api: Api) -> None:
    """A budget of which ten minutes at the present plan are twice the day's."""
    put(api, Decimal(1000))
    put(api, Decimal(status(api)["usd_per_hour"] / 12).quantize(Decimal("0.000001")))


def told(api: Api) -> list[str]:
    items = api.get("events?subject=budget/limit")["items"]
    return [each["kind"] for each in reversed(items) if each["actor"] == "controller"]


def test_a_spent_budget_plans_the_least_important_service_for_less_until_its_day_is_over(
    api: Api,
) -> None:
    whole, dear = planned(api), status_of_rate(api)
    spend(api)
    assert (look(api), look(api)) == (1, 0)
    api.tick()
    (rate, method), kept = planned(api)["nightly"], planned(api)["chat"]
    assert rate == pytest.approx(whole["nightly"][0] / 2, rel=0.01)
    assert method == "degraded"
    assert kept == (pytest.approx(whole["chat"][0], rel=0.01), whole["chat"][1])
    assert status(api)["degraded"] == [{"service": "nightly", "demand_percent": 50.0}]
    assert status(api)["usd_per_hour"] < dear

    hear(api, 3, after_s=12 * 3600.0 - 540.0)  # One minute of the new day.
    assert (look(api), status(api)["degraded"]) == (1, [])
    api.tick()
    assert planned(api)["nightly"][0] == pytest.approx(whole["nightly"][0], rel=0.01)
    assert planned(api)["nightly"][1] != "degraded"
    assert told(api) == ["BudgetDegrades", "BudgetRestores"]


def test_nothing_is_cut_on_gpus_that_are_paid_for_anyway(api: Api) -> None:
    spend(api)
    price = api.get("gpu-types/T4")["spec"]["price_usd_per_hour"]
    api.put("gpu-types/T4", gpu_type(price_usd_per_hour=price, paid="all"))
    assert (look(api), status(api)["degraded"]) == (0, [])
    # Where they are rented the same budget is exceeded.
    api.put("gpu-types/T4", gpu_type(price_usd_per_hour=price, paid=0))
    assert look(api) == 1


def status_of_rate(api: Api) -> float:
    put(api, Decimal(1000))
    return float(status(api)["usd_per_hour"])


def test_the_plan_the_explanation_and_the_commands_say_so(api: Api) -> None:
    spend(api)
    look(api)
    api.tick()
    newest = api.get("plans?limit=1")["items"][0]["id"]
    found = api.get(f"plans/{newest}/explain")
    words = "budget limit is exceeded: planned of the demand: nightly for 50 %"
    assert words in found["messages"]
    limits = {each["service"]: each["limit"] for each in found["services"]}
    assert limits["nightly"].startswith(
        "an exceeded budget: a part of its demand is left out; "
    )
    assert "budget" not in limits["chat"]
    assert words in command(api, "explain", str(newest))
    assert "degrade: 1 service for less" in command(api, "get", "budgets")


def command(api: Api, *words: str) -> str:
    """What the command prints, asking that control plane."""

    result = cli(
        *words, api=api.forward, environment={"PLIMSOLL_TOKEN": api.secrets["admin"]}
    )
    assert result.code == 0, result.err
    return result.out


def test_it_goes_down_step_by_step_and_a_raised_or_other_budget_gives_all_back(
    api: Api,
) -> None:
    spend(api)
    api.put("services/chat", service("chat", "team-a", priority="standard"))
    shares = []
    for sequence in range(3, 8):
        look(api)
        cut = status(api)["degraded"]
        shares.append({each["service"]: each["demand_percent"] for each in cut})
        hear(api, sequence, after_s=300.0)
        api.tick()
    nightly, both = {"nightly": 25.0}, {"chat": 25.0, "nightly": 25.0}
    assert shares == [{"nightly": 50.0}, nightly, nightly | {"chat": 50.0}, both, both]
    put(api, Decimal(1000), action="warn")
    assert (look(api), status(api)["degraded_services"]) == (1, 0)
    assert told(api)[-2:] == ["BudgetDegrades", "BudgetRestores"]


def test_it_goes_no_further_before_a_plan_with_its_last_step_is_in_force(
    api: Api,
) -> None:
    spend(api)
    assert look(api) == 1
    hear(api, 3, after_s=600.0)
    assert look(api) == 0  # Nothing was decided since.
    api.put_policy(mode="approve")
    api.tick()
    hear(api, 4, after_s=600.0)
    assert (
        look(api) == 0
    )  # A person has not approved yet, though nothing else comes from the next tick.
    api.tick()
    assert look(api) == 0
    waiting = api.get("plans?state=proposed&limit=1")["items"][0]["id"]
    assert api.status("POST", f"plans/{waiting}/approve") == 200
    api.tick()
    assert look(api) == 1
    assert status(api)["degraded"] == [{"service": "nightly", "demand_percent": 25.0}]


def test_a_protected_priority_may_be_named_and_a_budget_that_is_not_exceeded_takes_nothing(
    api: Api,
) -> None:
    put(api, Decimal(1000), protected_priority="standard")
    assert api.get("budgets/limit")["spec"]["protected_priority"] == 10.0
    assert (look(api), status(api)["degraded"]) == (0, [])
    put(api, Decimal("0.000001"), protected_priority="batch")
    assert look(api) == 0
    spec = {"usd": "1", "action": "degrade", "protected_priority": "highest"}
    wrong = {"kind": "Budget", "metadata": {"name": "other"}, "spec": spec}
    assert api.status("PUT", "budgets/other", wrong) == 422
