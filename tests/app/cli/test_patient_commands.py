"""Commands that run for days: whatever passes they bear, asking less often, and they lose nothing meanwhile."""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import pytest
from rich.console import Console
from rich.live import Live

from app.cli.common.context import CliContext
from app.cli.common.errors import CliError
from app.cli.reports.top import TopicTables, follow_on
from tests.app.cli.transients import TRANSIENTS, fail
from tests.app.runner import cli

Answers = Callable[[httpx2.Request], httpx2.Response]


@dataclass
class Flaky:
    """Answers well `good` times, then fails so, as often as `bad` says, and answers well again."""

    answer: Answers
    what: str
    good: int = 1
    bad: int = 3
    asked: int = 0

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked += 1
        if self.good < self.asked <= self.good + self.bad:
            return fail(self.what, request)
        return self.answer(request)


@dataclass
class Sleeps:
    """Notes every wait; the last one is ended by Ctrl-C."""

    last: int
    waits: list[float] = field(default_factory=list)

    def __call__(self, seconds: float) -> None:
        self.waits.append(seconds)
        if len(self.waits) == self.last:
            raise KeyboardInterrupt


def log_parts() -> Answers:
    """A log that grows by one line whenever it is read."""
    ends = {"": 0}

    def serve(request: httpx2.Request) -> httpx2.Response:
        begin = int(request.url.params.get("after", 0))
        ends[""] += 1
        line = f"line {ends['']}\n"
        part = {"text": line, "start": begin, "end": begin + len(line)}
        replicas = [{"replica": "chat-1", "is_planned": True}]
        return httpx2.Response(
            200, json={**part, "replica": "chat-1", "replicas": replicas}
        )

    return serve


def event_list() -> Answers:
    """One more event whenever the list is read."""
    ids = [0]

    def serve(_: httpx2.Request) -> httpx2.Response:
        ids.insert(0, ids[0] + 1)
        items = [
            {"id": each, "kind": "PlanPushed", "reason": f"no {each}"} for each in ids
        ]
        return httpx2.Response(200, json={"items": items, "next_cursor": None})

    return serve


def service_list() -> Answers:
    def serve(_: httpx2.Request) -> httpx2.Response:
        items = [{"metadata": {"name": "chat"}}]
        return httpx2.Response(200, json={"items": items, "next_cursor": None})

    return serve


@pytest.mark.parametrize("what", TRANSIENTS)
@pytest.mark.parametrize(
    ("command", "answers", "printed"),
    [
        ("logs chat -f", log_parts, "line 1\nline 2\nline 3\n"),
        ("events -f", event_list, "no 3"),
        ("get services -w", service_list, "chat"),
    ],
)
def test_what_passes_is_said_once_and_asked_again_less_often(
    what: str, command: str, answers: Callable[[], Answers], printed: str
) -> None:
    api, sleeps = Flaky(answers(), what), Sleeps(last=6)
    result = cli(command, api=api, sleep=sleeps)
    assert result.code == 0, result.err
    assert result.err.count("asked again until it answers") == 1
    period_s = sleeps.waits[0]
    assert sleeps.waits == [period_s * factor for factor in (1, 2, 4, 8, 1, 1)]
    assert printed in result.out


def test_no_event_is_lost_meanwhile() -> None:
    result = cli("events -f", api=Flaky(event_list(), "503"), sleep=Sleeps(last=6))
    shown = [line.rpartition(": no ")[2] for line in result.out.splitlines()]
    assert [each for each in shown if each.isdecimal()] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("command", ["logs chat -f", "events -f", "get services -w"])
def test_what_will_not_pass_ends_it(command: str) -> None:
    answers = {"l": log_parts, "e": event_list, "g": service_list}[command[0]]
    result = cli(command, api=Flaky(answers(), "401"), sleep=Sleeps(last=6))
    assert result.code == 1


@pytest.mark.parametrize("what", TRANSIENTS)
def test_a_drain_is_waited_for_while_the_control_plane_restarts(what: str) -> None:
    drain = {"replicas_left": 1, "tasks_left": 0, "deadline": "soon"}
    looks = [drain, {**drain, "replicas_left": 0}]

    def serve(request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST":
            return httpx2.Response(200, json={})
        return httpx2.Response(200, json={"status": {"drain": looks.pop(0)}})

    # The request itself and the first look are answered.
    result = cli("drain n1", api=Flaky(serve, what, good=2))
    assert result.code == 0, result.err
    assert "Node n1 is empty" in result.out


def feed(*services: str) -> httpx2.Response:
    """The live feed's events, one for each service."""
    lines = [
        f"event: services\ndata: {json.dumps({'set': {name: a_service()}})}\n"
        for name in services
    ]
    return httpx2.Response(200, text="\n".join(lines))


def a_service() -> dict[str, object]:
    empty = dict.fromkeys(("attainment", "latency_ms", "rate_rps", "planned_rate_rps"))
    return {**empty, "slo_ms": 100, "cost_usd_per_hour": 0.0, "replicas": {}}


def followed(api: Answers, sleeps: Sleeps) -> TopicTables:
    """What `top` knows when it is interrupted."""
    screen = Console(file=io.StringIO(), force_terminal=True, width=100, height=30)
    board = TopicTables()
    context = CliContext(
        environment={"PLIMSOLL_TOKEN": "t"},
        home=Path("/nonexistent"),
        transport=httpx2.MockTransport(api),
        sleep=sleeps,
    )
    with (
        Live(console=screen, auto_refresh=False) as live,
        pytest.raises(KeyboardInterrupt),
    ):
        follow_on(context, board, live, screen)
    return board


@pytest.mark.parametrize("what", TRANSIENTS)
def test_top_goes_on_where_the_feed_comes_back(what: str) -> None:
    names = iter(["chat", "search"])

    def serve(_: httpx2.Request) -> httpx2.Response:
        # After the second one the feed is empty, which is no answer either.
        return feed(*(each for each in [next(names, "")] if each))

    sleeps = Sleeps(last=5)
    board = followed(Flaky(serve, what), sleeps)
    assert board.tables["services"].keys() == {"chat", "search"}
    assert sleeps.waits == [2.0, 4.0, 8.0, 2.0, 4.0]


def test_top_bears_a_feed_that_is_cut_within_a_line() -> None:
    def serve(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, text='event: services\ndata: {"set": {"a"')

    sleeps = Sleeps(last=3)
    assert followed(serve, sleeps).tables == {}
    # It was asked again and again, as one that is away.
    assert sleeps.waits == [2.0, 4.0, 8.0]


def test_top_ends_where_its_token_is_refused() -> None:
    screen = Console(file=io.StringIO(), force_terminal=True)
    context = CliContext(
        environment={"PLIMSOLL_TOKEN": "t"},
        home=Path("/nonexistent"),
        transport=httpx2.MockTransport(lambda request: fail("401", request)),
    )
    with Live(console=screen, auto_refresh=False) as live, pytest.raises(CliError):
        follow_on(context, TopicTables(), live, screen)
