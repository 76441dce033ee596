"""`drain`, `undrain` and `acquit`: what is asked, what is told on the way, and when the waiting ends."""

import httpx2

from app.cli.objects.cordon import GRACE_S
from tests.app.cli.fake_api import FakeApi
from tests.app.runner import cli

EMPTY = {"deadline": "2026-03-01T12:10:00Z", "replicas_left": 0, "tasks_left": 0}


def _api(drain: object) -> FakeApi:
    return FakeApi(
        objects={"nodes/n1": {"status": {"drain": drain}}},
        answers={
            "POST nodes/n1/drain": {},
            "POST nodes/n2/drain": {},
            "POST nodes/n1/undrain": {},
        },
    )


def test_a_drain_waits_until_the_node_is_empty() -> None:
    api = _api(EMPTY)
    result = cli("drain n1 --deadline 2m", api=api)
    assert (result.code, result.out) == (
        0,
        "Node n1 drains, at most 2m\nNode n1 is empty\n",
    )
    assert api.sent("POST") == [{"deadline_s": 120}]


def test_no_wait_leaves_the_node_to_the_control_plane() -> None:
    result = cli("drain n1 --no-wait", api=_api({**EMPTY, "replicas_left": 3}))
    assert (result.code, result.out) == (0, "Node n1 drains, at most 10m\n")


def test_the_waiting_ends_where_somebody_ends_the_draining() -> None:
    result = cli("drain n1", api=_api(None))
    assert (result.code, result.err) == (
        1,
        "Error: somebody stopped the draining of node n1\n",
    )


def test_undrain_reaches_its_endpoint() -> None:
    assert cli("undrain n1", api=_api(EMPTY)).out == "Node n1 undrained\n"


def test_a_drain_says_what_is_left_whenever_that_changes() -> None:
    api = _api(None)
    left = [(2, 1), (2, 1), (1, 0), (0, 0)]

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            replicas, tasks = left.pop(0)
            drain = {**EMPTY, "replicas_left": replicas, "tasks_left": tasks}
            api.objects["nodes/n1"] = {"status": {"drain": drain}}
        return api(request)

    result = cli("drain n1", api=answer)
    until = "at most until 2026-03-01T12:10:00Z"
    assert (result.code, result.out.splitlines()) == (
        0,
        [
            "Node n1 drains, at most 10m",
            f"Node n1: replicas left: 2, tasks left: 1, {until}",
            f"Node n1: replicas left: 1, tasks left: 0, {until}",
            "Node n1 is empty",
        ],
    )


def test_a_node_that_is_not_empty_after_deadline_and_grace_is_told() -> None:
    slept_s: list[float] = []
    result = cli(
        "drain n1 n2 --deadline 2m",
        api=_api({**EMPTY, "tasks_left": 1}),
        sleep=slept_s.append,
        monotonic_s=lambda: sum(slept_s),
    )
    assert result.code == 1
    assert "Error: node n1 is not empty after its deadline\n" in result.err
    assert 120.0 + GRACE_S <= sum(slept_s) <= 120.0 + GRACE_S + 2.0


def test_acquit_names_the_gpus_and_says_where_none_is_ill() -> None:
    api = FakeApi(
        objects={
            "nodes/n1": {
                "spec": {"gpus": [{"index": 0}, {"index": 1}]},
                "status": {"healthy_gpus": 1},
            },
            "nodes/n2": {
                "spec": {"gpus": [{"index": 0}]},
                "status": {"healthy_gpus": 1},
            },
        },
        answers={"POST nodes/n1/acquit": {}, "POST nodes/n2/acquit": {}},
    )
    result = cli("acquit n1 n2 --gpu 0", api=api)
    assert (result.code, result.out) == (
        0,
        "Node n1: GPU 0 acquitted; `plimsoll get gpus` shows when they are used again\n"
        "Node n2: all GPUs are healthy, none is to be acquitted\n",
    )
    assert api.sent("POST") == [{"gpus": [0]}, {"gpus": [0]}]
    cli("acquit n1", api=api)
    assert api.sent("POST")[-1] == {"gpus": None}
