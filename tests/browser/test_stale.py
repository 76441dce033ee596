"""A server that stops: the page says since when it has no news, and its figures lose their colours."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.dashboards import running_dashboard
from tests.browser.test_all_pages import findings
from tests.integration.api_harness import Prepared

pytestmark = pytest.mark.integration


def test_a_page_without_news_says_so_and_is_grey(
    demo_fleet: Prepared, page: Page
) -> None:
    with running_dashboard(demo_fleet) as api:
        page.goto(f"{api.client.base_url}/login")
        page.fill("#token", api.secrets["viewer"])
        page.click("button.primary")
        headline = page.locator(".headline strong")
        expect(headline).to_contain_text("search misses its SLO")
        colour = headline.evaluate("each => getComputedStyle(each).color")
        expect(page.locator("#stale")).to_be_hidden()
    banner = page.get_by_role("alert").filter(has_text="Not updated since")
    expect(banner).to_have_text(
        re.compile(
            r"Not updated since \d\d:\d\d:\d\d: the control plane does not answer"
        )
    )
    grey = headline.evaluate("each => getComputedStyle(each).color")
    assert grey != colour
    # Grey, and still to be read.
    assert findings(page) == []
