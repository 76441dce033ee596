"""A real browser that looks at a real control plane. No page may write an error to its console."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)

from tests.browser.dashboards import running_dashboard
from tests.integration.api_harness import Api, Prepared
from tests.waiting import PATIENCE_S

ARGUMENTS = (
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

# What a page shows comes from a server that shares two cores with other tests: times decide nothing here.
PATIENCE_MS = 1000.0 * PATIENCE_S
expect.set_options(timeout=PATIENCE_MS)

Open = Callable[..., Page]
Picture = Callable[[Page, str], None]
Logins = dict[tuple[str, str], Any]
"""By database and token; Playwright takes cookies as it gives them, but not to mypy."""

FORGET = """
() => {
  try {
    localStorage.clear();
    sessionStorage.clear();
  } catch {
    // A page of the browser's own has neither.
  }
}
"""


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """One browser for all. Playwright keeps a loop running in this thread, in which other tests start theirs."""
    path = (
        os.environ.get("PLIMSOLL_CHROMIUM")
        or shutil.which("chromium")
        or shutil.which("google-chrome")
    )
    if path is None:
        # On the machine that decides whether a change may land nothing is left out silently.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(
            "there is no Chromium: apt-get install chromium"
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def demo(demo_fleet: Prepared) -> Iterator[Api]:
    """A control plane with data, for tests that change nothing."""
    with running_dashboard(demo_fleet) as api:
        yield api


@pytest.fixture
def fresh_demo(demo_fleet: Prepared) -> Iterator[Api]:
    """A control plane with data, for one test that changes it."""
    with running_dashboard(demo_fleet) as api:
        yield api


@pytest.fixture
def empty(no_fleet: Prepared) -> Iterator[Api]:
    """A control plane that was not told anything yet."""
    with running_dashboard(no_fleet) as api:
        yield api


@pytest.fixture(scope="package")
def window(chromium: Browser) -> Iterator[Page]:
    """The page of all tests, one after the other: what it has loaded once, it shows in a sixth of the time."""
    context = chromium.new_context()
    context.set_default_timeout(PATIENCE_MS)
    yield context.new_page()
    context.close()


@pytest.fixture
def page(window: Page) -> Iterator[Page]:
    """A blank page of a browser without cookies and memories."""
    window.set_viewport_size({"width": 1280, "height": 900})
    yield window
    for other in window.context.pages:
        other.evaluate(FORGET)
        if other is not window:
            other.close()
    window.goto("about:blank")
    window.emulate_media(color_scheme="light")
    window.context.clear_cookies()
    window.context.clear_permissions()


@pytest.fixture
def context(page: Page) -> BrowserContext:
    """The browser of `page`, for a test that opens further pages."""
    return page.context


@pytest.fixture(scope="package")
def logins() -> Logins:
    """The cookies of everybody who is logged in."""
    return {}


@pytest.fixture
def opened(page: Page, logins: Logins) -> Iterator[Open]:
    """`opened(api, "fleet", scope="operator", theme="dark")`: that page, logged in; it says no error until the end.

    A second one in a test is a page of its own.
    """
    errors: list[str] = []
    heard: list[tuple[Page, str, Callable[..., None]]] = []

    def go(
        api: Api,
        path: str,
        *,
        scope: str = "operator",
        theme: Literal["light", "dark"] = "light",
        width: int = 1280,
        refusals: tuple[int, ...] = (),
    ) -> Page:
        """`refusals`: statuses of answers that the test provokes; a browser writes them to its console."""
        shown = page if page.url == "about:blank" else page.context.new_page()
        shown.emulate_media(color_scheme=theme)
        shown.set_viewport_size({"width": width, "height": 900})
        hear(shown, "console", lambda message: note(message, refusals))
        hear(shown, "pageerror", lambda error: errors.append(str(error)))
        log_in(api, shown.context, logins, scope)
        shown.goto(f"{api.client.base_url}/{path}")
        return shown

    def hear(page: Page, event: Any, handler: Callable[..., None]) -> None:
        page.on(event, handler)
        heard.append((page, event, handler))

    def note(message: ConsoleMessage, refusals: tuple[int, ...]) -> None:
        is_provoked = any(
            f"the server responded with a status of {status} " in message.text
            for status in refusals
        )
        if message.type == "error" and not is_provoked:
            errors.append(message.text)

    yield go
    for page, event, handler in heard:
        page.remove_listener(event, handler)
    assert errors == []


def log_in(api: Api, context: BrowserContext, logins: Logins, scope: str) -> None:
    """Give the browser the cookie of a session; that the login page does so has tests of its own."""
    login = (api.url, api.secrets[scope])
    if login not in logins:
        # As the page's form does it.
        answer = httpx2.post(
            f"{api.client.base_url}/login",
            data={"token": api.secrets[scope]},
            headers={"Origin": str(api.client.base_url)},
        )
        assert answer.status_code == 303, answer.text
        logins[login] = [
            {"name": name, "value": value, "url": str(api.client.base_url)}
            for name, value in answer.cookies.items()
        ]
    context.clear_cookies()
    context.add_cookies(logins[login])


@pytest.fixture(scope="session")
def picture() -> Picture:
    """`picture(page, "cost")` keeps what the page looks like, for people, where somebody has asked for that."""

    def take(page: Page, name: str) -> None:
        if folder := os.environ.get("PLIMSOLL_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)

    return take
