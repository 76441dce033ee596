"""Every page: with data and without, in both themes and on a phone, for sighted people and others."""

from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Page

from app.web.pages import PAGES
from tests.browser.conftest import Open, Picture
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


KINDS = [(width, theme) for width in (1440, 390) for theme in ("light", "dark")]
EVERY_KIND = [
    pytest.param(
        path,
        *kind,
        # `make test` has every page once, and between them every kind.
        marks=() if kind == KINDS[at % len(KINDS)] else pytest.mark.thorough,
    )
    for at, path in enumerate(PATHS)
    for kind in KINDS
]


@pytest.mark.parametrize(("path", "width", "theme"), EVERY_KIND)
def test_everybody_can_use_it_at_a_desk_and_on_a_phone(
    demo: Api, opened: Open, picture: Picture, path: str, width: int, theme: str
) -> None:
    page = opened(demo, path, theme=theme, width=width)
    settle(page)
    picture(page, f"{path.replace('/', '-') or 'overview'}-{width}-{theme}")
    # Tables scroll within themselves; nothing else is wider than the screen.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#problem").is_hidden()
    assert findings(page) == []


WITHOUT_ARGUMENT = [
    page.address.lstrip("/") for page in PAGES if "{" not in page.address
]


@pytest.mark.parametrize(
    "paths",
    [
        WITHOUT_ARGUMENT[:3],
        pytest.param(WITHOUT_ARGUMENT[3:], marks=pytest.mark.thorough),
    ],
    ids=" ".join,
)
def test_without_data_every_page_says_what_to_do(
    empty: Api, opened: Open, picture: Picture, paths: list[str]
) -> None:
    page = opened(empty, PATHS[0])
    for path in paths:
        page.goto(f"{empty.client.base_url}/{path}")
        drawn(page)
        picture(page, f"{path.replace('/', '-') or 'overview'}-empty")
        assert len(page.inner_text("#main")) > len(page.inner_text("h1"))


@pytest.mark.parametrize(
    "path",
    [
        "plans/4711",
        *(
            pytest.param(path, marks=pytest.mark.thorough)
            for path in ("why/4711", "plans/nonsense", "gpus/n9/gpu-0")
        ),
    ],
)
def test_a_page_about_what_is_not_there_says_so(
    demo: Api, opened: Open, path: str
) -> None:
    page = opened(demo, path, refusals=(404, 422))
    page.locator("#problem", has_text=":").wait_for()
    assert findings(page) == []


@pytest.mark.parametrize(
    ("width", "theme"),
    [
        KINDS[0],
        *(pytest.param(*kind, marks=pytest.mark.thorough) for kind in KINDS[1:]),
    ],
)
def test_the_login_page_is_usable_by_everybody(
    demo: Api, page: Page, width: int, theme: Literal["light", "dark"]
) -> None:
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{demo.client.base_url}/login")
    assert findings(page) == []
    page.fill("#token", "plim_viewer_wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=alert]")
    assert findings(page) == []
    page.fill("#token", demo.secrets["viewer"])
    page.keyboard.press("Enter")
    page.wait_for_url(f"{demo.client.base_url}/")


def test_a_login_link_logs_nobody_in_as_somebody_else(demo: Api, page: Page) -> None:
    token = demo.secrets["viewer"]
    for link in (f"login#{token}", f"login?token={token}#{token}"):
        page.goto(f"{demo.client.base_url}/{link}")
        # Scripts of the page have run when the network is quiet.
        page.wait_for_load_state("networkidle")
        assert "/login" in page.url and page.input_value("#token") == ""
    assert page.context.cookies() == []
