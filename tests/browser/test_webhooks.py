"""Webhooks on the page of events: for admins alone, their secret shown once, deleted when asked twice."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Open
from tests.browser.test_all_pages import findings, settle
from tests.integration.api_harness import Api
from tests.integration.receivers import project, running_receiver, send, webhook

pytestmark = pytest.mark.integration


def section(page: Page) -> Page:
    """The page with its section of webhooks open."""
    page.locator("#webhooks > summary").click()
    expect(page.get_by_role("form", name="New webhook")).to_be_visible()
    return page


def test_a_new_one_shows_its_secret_once_and_is_deleted_when_asked_twice(
    demo: Api, opened: Open
) -> None:
    page = section(opened(demo, "events", scope="admin"))
    expect(page.locator("#webhooks")).to_contain_text("Events are sent nowhere yet")
    page.get_by_label("Name").fill("chat")
    page.get_by_label("URL").fill("https://hooks.example.com/plimsoll")
    page.get_by_label("Kinds of events").fill("BudgetSpent, PlanPushed")
    page.get_by_role("button", name="Create").click()
    secret = page.get_by_label("Secret of chat").input_value()
    assert secret.startswith("whsec_")
    row = page.locator("table.webhooks tbody tr")
    expect(row).to_contain_text("BudgetSpent, PlanPushed")
    expect(row).to_contain_text("nothing sent yet")
    assert demo.get("webhooks/chat")["spec"]["kinds"] == [
        "BudgetSpent",
        "PlanPushed",
    ]
    page.get_by_role("button", name="I have it").click()
    assert secret not in page.content()
    page.get_by_role("button", name="Delete chat").click()
    page.get_by_role("button", name="No").click()
    assert len(demo.get("webhooks")["items"]) == 1
    page.get_by_role("button", name="Delete chat").click()
    page.get_by_role("button", name="Yes, delete chat").click()
    expect(page.locator("#webhooks")).to_contain_text("Events are sent nowhere yet")
    assert demo.get("webhooks")["items"] == []


@pytest.mark.thorough
def test_one_that_is_there_is_not_replaced(fresh_demo: Api, opened: Open) -> None:
    fresh_demo.put("webhooks/chat", webhook("https://first.example/"))
    page = section(opened(fresh_demo, "events", scope="admin", refusals=(412,)))
    page.get_by_label("Name").fill("chat")
    page.get_by_label("URL").fill("https://second.example/")
    page.get_by_role("button", name="Create").click()
    expect(page.locator("#webhooks").get_by_role("alert")).to_contain_text(
        "a webhook called chat already"
    )
    assert fresh_demo.get("webhooks/chat")["spec"]["url"] == "https://first.example/"


@pytest.mark.thorough
def test_failures_and_what_waits_are_shown_until_it_delivers(
    fresh_demo: Api, opened: Open
) -> None:
    with running_receiver() as receiver:
        receiver.status = 500
        fresh_demo.put("webhooks/chat", webhook(receiver.url))
        project(fresh_demo, "team-c")
        send(fresh_demo)
        page = section(opened(fresh_demo, "events", scope="admin"))
        row = page.locator("table.webhooks tbody tr")
        expect(row).to_contain_text("tries again")
        expect(row).to_contain_text("answered 500")
        expect(row.locator("td.number")).to_have_text("1")
        expect(page.locator("#webhooks > summary")).to_contain_text("1 failing")
        assert findings(page) == []
        receiver.status = 204
        assert send(fresh_demo, after_s=10.0) == 1
        # It looks by itself while it is open.
        expect(row).to_contain_text("delivers")
        expect(row.locator("td.number")).to_have_text("0")


def test_others_than_admins_do_not_see_them(demo: Api, opened: Open) -> None:
    page = opened(demo, "events")
    settle(page)
    expect(page.locator("tbody tr").first).to_be_visible()
    assert page.locator("#webhooks").count() == 0
