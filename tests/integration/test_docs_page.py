"""The reference of the API at /docs: from this control plane alone, under the dashboard's content security policy."""

import re
from collections.abc import Iterator

import pytest

from app.web.pages import SECURITY
from tests.integration.api_harness import Api, Prepared

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def api(no_fleet: Prepared) -> Iterator[Api]:
    with no_fleet.running_api() as running:
        yield running


def test_the_reference_loads_nothing_from_another_host(api: Api) -> None:
    page = api.client.get("/docs")
    assert page.status_code == 200
    assert "//" not in page.text
    policy = page.headers["content-security-policy"]
    assert policy == SECURITY["Content-Security-Policy"]
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert {path.rsplit("/", 1)[1] for path in loaded} == {
        "icon.svg",
        "swagger-ui.css",
        "swagger-ui.js",
        "docs.js",
        "openapi.json",
    }
    assert {api.client.get(path).status_code for path in loaded} == {200}


def test_the_reference_asks_no_foreign_validator(api: Api) -> None:
    (script,) = re.findall(r'src="([^"]+/docs\.js)"', api.client.get("/docs").text)
    assert "validatorUrl: null" in api.client.get(script).text
