"""`plimsoll logs`: which log is printed, how several stand next to each other, and what a terminal gets."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx2
import pytest

from app.cli.objects.logs import MAX_LINE, ReadLog, escaped
from tests.app.cli.fake_api import Json, problem_document
from tests.app.runner import Result, cli


def a_replica(name: str, *, is_planned: bool = True) -> Json:
    return {
        "replica": name,
        "node": "n1",
        "state": "ready" if is_planned else None,
        "is_planned": is_planned,
    }


def a_part(text: str, *, start: int = 0, problem: str | None = None) -> Json:
    return {
        "node": "n1",
        "text": text,
        "start": start,
        "end": start + len(text),
        "problem": problem,
    }


@dataclass
class LogApi:
    """Logs by replica, each as the parts that come one after the other; empty parts once those are over."""

    parts: dict[str, list[Json]]
    replicas: list[Json] = field(default_factory=list)
    asked: list[dict[str, str]] = field(default_factory=list)

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        asked = dict(request.url.params)
        self.asked.append(asked)
        if request.url.path == "/api/v1/tasks/teach/logs":
            return httpx2.Response(200, json=self._next("teach", asked))
        if request.url.path != "/api/v1/services/chat/logs":
            return httpx2.Response(404, json=problem_document(404, "there is none"))
        replica = asked.get("replica", "chat-g1-1")
        named = {"replica": replica, "replicas": self.replicas}
        return httpx2.Response(200, json={**self._next(replica, asked), **named})

    def _next(self, name: str, asked: dict[str, str]) -> Json:
        waiting = self.parts[name]
        at = int(asked.get("after", 0))
        return waiting.pop(0) if waiting else a_part("", start=at)


def interrupted_after(sleeps: int) -> Iterator[None]:
    """Sleeps, the last of which somebody ends by Ctrl-C."""
    yield from [None] * (sleeps - 1)
    raise KeyboardInterrupt


def followed(api: LogApi, *words: str, sleeps: int) -> Result:
    left = interrupted_after(sleeps)
    return cli("logs", *words, "-f", api=api, sleep=lambda _: next(left))


def test_of_several_replicas_one_is_printed_and_the_others_are_named() -> None:
    replicas = [a_replica("chat-g1-1"), a_replica("chat-g1-2")]
    api = LogApi({"chat-g1-1": [a_part("CUDA out of memory\n")]}, replicas)
    found = cli("logs chat", api=api)
    assert found.out == "CUDA out of memory\n"
    assert found.err == "Note: chat-g1-1 of 2 replicas; --all prints all that run\n"


def test_all_replicas_stand_in_whole_lines_each_after_its_name() -> None:
    replicas = [
        a_replica("chat-g1-1"),
        a_replica("chat-g1-2"),
        a_replica("chat-g1-0", is_planned=False),
    ]
    first = [a_part(""), a_part("one\ntw"), a_part("o\nth", start=6)]
    second = [a_part("", problem="the node has no log"), a_part("late\n")]
    api = LogApi({"chat-g1-1": first, "chat-g1-2": second}, replicas)
    found = followed(api, "chat", "--all", sleeps=2)
    assert found.out == (
        "[chat-g1-1] one\n[chat-g1-1] two\n[chat-g1-2] late\n[chat-g1-1] th\n"
    )
    assert found.err == "Error: [chat-g1-2] the node has no log\n"
    assert found.code == 0


def test_who_follows_gets_what_comes_after_and_hears_of_what_was_skipped() -> None:
    replicas = [a_replica("chat-g1-1")]
    parts = [a_part("one "), a_part("two", start=4), a_part("!\n", start=1_007)]
    api = LogApi({"chat-g1-1": parts}, replicas)
    found = followed(api, "chat", "--tail", "1", sleeps=4)
    assert found.out == "one two!\n"
    assert found.err == "Note: 1,000 bytes came too fast and are left out\n"
    assert [each.get("after") for each in api.asked] == [None, "4", "7", "1009"]
    # Of what comes nothing is cut off.
    assert [each.get("tail") for each in api.asked] == ["1", None, None, None]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("node/n1",), "name a service or a task"),
        (("chat", "--all", "-r", "chat-g1-1"), "not both"),
        (("chat", "--since", "soon"), "not a duration"),
    ],
)
def test_wrong_usage_is_told_before_anybody_is_asked(
    words: tuple[str, ...], said: str
) -> None:
    api = LogApi({})
    refused = cli("logs", *words, api=api)
    assert refused.code == 2 and said in refused.err and api.asked == []


def test_a_terminal_is_told_what_it_would_have_obeyed_and_a_pipe_gets_it_as_it_is() -> (
    None
):
    written = "\x1b[1;31mred\x1b[0m\x1b[2J\x1b]0;root\x07 50 %\r100 %\r\nname\u202egpj.exe\x9b µ\t✓\n"
    assert escaped(written) == (
        "red\\x1b[2J\\x1b]0;root\\x07 50 %\n100 %\nname\\u202egpj.exe\\x9b µ\t✓\n"
    )
    api = LogApi({"chat-g1-1": [a_part(written)]})
    assert cli("logs chat", api=api).out == written


def test_no_replica_writes_a_line_under_the_name_of_another_one() -> None:
    log = ReadLog(replica="r", prefix="[r] ")
    assert log.take("1 %\r[other] fine\r\n") == "[r] 1 %\n[r] [other] fine\n"


def test_a_line_that_never_ends_is_printed_in_pieces() -> None:
    log = ReadLog(replica="r", prefix="[r] ")
    assert log.take("x" * MAX_LINE) == ""
    assert log.take("x") == f"[r] {'x' * (MAX_LINE + 1)}\n"
    assert log.rest() == ""
