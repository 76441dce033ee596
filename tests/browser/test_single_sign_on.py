"""A person logs in at a real identity provider in a real browser, which sends no strict cookie after its redirect."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Page, expect

from app.base.settings import Settings
from tests.browser.conftest import Picture
from tests.browser.dashboards import running_dashboard
from tests.integration.api_harness import Api, Prepared
from tests.integration.identities import running_identities

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def signed_on(demo_fleet: Prepared) -> Iterator[Api]:
    """A control plane at 127.0.0.1 whose provider is at localhost, which is another site."""
    with ExitStack() as stack:

        def settings(public_url: str) -> Settings:
            issuer = stack.enter_context(running_identities(public_url))
            return Settings(
                public_url=public_url,
                oidc_issuer=issuer,
                oidc_client_id="plimsoll",
                oidc_client_secret="plimsoll-secret",
                oidc_groups={"search-team": "operator@team-a", "everybody": "viewer"},
            )

        yield stack.enter_context(running_dashboard(demo_fleet, settings))


def log_in_there(page: Page, name: str) -> None:
    """Type what the provider asks for."""
    page.get_by_label("Login").fill(name)
    page.keyboard.press("Enter")
    page.locator("input[type=password]").fill(f"password of {name}")
    page.keyboard.press("Enter")


def test_a_person_comes_in_by_the_provider_and_leaves_by_it(
    signed_on: Api, page: Page, picture: Picture
) -> None:
    said: list[str] = []
    page.goto(f"{signed_on.client.base_url}/cost")
    expect(page.get_by_role("link", name="Log in with localhost")).to_be_visible()
    picture(page, "login-single-sign-on")
    page.get_by_role("link", name="Log in with localhost").click()
    log_in_there(page, "alice")
    # Without another click: the page in between leads on, as our own site.
    page.wait_for_url(f"{signed_on.client.base_url}/cost")
    page.on("pageerror", lambda error: said.append(str(error)))
    expect(page.get_by_role("heading", name="Cost")).to_be_visible()
    leave = page.get_by_role("button", name="Log out")
    expect(leave).to_have_attribute(
        "title", "Logged in as alice@example.org (alice) (operator)"
    )
    leave.click()
    page.wait_for_url("http://localhost:**/end_session*", wait_until="commit")
    page.goto(f"{signed_on.client.base_url}/cost")
    page.wait_for_url("**/login?next=*")
    assert said == []


@pytest.mark.thorough
def test_a_person_of_several_groups_chooses(
    signed_on: Api, page: Page, picture: Picture
) -> None:
    page.goto(f"{signed_on.client.base_url}/login")
    page.get_by_role("link", name="Log in with localhost").click()
    log_in_there(page, "bob")
    other = page.get_by_role("link", name="Log in as viewer of all projects instead")
    expect(other).to_be_visible()
    picture(page, "login-choice")
    # The provider knows them already, and asks nothing again.
    other.click()
    page.wait_for_url(f"{signed_on.client.base_url}/")
    expect(page.get_by_role("button", name="Log out")).to_have_attribute(
        "title", "Logged in as bob@example.org (bob) (viewer)"
    )


@pytest.mark.thorough
def test_a_person_without_a_group_is_told_what_to_do(
    signed_on: Api, page: Page, picture: Picture
) -> None:
    page.goto(f"{signed_on.client.base_url}/login")
    page.get_by_role("link", name="Log in with localhost").click()
    log_in_there(page, "carol")
    expect(page.get_by_role("alert")).to_contain_text("accounting")
    picture(page, "login-no-group")
