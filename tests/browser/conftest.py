"""A real browser that looks at a real control plane. No page may write an error to its console."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    sync_playwright,
)

from app.postgres import server as postgres
from tests.browser.dashboards import fill_demo, running_dashboard
from tests.conftest import copied_database
from tests.integration.api_harness import Api

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

Open = Callable[..., Page]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One browser for all tests."""
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
def demo(postgres_server: postgres.Server, migrated_template: str) -> Iterator[Api]:
    """A control plane with data, for tests that change nothing."""
    with (
        copied_database(postgres_server, template=migrated_template) as url,
        running_dashboard(url) as api,
    ):
        fill_demo(api)
        yield api


@pytest.fixture
def fresh_demo(database: str) -> Iterator[Api]:
    """A control plane with data, for one test that changes it."""
    with running_dashboard(database) as api:
        fill_demo(api)
        yield api


@pytest.fixture
def empty(database: str) -> Iterator[Api]:
    """A control plane that nobody has told anything yet."""
    with running_dashboard(database) as api:
        yield api


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    """A browser without cookies."""
    fresh = chromium.new_context(viewport={"width": 1280, "height": 900})
    yield fresh
    fresh.close()


@pytest.fixture
def opened(context: BrowserContext) -> Iterator[Open]:
    """`opened(api, "fleet", scope="operator", theme="dark")`: that page, logged in; it says no error until the end."""
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
        page.goto(f"{api.client.base_url}/login?next=/{path}")
        page.fill("#token", api.secrets[scope])
        page.click("button.primary")
        page.wait_for_url(f"**/{path.split('?')[0]}*")
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
