"""Go to: Ctrl-K finds pages, services, nodes and plans by a few letters; "/" leads to the page's own search."""

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Open
from tests.browser.test_all_pages import findings
from tests.integration.api_harness import Api

pytestmark = pytest.mark.integration


def test_a_few_letters_lead_to_a_service(demo: Api, opened: Open) -> None:
    page = opened(demo, "fleet", scope="viewer")
    page.keyboard.press("Control+k")
    field = page.get_by_role("combobox", name="Go to")
    expect(field).to_be_focused()
    field.fill("thumb")
    found = page.locator("dialog [role=option]")
    expect(found).to_have_text(["servicethumbnails"])
    assert findings(page) == []
    page.keyboard.press("Enter")
    page.wait_for_url("**/services/thumbnails")


@pytest.mark.thorough
def test_arrows_choose_among_what_is_found(demo: Api, opened: Open) -> None:
    page = opened(demo, "fleet", scope="viewer")
    page.get_by_role("button", name="Go to").click()
    page.get_by_role("combobox", name="Go to").fill("n")
    expect(page.get_by_role("option", name="node n1")).to_be_visible()
    page.get_by_role("combobox", name="Go to").fill("plan")
    found = page.locator("dialog [role=option]")
    expect(found).to_have_text(["pagePlans", "plan1in force"])
    page.keyboard.press("ArrowDown")
    expect(found.nth(1)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    page.wait_for_url("**/plans/1")


def test_a_slash_leads_to_the_search_of_the_page(demo: Api, opened: Open) -> None:
    page = opened(demo, "services", scope="viewer")
    expect(page.locator("tbody tr th a")).to_have_count(3)
    page.keyboard.press("/")
    expect(page.get_by_label("Find")).to_be_focused()
    page.keyboard.type("chat")
    expect(page.locator("tbody tr th a")).to_have_count(1)
