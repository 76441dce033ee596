"""A real browser that looks at a real control plane. No page may write an error to its console."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
expect.set_options(timeout=90_000)

Open = Callable[..., Page]
Logins = dict[tuple[str, str], Any]
"""By address and token; Playwright takes cookies as it gives them, but not to mypy."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for a module. Playwright keeps a loop running in this thread, in which other tests start theirs."""
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


@pytest.fixture(scope="module")
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
    """A control plane that nobody has told anything yet."""
    with running_dashboard(no_fleet) as api:
        yield api


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    """A browser without cookies."""
    fresh = chromium.new_context(viewport={"width": 1280, "height": 900})
    yield fresh
    fresh.close()


@pytest.fixture(scope="module")
def logins() -> Logins:
    """The cookies of everybody who logged in at a control plane of the module."""
    return {}


@pytest.fixture
def opened(context: BrowserContext, logins: Logins) -> Iterator[Open]:
    """`opened(api, "fleet", scope="operator", theme="dark")`: that page, logged in; it says no error until the end.

    With a token that is logged in already the login page is not opened again: the browser gets its cookies.
    """
    errors: list[str] = []

    def go(
        api: Api,
        path: str,
        *,
        scope: str = "operator",
        theme: str = "light",
        width: int = 1280,
        refusals: tuple[int, ...] = (),
    ) -> Page:
        """`refusals`: statuses of answers that the test provokes; a browser writes them to its console."""
        page = context.new_page()
        page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        page.set_viewport_size({"width": width, "height": 900})
        page.on("console", lambda message: note(message, refusals))
        page.on("pageerror", lambda error: errors.append(str(error)))
        login = (str(api.client.base_url), api.secrets[scope])
        if login in logins:
            context.add_cookies(logins[login])
            page.goto(f"{api.client.base_url}/{path}")
        else:
            page.goto(f"{api.client.base_url}/login?next=/{path}")
            page.fill("#token", api.secrets[scope])
            page.click("button.primary")
        page.wait_for_url(f"**/{path.split('?')[0]}*")
        logins[login] = context.cookies()
        return page

    def note(message: ConsoleMessage, refusals: tuple[int, ...]) -> None:
        is_provoked = any(
            f"the server responded with a status of {status} " in message.text
            for status in refusals
        )
        if message.type == "error" and not is_provoked:
            errors.append(message.text)

    yield go
    assert errors == []


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where screenshots are kept for people to look at."""
    folder = Path(os.environ.get("PLIMSOLL_SCREENSHOTS", ".pytest_cache/screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
