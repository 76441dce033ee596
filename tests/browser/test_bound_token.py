"""A token that is bound to projects: their services, and in place of pages about the whole cluster the reason."""

import pytest
from playwright.sync_api import expect

from app.web.pages import PAGES
from tests.browser.conftest import Open
from tests.browser.test_all_pages import ARGUMENTS
from tests.integration.api_harness import Api

pytestmark = pytest.mark.integration


def test_it_lands_on_its_services_and_sees_no_others(demo: Api, opened: Open) -> None:
    demo.add_token("bound", "viewer", ("team-b",))
    page = opened(demo, "services", scope="bound")
    expect(page.locator("tbody tr th a")).to_have_text(["search"])
    expect(
        page.get_by_role("navigation", name="Pages").get_by_role("link")
    ).to_have_text(["Services", "Tasks", "Simulate", "Cost"])

    page.context.clear_cookies()
    page.goto(f"{demo.client.base_url}/login")
    page.fill("#token", demo.secrets["bound"])
    page.click("button.primary")
    page.wait_for_url("**/services")


@pytest.mark.thorough
def test_pages_about_the_whole_cluster_say_why_they_are_empty(
    demo: Api, opened: Open
) -> None:
    demo.add_token("bound", "viewer", ("team-b",))
    page = opened(demo, "nodes", scope="bound")
    for each in (each for each in PAGES if each.is_of_cluster):
        address = each.address.replace("{argument:path}", "{argument}").replace(
            "{argument}", ARGUMENTS.get(each.name, "")
        )
        page.goto(f"{demo.client.base_url}{address}")
        expect(page.locator("#content")).to_contain_text(
            "your token is bound to projects"
        )
