"""`plimsoll top` against a real control plane."""

from collections.abc import Iterator

import pytest

from tests.app.runner import Result, cli
from tests.browser.dashboards import running_dashboard
from tests.integration.api_harness import Api, Prepared

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def demo(demo_fleet: Prepared) -> Iterator[Api]:
    with running_dashboard(demo_fleet) as api:
        yield api


def top(api: Api, token: str) -> Result:
    environment = {
        "PLIMSOLL_URL": str(api.client.base_url),
        "PLIMSOLL_TOKEN": api.secrets[token],
    }
    return cli("top", "--once", api=None, environment=environment)


def test_it_shows_the_plan_the_services_and_the_gpus(demo: Api) -> None:
    result = top(demo, "viewer")
    assert result.code == 0, result.err
    for words in ("plan ", "USD/h", "search", "95.00 %", "n1/gpu-0", "12/70"):
        assert words in result.out


def test_a_token_of_one_project_sees_its_services_alone(demo: Api) -> None:
    demo.add_token("ours", "viewer", ("team-b",))
    result = top(demo, "ours")
    assert result.code == 0, result.err
    assert "search" in result.out
    assert "chat" not in result.out
    assert "n1/gpu-0" not in result.out
