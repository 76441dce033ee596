"""Events: the newest come by themselves, filters narrow, and what changed is readable."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Open
from tests.integration.api_harness import Api, service

pytestmark = pytest.mark.integration


def test_what_changes_comes_by_itself_with_its_fields(
    fresh_demo: Api, opened: Open
) -> None:
    page = opened(fresh_demo, "events")
    expect(page.locator("tbody tr").first).to_be_visible()
    fresh_demo.put("services/chat", service("chat", project="team-a", latency_ms=80.0))
    row = page.locator("tbody tr").first
    expect(row).to_contain_text("service/chat")
    row.locator("summary").click()
    expect(row.locator("dd", has=page.locator("del")).first).to_be_visible()
    expect(row.locator("dl")).to_contain_text("100 → 80")


def test_filters_are_kept_in_the_address(demo: Api, opened: Open) -> None:
    page = opened(demo, "events?subject=service/chat")
    expect(page.locator("tbody tr")).to_have_count(
        len(demo.get("events?subject=service/chat")["items"])
    )
    page.get_by_label("About").fill("node/n1")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tbody tr").first).to_contain_text("node/n1")
    assert "subject=node%2Fn1" in page.url
    page.goto(f"{demo.client.base_url}/events?kind=NeverHeardOf")
    expect(page.get_by_role("status").last).to_contain_text("Nothing like that")


def test_neighbours_of_a_kind_are_one_line_until_it_is_opened(
    demo: Api, opened: Open
) -> None:
    page = opened(demo, "events", scope="viewer")
    line = page.locator("tbody tr", has_text="ServiceCreated")
    expect(line).to_have_count(1)
    expect(line).to_contain_text("service/thumbnails, service/search, service/chat")
    line.get_by_role("button", name="× 3").click()
    expect(line).to_have_count(4)
    expect(page.get_by_role("button", name="× 3")).to_be_focused()
    page.get_by_role("button", name="× 3").click()
    expect(line).to_have_count(1)


def test_only_what_matters_is_shown_where_that_is_asked(
    fresh_demo: Api, opened: Open
) -> None:
    fresh_demo.call("POST", "nodes/n1/cordon")
    page = opened(fresh_demo, "events", scope="viewer")
    expect(page.locator("tbody tr", has_text="PlanPushed")).to_be_visible()
    page.get_by_label("Level").select_option("warnings and errors")
    expect(page.locator("tbody tr", has_text="PlanPushed")).to_have_count(0)
    expect(page.locator("tbody tr").first).to_contain_text("warning: NodeCordoned")
    assert "level=warn" in page.url
