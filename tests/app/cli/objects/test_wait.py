"""`wait` and `rollout status`: what they wait for, how they end, and what they say."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.app.cli.fake_api import FakeApi, Json, problem_document, service
from tests.app.runner import Result, cli


@dataclass(slots=True)
class Passing:
    """A clock that each sleep moves on, and what happens to the API at its seconds."""

    api: FakeApi
    at_s: float = 0.0
    changes: dict[float, Callable[[FakeApi], object]] = field(default_factory=dict)

    def sleep(self, seconds: float) -> None:
        self.at_s += seconds
        if change := self.changes.pop(self.at_s, None):
            change(self.api)

    def run(self, *arguments: str) -> Result:
        return cli(
            *arguments, api=self.api, sleep=self.sleep, monotonic_s=lambda: self.at_s
        )


def condition(kind: str, status: str, reason: str, message: str) -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def chat(*conditions: Json) -> Json:
    return service("chat", conditions=list(conditions))


READY = condition("Ready", "True", "Serving", "replicas in service: 2")
NOT_YET = "generation 7 is not yet on n1"
ROLLING = condition("Ready", "False", "RollingOut", NOT_YET)
APPLIED = condition(
    "Applied", "True", "NodesFollow", "generation 7 is in force on its nodes: 1"
)


def becomes(path: str, item: Json) -> Callable[[FakeApi], object]:
    def change(api: FakeApi) -> None:
        api.objects[path] = item

    return change


def test_a_condition_is_waited_for_until_it_is_met() -> None:
    time = Passing(
        FakeApi(objects={"services/chat": chat(ROLLING)}),
        changes={3.0: becomes("services/chat", chat(READY))},
    )
    result = time.run("wait", "service/chat", "--for", "condition=ready")
    assert (result.code, result.out) == (0, "service/chat condition met\n")
    assert time.at_s == 3.0


def test_a_condition_that_is_not_met_in_time_ends_with_1_and_its_reason() -> None:
    time = Passing(FakeApi(objects={"services/chat": chat(ROLLING)}))
    result = time.run("wait", "svc/chat", "--for", "condition=Ready", "--timeout", "1m")
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        "Error: timed out waiting for service/chat: "
        f"Ready is False (RollingOut): {NOT_YET}\n"
    )
    assert time.at_s == 60.0


def test_a_template_is_compared_or_must_print_something() -> None:
    time = Passing(FakeApi(objects={"services/chat": service()}))
    for goal, code in {
        "jsonpath={.spec.mode}=auto": 0,
        "jsonpath='{.spec.mode}'": 2,
        "jsonpath={.spec.mode}=off": 1,
        "jsonpath={.spec.scaling.max_replicas}": 1,
        'jsonpath={.status.conditions[?(@.type=="Ready")].status}=True': 0,
    }.items():
        result = time.run("wait", "service/chat", "--for", goal, "--timeout", "0")
        assert result.code == code, goal


def task(state: str) -> Json:
    return {"metadata": {"name": "nightly"}, "status": {"state": state}}


def test_a_task_is_waited_for_by_its_state() -> None:
    time = Passing(
        FakeApi(objects={"tasks/nightly": task("running")}),
        changes={2.0: becomes("tasks/nightly", task("finished"))},
    )
    assert time.run("wait", "task/nightly", "--for", "state=finished").code == 0
    assert time.at_s == 2.0


def test_what_ended_otherwise_is_not_waited_for() -> None:
    time = Passing(
        FakeApi(
            objects={
                "tasks/nightly": task("cancelled"),
                "plans/7": {"id": 7, "state": "superseded"},
            }
        )
    )
    result = time.run("wait", "task/nightly", "--for", "state=finished")
    assert (result.code, time.at_s) == (1, 0.0)
    assert "it is cancelled and will not become finished" in result.err
    result = time.run("wait", "plan/7", "--for", "state=target")
    assert (result.code, time.at_s) == (1, 0.0)


def test_a_deletion_is_waited_for() -> None:
    time = Passing(
        FakeApi(objects={"services/chat": service()}),
        changes={2.0: lambda api: api.objects.pop("services/chat")},
    )
    assert time.run("wait", "service/chat", "--for", "delete").code == 0
    assert time.at_s == 2.0


def test_a_control_plane_that_restarts_is_waited_for_once_it_has_answered() -> None:
    busy = problem_document(503, "the database restarts")
    time = Passing(
        FakeApi(objects={"services/chat": chat(ROLLING)}),
        changes={
            1.0: lambda api: api.problems.update({"GET services/chat": busy}),
            3.0: lambda api: (
                api.problems.clear(),
                api.objects.update({"services/chat": chat(READY)}),
            ),
        },
    )
    assert time.run("wait", "service/chat", "--for", "condition=Ready").code == 0
    assert time.at_s == 3.0
    first = Passing(FakeApi(problems={"GET services/chat": busy}))
    assert first.run("wait", "service/chat", "--for", "condition=Ready").code == 1
    assert first.at_s == 0.0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("service/chat", "--for", "ready"), "not something to wait for"),
        (("service/chat", "--for", "condition="), "not something to wait for"),
        (("service/chat", "--for", "jsonpath=.a=b"), "not something to wait for"),
        (("service/chat", "--for", "jsonpath={.a[}"), "bracket is not closed"),
        (("service", "--for", "delete"), "write service/NAME"),
        (("service/", "--for", "delete"), "is not KIND/NAME"),
        (("service/a", "b", "--for", "delete"), "'b' is not KIND/NAME"),
        (("servce/a", "--for", "delete"), "unknown kind 'servce'"),
        (("task/a", "--for", "condition=Ready"), "--for state=finished"),
        (("plan/1", "--for", "condition=Ready"), "--for state=target"),
        (("task/a", "--for", "state=finishd"), "never 'finishd'; its states are"),
        (("service/a", "--for", "state=ready"), "has no state to wait for"),
        (("service/a", "--for", "delete", "--timeout", "1 min"), "is not a duration"),
    ],
)
def test_wrong_usage_names_the_remedy_and_asks_nobody(
    arguments: tuple[str, ...], words: str
) -> None:
    api = FakeApi()
    result = cli("wait", *arguments, api=api)
    assert (result.code, api.requests) == (2, [])
    assert words in " ".join(result.err.split())


def endpoints(*, ready: int) -> Json:
    """Two replicas are planned for n1; what n2 still has of an older plan does not count."""
    names = ("planned_replicas", "ready_replicas")
    nodes = [dict(zip(names, counts, strict=True)) for counts in ((2, ready), (0, 1))]
    return {"service": "chat", "url": None, "gateway": None, "nodes": nodes}


def test_a_rollout_is_followed_line_by_line_until_it_is_complete() -> None:
    waits = condition("Ready", "False", "WaitsForApproval", "plan 9 waits")
    fails = condition("Launches", "False", "LaunchesFail", "chat fails on n1")
    time = Passing(
        FakeApi(
            objects={"services/chat": chat(waits)},
            answers={"GET services/chat/endpoints": endpoints(ready=1)},
        ),
        changes={
            2.0: becomes("services/chat", chat(ROLLING)),
            4.0: becomes("services/chat", chat(READY, APPLIED, fails)),
            5.0: becomes("services/chat", chat(READY, APPLIED)),
            7.0: lambda api: api.answers.update(
                {"GET services/chat/endpoints": endpoints(ready=2)}
            ),
        },
    )
    result = time.run("rollout", "status", "service/chat")
    assert (result.code, time.at_s) == (0, 7.0)
    assert result.out.splitlines() == [
        "Waiting: plan 9 waits (WaitsForApproval)",
        f"Waiting: {NOT_YET} (RollingOut)",
        "Waiting: chat fails on n1 (LaunchesFail)",
        "Waiting: 1 of 2 replicas are ready",
        "service chat is rolled out: generation 7 is in force on its nodes: 1; replicas in service: 2",
    ]


def test_a_rollout_that_only_another_manifest_helps_ends_at_once() -> None:
    hopeless = condition("Ready", "False", "SloOutOfReach", "50 ms is too short")
    time = Passing(FakeApi(objects={"services/chat": chat(hopeless)}))
    result = time.run("rollout", "status", "service/chat")
    assert (result.code, time.at_s) == (1, 0.0)
    assert "cannot continue: 50 ms is too short" in result.err
