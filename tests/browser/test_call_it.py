"""The box "Call it" on a service's page: what it shows is run as it stands, against a router with a replica."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, expect

from agents.base.clock import ScaledClock
from agents.fake.worker import FakeWorker
from agents.router.router import Router
from app.base.settings import Settings
from tests.agents.router_harness import a_route, served
from tests.browser.conftest import Open
from tests.browser.dashboards import running_dashboard
from tests.integration.api_harness import Api, Prepared
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration


async def _serve(found: Future[str], stopped: threading.Event) -> None:
    worker = FakeWorker(
        "chat", batch=8, execution_s=lambda _: 0.001, clock=ScaledClock()
    )
    router = Router()
    async with served(worker.make_app()) as replica, served(router.make_app()) as url:
        await router.switch_routes((a_route(("a", 1.0)),), {"a": replica})
        found.set_result(url)
        await asyncio.to_thread(stopped.wait)


@contextmanager
def a_router() -> Iterator[str]:
    """The address of a router before a replica of `chat`, on a thread: the browser's loop runs in this one."""
    found: Future[str] = Future()
    stopped = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(found, stopped)))
    thread.start()
    try:
        yield found.result(timeout=PATIENCE_S)
    finally:
        stopped.set()
        thread.join(timeout=PATIENCE_S)


def copied(page: Page, title: str) -> str:
    """What the clipboard has after a click on an example's button."""
    box = page.get_by_role("region", name="Call it")
    if title != "curl":
        box.locator("summary", has_text=title).click()
    button = box.get_by_role("button", name=f"Copy the {title} example")
    button.click()
    expect(button).to_have_text("Copied")
    text = page.evaluate("navigator.clipboard.readText()")
    assert isinstance(text, str)
    return text


EXAMPLES = {
    "curl": ["bash", "-c"],
    "Python": [sys.executable, "-c"],
    "tritonclient": [sys.executable, "-c"],
}


def test_what_is_copied_calls_the_service(demo_fleet: Prepared, opened: Open) -> None:
    with (
        a_router() as url,
        running_dashboard(demo_fleet, lambda _: Settings(gateway_url=url)) as api,
    ):
        page = opened(api, "services/chat", scope="viewer")
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        endpoint = f"{url}/v2/models/chat/infer"
        expect(page.get_by_role("region", name="Call it")).to_contain_text(endpoint)
        for title, command in EXAMPLES.items():
            done = subprocess.run(
                [*command, copied(page, title)],
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            assert "model_name" in done.stdout and "outputs" in done.stdout
        # Nothing is asked of this application any more, which is about to end.
        page.goto("about:blank")


def test_without_an_address_it_says_what_to_start(demo: Api, opened: Open) -> None:
    page = opened(demo, "services/chat", scope="viewer")
    box = page.get_by_role("region", name="Call it")
    expect(box).to_contain_text("start agents with --router-host, or a gateway")
    expect(box.locator("pre")).to_have_count(0)
