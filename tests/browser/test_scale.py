"""A thousand GPUs and two hundred services: every page still loads, and the fleet is drawn whole."""

from collections.abc import Iterator

import msgspec
import pytest
from playwright.sync_api import expect

from agents.base.protocol import ReplicaReading
from app.db.postgres_store import PostgresStore
from app.postgres import server as postgres
from app.store.store import PolicySettings
from app.web.pages import PAGES
from bench.real_store import Fleet, observations, open_fleet, place_replicas
from solvers.types.state import Mode
from tests.browser.conftest import Open, Picture
from tests.browser.dashboards import running_dashboard
from tests.browser.test_all_pages import settle
from tests.integration.api_harness import NOW, Api, prepared, run_apart

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

FLEET = Fleet(nodes=125, gpus_per_node=8, services=200)
WINDOW_S = 2.0


@pytest.fixture(scope="module")
def large(postgres_server: postgres.Server, migrated_template: str) -> Iterator[Api]:
    with (
        prepared(
            postgres_server, migrated_template, lambda api: run_apart(_fill(api.url))
        ) as found,
        running_dashboard(found) as api,
    ):
        yield api


async def _fill(url: str) -> None:
    """Every GPU carries two replicas at 50 and 30 %; every service is asked for 10 times in a window."""
    names = [service.name for service in FLEET.nouns()]
    async with open_fleet(
        url, FLEET, PolicySettings(window_s=WINDOW_S, mode=Mode.OFF), NOW
    ) as engine:
        arrivals = dict.fromkeys(names, 10)
        seen = observations(FLEET, arrivals, sequence=1, end=NOW, window_s=WINDOW_S)
        with_replicas = []
        for at, entry in enumerate(seen):
            replicas = tuple(
                ReplicaReading(
                    id=f"{entry.node}-{gpu.index}-{place}",
                    service=names[(8 * at + gpu.index + 100 * place) % len(names)],
                    gpu_index=gpu.index,
                    state="ready",
                    sm_percent=(50.0, 30.0)[place],
                    batch=8,
                    memory_mib=1024.0,
                )
                for gpu in entry.gpus
                for place in range(2)
            )
            with_replicas.append(msgspec.structs.replace(entry, replicas=replicas))
        await place_replicas(engine, with_replicas, NOW)
        await PostgresStore(engine).ingest(tuple(with_replicas), NOW)


def test_the_fleet_is_drawn_whole_and_filtered_at_once(
    large: Api, opened: Open, picture: Picture
) -> None:
    page = opened(large, "fleet")
    settle(page)
    assert page.locator(".gpu").count() == 1000
    assert "1,000 of 1,000 GPUs in use, 80 % of their SMs given" in page.inner_text(
        ".summary"
    )
    picture(page, "fleet-large")
    # GPU k carries services k and k + 100, modulo 200: s07 is one service, on ten of the thousand.
    page.fill("input[type=search]", "s07")
    page.wait_for_function("() => document.querySelectorAll('.gpu').length < 1000")
    assert page.locator(".gpu").count() == 10
    page.fill("input[type=search]", "")
    page.select_option("select", "gpu_type")
    page.locator(".group").nth(1).wait_for()
    assert page.locator(".group").count() == 2


@pytest.mark.parametrize(
    "path", [page.address.lstrip("/") for page in PAGES if "{" not in page.address]
)
def test_every_page_loads(
    large: Api, opened: Open, picture: Picture, path: str
) -> None:
    page = opened(large, path)
    settle(page)
    picture(page, f"{path or 'overview'}-large")
    assert page.locator("#problem").is_hidden()


def test_of_many_services_only_the_visible_rows_are_in_the_document(
    large: Api, opened: Open
) -> None:
    page = opened(large, "services")
    rows = page.locator("tbody tr")
    expect(rows.first).to_contain_text("s00")
    assert rows.count() < 60
    assert page.evaluate("document.documentElement.scrollHeight") < 1200
    expect(page.get_by_role("table")).to_have_attribute("aria-rowcount", "201")
    frame = page.get_by_role("region", name="Services")
    frame.evaluate("each => each.scrollTo(0, each.scrollHeight)")
    expect(rows.last).to_have_attribute("aria-rowindex", "201")
    expect(page.get_by_role("link", name="s99", exact=True)).to_be_in_viewport()
    assert rows.count() < 60
    # All are found, wherever the list was scrolled to.
    page.get_by_label("Find").fill("s123")
    expect(rows).to_have_count(1)


def test_every_gpu_is_a_cell_on_one_screen(large: Api, opened: Open) -> None:
    page = opened(large, "", width=1440)
    cells = page.locator(".heatmap .cell")
    expect(cells).to_have_count(1000)
    heights = page.locator(".heatmap").evaluate("each => each.offsetHeight")
    assert heights < 700
