"""Budgets against figures that were worked out by hand: what is spent, who is told, and what is refused."""

from collections.abc import Iterator
from typing import Any

import pytest

from app.db.workloads.budgets import record_spent
from app.postgres import server as postgres
from tests.integration.api_harness import Api, Prepared, prepared, service
from tests.integration.test_api_tasks import task
from tests.integration.test_reports import a_busy_morning

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def morning(
    postgres_server: postgres.Server, migrated_template: str
) -> Iterator[Prepared]:
    with prepared(postgres_server, migrated_template, _spend) as found:
        yield found


@pytest.fixture
def api(morning: Prepared) -> Iterator[Api]:
    """The morning of `test_reports`, seen until 11:15: 3.60 USD today, of which 1.20 USD since 11:00."""
    with morning.running_api() as running:
        yield running


def _spend(api: Api) -> None:
    api.on_engine(a_busy_morning)


def budget(
    usd: str, *, project: str | None = None, period: str = "day", action: str = "warn"
) -> dict[str, Any]:
    spec = {"usd": usd, "project": project, "period": period, "action": action}
    return {"kind": "Budget", "metadata": {"name": "limit"}, "spec": spec}


def tell(api: Api) -> int:
    """What the leader does every minute."""
    now = api.clock.now()
    return api.on_connection(lambda connection: record_spent(connection, now))


def told(api: Api) -> list[tuple[str, str]]:
    events = api.get("events?subject=budget/limit")["items"]
    return [
        (each["kind"], each["reason"])
        for each in reversed(events)
        if each["actor"] == "controller"
    ]


@pytest.mark.parametrize(
    ("project", "period", "spent", "per_hour", "projected"),
    [
        # 10:00-11:15: 2.40 + 1.20. Two GPUs at 2.40 from here; 12.75 hours are left of the day, 45 minutes of the hour.
        (None, "day", 3.60, 4.80, 3.60 + 12.75 * 4.80),
        (None, "hour", 1.20, 4.80, 1.20 + 0.75 * 4.80),
        # chat and vision: 0.72 + 0.30, then 60 % of 0.60; chat has 60 % of one GPU in force.
        ("web", "day", 1.38, 1.44, 1.38 + 12.75 * 1.44),
        # March has 31 days.
        ("web", "month", 1.38, 1.44, 1.38 + (30 * 24 + 12.75) * 1.44),
    ],
)
def test_spent_and_projected(
    api: Api,
    project: str | None,
    period: str,
    spent: float,
    per_hour: float,
    projected: float,
) -> None:
    api.put("budgets/limit", budget("100", project=project, period=period))
    status = api.get("budgets/limit")["status"]
    assert status["spent_usd"] == spent
    assert status["spent_percent"] == spent
    assert status["usd_per_hour"] == per_hour
    assert status["projected_usd"] == pytest.approx(projected, abs=1e-9)


def test_each_level_is_told_once_and_again_where_the_limit_was_raised_meanwhile(
    api: Api,
) -> None:
    # Below 80 percent nothing is told.
    api.put("budgets/limit", budget("4.51"))
    assert (tell(api), told(api)) == (0, [])
    api.put("budgets/limit", budget("4.50"))
    assert [tell(api), tell(api)] == [1, 0]
    api.put("budgets/limit", budget("3.60"))
    assert [tell(api), tell(api)] == [1, 0]
    assert told(api) == [
        (
            "BudgetNearlySpent",
            "3.60 of 4.50 USD of this day are spent by the whole cluster",
        ),
        ("BudgetSpent", "3.60 of 3.60 USD of this day are spent by the whole cluster"),
    ]


def test_a_spent_budget_refuses_what_is_new_and_nothing_else(api: Api) -> None:
    api.put("budgets/limit", budget("1.38", project="web", action="block_new"))
    answer = api.call("PUT", "services/fresh?force=true", service("fresh", "web"))
    assert answer.status_code == 409
    assert answer.json()["detail"].startswith(
        "budget 'limit' accepts nothing new until 2026-03-02 00:00 UTC: 1.38 of 1.38 USD of this day are spent by "
        "project web"
    )
    assert api.status("PUT", "tasks/nightly", task(project="web")) == 409
    api.put("services/other?force=true", service("other", "default"))
    api.put("services/chat?force=true", service("chat", "web"))
    # One that is not spent, or only warns, refuses nothing.
    for number, (usd, action) in enumerate([("1.39", "block_new"), ("1.00", "warn")]):
        api.put("budgets/limit", budget(usd, project="web", action=action))
        name = f"new-{number}"
        api.put(f"services/{name}?force=true", service(name, "web"))


def test_a_budget_goes_and_a_wrong_one_is_refused(api: Api) -> None:
    api.put("budgets/limit", budget("100"))
    assert api.status("DELETE", "budgets/limit", If_Match="*") == 204
    assert api.status("GET", "budgets/limit") == 404
    for wrong in (
        budget("0"),
        budget("1", period="week"),
        budget("1", project="nobody"),
    ):
        assert api.status("PUT", "budgets/limit", wrong) == 422
    assert api.status("PUT", "budgets/limit", budget("1"), token="operator") == 403
