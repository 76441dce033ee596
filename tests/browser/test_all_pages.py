"""Every page: with data and without, in both themes and on a phone, for sighted people and others."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page

from app.web.pages import PAGES
from tests.browser.conftest import Open
from tests.integration.api_harness import Api

pytestmark = pytest.mark.integration

AXE = Path(__file__).with_name("axe").joinpath("axe.min.js").read_text()
"""axe-core, which knows the rules of WCAG."""

COME_TO_REST = """
() => new Promise((resolve) => {
  let quiet = setTimeout(resolve, 300);
  const watcher = new MutationObserver(() => { clearTimeout(quiet); quiet = setTimeout(resolve, 300); });
  watcher.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
  setTimeout(resolve, 1000);
})
"""
"""Wait until nothing of the page has changed for 0.3 s, or for 1 s where something always does."""

ARGUMENTS = {"service": "chat", "gpu": "n1/gpu-0", "plan": "1", "why": "1"}
"""What pages about one thing are opened with."""

PATHS = [
    page.address.replace("{argument:path}", "{argument}")
    .replace("{argument}", ARGUMENTS.get(page.name, "1"))
    .lstrip("/")
    for page in PAGES
]


def settle(page: Page) -> None:
    """Wait until the page has drawn what it has."""
    drawn(page)
    page.locator("#connection", has_text="live").wait_for()


def drawn(page: Page) -> None:
    """Wait for the first thing that the page's script draws."""
    page.locator("#content > *").first.wait_for(state="attached")


def take_picture(page: Page, pictures: Path, path: str, kind: str) -> None:
    """Keep what the page looks like when it has come to rest, for people; what it asked for is there by then."""
    page.evaluate(COME_TO_REST)
    page.screenshot(
        path=pictures / f"{path.replace('/', '-') or 'overview'}-{kind}.png",
        full_page=True,
    )


def findings(page: Page) -> list[str]:
    """What axe-core finds that makes the page harder to use for somebody; what is folded away is looked at, too."""
    page.evaluate(
        "document.querySelectorAll('details').forEach((each) => each.open = true)"
    )
    page.evaluate(COME_TO_REST)
    page.evaluate(AXE)
    found: dict[str, Any] = page.evaluate(
        "axe.run(document, {resultTypes: ['violations']})"
    )
    return [
        f"{each['impact']} {each['id']}: {each['help']} ({each['nodes'][0]['html']})"
        for each in found["violations"]
        if each["impact"] in ("moderate", "serious", "critical")
    ]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("path", PATHS)
def test_everybody_can_use_it_at_a_desk_and_on_a_phone(
    demo: Api, opened: Open, pictures: Path, path: str, width: int, theme: str
) -> None:
    page = opened(demo, path, theme=theme, width=width)
    settle(page)
    take_picture(page, pictures, path, f"{width}-{theme}")
    # Tables scroll within themselves; nothing else is wider than the screen.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#problem").is_hidden()
    assert findings(page) == []


def test_without_data_every_page_says_what_to_do(
    empty: Api, opened: Open, pictures: Path
) -> None:
    page = opened(empty, PATHS[0])
    for path in (each.address.lstrip("/") for each in PAGES if "{" not in each.address):
        page.goto(f"{empty.client.base_url}/{path}")
        drawn(page)
        take_picture(page, pictures, path, "empty")
        assert len(page.inner_text("#main")) > len(page.inner_text("h1"))


@pytest.mark.parametrize("path", ["plans/4711", "why/4711", "plans/nonsense"])
def test_a_page_about_what_is_not_there_says_so(
    demo: Api, context: BrowserContext, path: str
) -> None:
    page = context.new_page()
    page.goto(f"{demo.client.base_url}/login?next=/{path}")
    page.fill("#token", demo.secrets["viewer"])
    page.click("button.primary")
    page.locator("#problem", has_text=":").wait_for()
    assert findings(page) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_the_login_page_is_usable_by_everybody(
    demo: Api, context: BrowserContext, width: int, theme: str
) -> None:
    page = context.new_page()
    page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{demo.client.base_url}/login")
    assert findings(page) == []
    page.fill("#token", "plim_viewer_wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=alert]")
    assert findings(page) == []


def test_a_login_link_logs_nobody_in_as_somebody_else(
    demo: Api, context: BrowserContext
) -> None:
    page = context.new_page()
    token = demo.secrets["viewer"]
    for link in (f"login#{token}", f"login?token={token}#{token}"):
        page.goto(f"{demo.client.base_url}/{link}")
        # Scripts of the page have run when the network is quiet.
        page.wait_for_load_state("networkidle")
        assert "/login" in page.url and page.input_value("#token") == ""
    assert context.cookies() == []
