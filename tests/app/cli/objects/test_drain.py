"""`drain` and `undrain`: what is asked, what is told on the way, and when the waiting ends."""

from tests.app.cli.fake_api import FakeApi
from tests.app.runner import cli

EMPTY = {"deadline": "2026-03-01T12:10:00Z", "replicas_left": 0, "tasks_left": 0}


def _api(drain: object) -> FakeApi:
    return FakeApi(
        objects={"nodes/n1": {"status": {"drain": drain}}},
        answers={"POST nodes/n1/drain": {}, "POST nodes/n1/undrain": {}},
    )


def test_a_drain_waits_until_the_node_is_empty() -> None:
    result = cli("drain", "n1", "--deadline", "2m", api=_api(EMPTY))
    assert (result.code, result.out) == (
        0,
        "Node n1 drains, at most 2m\nNode n1 is empty\n",
    )


def test_no_wait_leaves_the_node_to_the_control_plane() -> None:
    result = cli("drain", "n1", "--no-wait", api=_api({**EMPTY, "replicas_left": 3}))
    assert (result.code, result.out) == (0, "Node n1 drains, at most 10m\n")


def test_the_waiting_ends_where_somebody_ends_the_draining() -> None:
    result = cli("drain", "n1", api=_api(None))
    assert (result.code, result.err) == (
        1,
        "Error: somebody ended the draining of node n1\n",
    )


def test_undrain_reaches_its_endpoint() -> None:
    assert cli("undrain", "n1", api=_api(EMPTY)).out == "Node n1 undrained\n"
