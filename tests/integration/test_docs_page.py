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
    answers = {path: api.client.get(path) for path in loaded}
    assert {answer.status_code for answer in answers.values()} == {200}
    (script,) = (path for path in loaded if path.endswith("/docs.js"))
    assert "validatorUrl: null" in answers[script].text
