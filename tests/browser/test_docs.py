"""The API's reference, in a browser: it is drawn under the page's own policy, and no other host is asked."""

import pytest
from playwright.sync_api import BrowserContext, expect

from tests.integration.api_harness import Api

pytestmark = pytest.mark.integration


@pytest.mark.thorough
def test_the_reference_is_drawn_without_asking_another_host(
    empty: Api, context: BrowserContext
) -> None:
    asked: list[str] = []
    said: list[str] = []
    page = context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    # Whatever the policy forbids is an error of the console.
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(f"{empty.client.base_url}/docs")
    operation = page.locator(".opblock-get").first
    expect(operation).to_be_visible()
    operation.locator("button.opblock-summary-control").click()
    expect(operation.locator(".opblock-body .responses-wrapper")).to_be_visible()
    assert said == []
    foreign = [
        url
        for url in asked
        if not url.startswith((str(empty.client.base_url), "data:"))
    ]
    assert foreign == []
