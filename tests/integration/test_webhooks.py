"""Webhooks against a real receiver: signed, repeated until they arrive, given up after a day, and never to loops."""

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from app.api.operations.event_views import event_bytes
from app.db.base.transaction import Engine
from app.db.operations.webhooks import WAITING_LIMIT
from app.serve.webhooks import TRIES, Sender, is_public, next_try, send_due
from tests.integration.api_harness import NOW, Api, Prepared
from tests.integration.receivers import (
    Receiver,
    is_signed,
    project,
    running_receiver,
    send,
    webhook,
)
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration


@pytest.fixture
def api(no_fleet: Prepared) -> Iterator[Api]:
    with no_fleet.running_api() as running:
        yield running


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with running_receiver() as server:
        yield server


def told(api: Api, kind: str) -> list[str]:
    return [each["subject"] for each in api.get(f"events?kind={kind}")["items"]]


def test_an_event_arrives_signed_and_as_the_api_shows_it(
    api: Api, receiver: Receiver
) -> None:
    secret = api.put("webhooks/chat", webhook(receiver.url)).json()["status"]["secret"]
    project(api)
    assert (send(api), send(api, after_s=100_000)) == (1, 0)
    [(headers, body)] = receiver.got
    assert is_signed(secret, headers, body)
    assert headers["Plimsoll-Webhook-Timestamp"] == str(int(NOW.timestamp()))
    assert headers["Host"] == f"127.0.0.1:{receiver.server_port}"
    assert [json.loads(body)] == api.get("events?kind=ProjectCreated")["items"]


def test_the_secret_is_shown_once_and_never_audited_and_only_admins_see_webhooks(
    api: Api, receiver: Receiver
) -> None:
    secret = api.put("webhooks/chat", webhook(receiver.url)).json()["status"]["secret"]
    assert secret.startswith("whsec_")
    again = api.put("webhooks/chat", webhook(receiver.url, enabled=False))
    assert again.json()["status"]["secret"] is None
    shown = [api.get(path) for path in ("webhooks", "webhooks/chat", "events")]
    assert secret not in again.text + json.dumps(shown)
    for token in ("viewer", "operator"):
        assert api.call("GET", "webhooks", token=token).status_code == 403


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a.example/",
        "https://me:word@a.example/",
        "https:///x",
        "https://a.example:x/",
        "https://a/#b",
    ],
)
def test_urls_that_are_refused(api: Api, url: str) -> None:
    assert api.call("PUT", "webhooks/chat", webhook(url)).status_code in (400, 422)


def test_kinds_that_are_not_wanted_and_disabled_webhooks_get_nothing(
    api: Api, receiver: Receiver
) -> None:
    api.put("webhooks/chat", webhook(receiver.url, kinds=["PlanPushed"]))
    api.put("webhooks/off", webhook(receiver.url, "off", kinds=[], enabled=False))
    project(api)
    assert (send(api), receiver.got) == (0, [])


def test_a_failed_try_comes_again_under_the_same_id(
    api: Api, receiver: Receiver
) -> None:
    api.put("webhooks/chat", webhook(receiver.url))
    project(api)
    receiver.status = 302
    assert (send(api), send(api, after_s=4)) == (0, 0)
    assert api.get("webhooks/chat")["status"]["last_error"] == "answered 302"
    receiver.status = 200
    assert send(api, after_s=2) == 1
    status = api.get("webhooks/chat")["status"]
    assert (status["waiting"], status["last_error"]) == (0, None)
    first, second = receiver.got
    assert first[0]["Plimsoll-Webhook-Id"] == second[0]["Plimsoll-Webhook-Id"]
    assert first[1] == second[1]


def test_a_slow_receiver_is_cut_off_and_keeps_no_other_from_its_events(
    api: Api, receiver: Receiver
) -> None:
    with running_receiver() as quick:
        api.put("webhooks/chat", webhook(receiver.url))
        api.put("webhooks/quick", webhook(quick.url, "quick"))
        project(api)
        # The slow one answers when the quick one has its event.
        receiver.gate = quick.heard
        assert send(api) == 2
    receiver.gate = threading.Event()
    project(api, "team-b")
    send(api, limit_s=0.5)
    status = api.get("webhooks/chat")["status"]
    assert (status["waiting"], status["last_error"]) == (1, "no answer in 0.5 s")


def test_a_leader_killed_before_the_answer_loses_nothing_and_repeats_the_id(
    api: Api, receiver: Receiver
) -> None:
    api.put("webhooks/chat", webhook(receiver.url))
    project(api)
    receiver.gate.clear()

    async def be_killed(engine: Engine) -> None:
        sender = Sender(
            engine=engine,
            clock=api.clock,
            body=event_bytes,
            may_be_private=True,
            limit_s=PATIENCE_S,
        )
        sending = asyncio.create_task(send_due(sender))
        assert await asyncio.to_thread(receiver.heard.wait, PATIENCE_S)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending

    api.on_engine(be_killed)
    receiver.gate.set()
    assert api.get("webhooks/chat")["status"]["waiting"] == 1
    assert (send(api), send(api, after_s=6), send(api, after_s=100_000)) == (0, 1, 0)
    assert len({headers["Plimsoll-Webhook-Id"] for headers, _ in receiver.got}) == 1
    assert len(receiver.got) == 2


def test_what_is_given_up_is_told_once_until_it_works_again(
    api: Api, receiver: Receiver
) -> None:
    api.put("webhooks/chat", webhook(receiver.url, kinds=[]))
    receiver.status = 500
    project(api)
    for _ in range(TRIES + 1):
        send(api, after_s=40_000)
    assert told(api, "WebhookFailed") == ["webhook/chat"]
    assert api.get("webhooks/chat")["status"]["waiting"] == 0
    project(api, "team-b")
    for _ in range(TRIES + 1):
        send(api, after_s=40_000)
    assert len(told(api, "WebhookFailed")) == 1
    receiver.status = 200
    project(api, "team-c")
    assert send(api) == 1
    assert api.get("webhooks/chat")["status"]["failed_at"] is None


def test_beyond_the_bound_the_oldest_go_and_one_event_says_so(
    api: Api, receiver: Receiver
) -> None:
    api.put("webhooks/chat", webhook(receiver.url, kinds=["Noise"]))
    # The trigger looks through the queue at every event: that is left out while the queue is filled to its bound.
    without, again = (
        f"ALTER TABLE event {how} TRIGGER USER" for how in ("DISABLE", "ENABLE")
    )
    api.execute(without, NOISE.format(first=1, last=WAITING_LIMIT), QUEUED, again)
    api.execute(NOISE.format(first=WAITING_LIMIT + 1, last=WAITING_LIMIT + 3))
    assert api.get("webhooks/chat")["status"]["waiting"] == WAITING_LIMIT
    assert (send(api), send(api)) == (8, 8)
    assert told(api, "WebhookFull") == ["webhook/chat"]
    oldest = min((json.loads(body) for _, body in receiver.got), key=lambda e: e["id"])
    assert oldest["subject"] == "noise/4"


NOISE = (
    "INSERT INTO event (at, actor, kind, subject, reason) "
    "SELECT '2026-03-01 12:00Z', 'test', 'Noise', 'noise/' || n, '' FROM generate_series({first}, {last}) n"
)
QUEUED = (
    "INSERT INTO webhook_delivery (webhook, event_id, next_at) "
    "SELECT 'chat', id, at FROM event WHERE kind = 'Noise' ORDER BY id"
)


def test_private_addresses_are_refused_without_the_setting(
    api: Api, receiver: Receiver
) -> None:
    api.put("webhooks/chat", webhook(receiver.url))
    project(api)
    assert (send(api, private=False), receiver.got) == (0, [])
    assert "not public" in api.get("webhooks/chat")["status"]["last_error"]


PUBLIC = "93.184.215.14 2606:4700::1111 64:ff9b::5db8:d70e"
PRIVATE = """
127.0.0.1 10.1.2.3 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 ::1 fe80::1%eth0 fd00::1 ::ffff:127.0.0.1
2002:7f00:1:: 64:ff9b::7f00:1 fec0::1 ff0e::1
64:ff9b:1::a9fe:a9fe ::a9fe:a9fe ::ffff:0:a9fe:a9fe
168.63.129.16 64:ff9b::a83f:8110 100.100.100.200 192.0.0.192 fd00:ec2::254
"""
"""The third line: the prefix of local translators (RFC 8215), and the older ways to write an IPv4 address. The last:
what Azure, Alibaba and Oracle answer their machines at, plainly and through a translator."""


def test_which_addresses_are_public() -> None:
    assert [each for each in PUBLIC.split() if not is_public(each)] == []
    assert [each for each in PRIVATE.split() if is_public(each)] == []


def test_waits_grow_over_a_day_and_are_the_same_for_the_same_delivery() -> None:
    waits = [
        (next_try(7, tries, NOW) - NOW).total_seconds() for tries in range(1, TRIES)
    ]
    assert waits == sorted(waits)
    assert sum(waits) <= timedelta(days=1).total_seconds() * 1.01
    assert next_try(7, 3, NOW) == next_try(7, 3, NOW) != next_try(8, 3, NOW)
