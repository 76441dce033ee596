"""What users of kubectl type, against a real API on a real database: wait, rollout status, jsonpath, KIND/NAME."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from app.db.decisions import plans
from tests.app.runner import Result, cli
from tests.integration.api_harness import Api, service
from tests.integration.fleet import START, make_record
from tests.integration.model_fleet import ready_replicas

pytestmark = pytest.mark.integration


def typed(api: Api, *arguments: str, steps: list[Callable[[], object]]) -> Result:
    """What a command line does; at each of its looks the next step happens, and then its time is over."""
    left_s = float(len(steps))
    seconds = 0.0

    def sleep(_: float) -> None:
        nonlocal seconds
        steps.pop(0)()
        seconds += 1.0

    return cli(
        *arguments,
        "--timeout",
        f"{left_s:g}s",
        api=api.forward,
        environment={"PLIMSOLL_TOKEN": api.secrets["admin"]},
        sleep=sleep,
        monotonic_s=lambda: seconds,
    )


def planned(api: Api) -> None:
    """Requests arrive, and the loop pushes a plan for them."""
    api.observe(1, {"chat": 100})
    assert api.tick().state == "target"


def followed(api: Api, *, generation: int = 1) -> None:
    """The node has put the plan in force, and its replicas are ready."""
    replicas = ready_replicas(api, "n1")
    api.observe(generation + 1, {}, generation=generation, replicas=replicas)


def test_a_rollout_is_followed_from_the_manifest_to_the_node(api: Api) -> None:
    api.put("services/chat", service())
    result = typed(
        api,
        *("rollout", "status", "service/chat"),
        steps=[lambda: planned(api), lambda: followed(api), lambda: None],
    )
    assert (result.code, result.err) == (0, "")
    first, second, last = result.out.splitlines()
    assert first.endswith("(NotPlanned)")
    assert second == "Waiting: generation 1 is not yet on n1 (RollingOut)"
    assert last.startswith("service chat is rolled out: generation 1 is in force")
    ready = ("wait", "svc/chat", "node/n1", "--for", "condition=Applied")
    assert typed(api, *ready, steps=[lambda: None]).out.splitlines() == [
        "service/chat condition met",
        "node/n1 condition met",
    ]


def test_what_was_ready_is_waited_for_again_after_a_change(api: Api) -> None:
    api.put("services/chat", service())
    planned(api)
    followed(api)
    ready = ("wait", "service/chat", "--for", "condition=Ready")
    assert typed(api, *ready, steps=[lambda: None]).code == 0
    api.put("services/chat", service(latency_ms=90.0))
    # What the loop has not looked at is not ready, though the plan in force serves on.
    early = typed(api, *ready, steps=[lambda: None])
    assert (early.code, early.out) == (1, "")
    assert "made for generation 1 of the manifest, not yet for 2" in early.err
    rollout = typed(
        api,
        *("rollout", "status", "service/chat"),
        steps=[lambda: api.tick(), lambda: followed(api, generation=2), lambda: None],
    )
    assert rollout.code == 0
    first, second, _ = rollout.out.splitlines()
    assert first.startswith("Waiting: the plan in force was made for generation 1")
    # Routers judge requests by the SLO, so that nodes are told of another one.
    assert second == "Waiting: generation 2 is not yet on n1 (RollingOut)"
    assert api.get("services/chat")["status"]["observed_generation"] == 2
    assert typed(api, *ready, steps=[lambda: None]).code == 0


def test_a_change_that_waits_for_a_person_is_not_ready(api: Api) -> None:
    api.put("services/chat", service())
    planned(api)
    followed(api)
    api.put_policy(mode="approve")
    api.put("services/chat", service(scaling={"min_replicas": 2}))
    outcome = api.tick()
    assert outcome.state == "proposed"
    # While it waits, the loop decides the same again, and keeps what is in force.
    revision = api.get("plans")["items"][0]["catalogue_revision"]
    kept = replace(make_record(START, None, revision), state="kept")
    api.on_connection(lambda connection: plans.record(connection, kept, None))
    assert api.get("services/chat")["status"]["observed_generation"] == 1
    api.call("POST", f"plans/{outcome.plan_id}/approve")
    assert api.tick().state == "target"
    assert api.get("services/chat")["status"]["observed_generation"] == 2
