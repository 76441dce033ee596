"""Sends events to webhooks: signed, with a time limit, again and again for a day, to public addresses only."""

import asyncio
import hashlib
import hmac
import ipaddress
import random
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache

import httpx2

from app.base.clock import ControlClock
from app.db.base.transaction import Engine, transaction
from app.db.operations import webhooks
from app.db.operations.events import EventRow
from app.db.operations.webhooks import Delivery
from app.loop.controller import SlowJob

LOOK_PERIOD_S = 2.0
EACH = 8
"""Requests under way for one webhook; a slow one keeps no other waiting beyond the time limit of one request."""

BACK_OFF_S = (5, 15, 60, 300, 900, 1800, 3600, 7200, 14_400, 21_600, 28_800)
"""Wait after each failed try but the last; 21.9 hours together."""

TRIES = len(BACK_OFF_S) + 1
JITTER = 0.1
"""Share by which a wait is shorter or longer."""

GRACE_S = 60.0
"""A last try has ended by then."""


class Refused(Exception):
    """The address is one that webhooks may not reach, or nothing could be sent to it safely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """What sending needs."""

    engine: Engine
    clock: ControlClock
    body: Callable[[EventRow], bytes]
    """The event as the API shows it."""
    may_be_private: bool = False
    """Whether loopback, private and link-local addresses are allowed."""
    limit_s: float = 10.0
    """One request may take so long, looking up its address included."""
    tls: Callable[[], ssl.SSLContext] | None = None
    """Whose certificates are accepted; None: `authorities`."""


def sending_job(sender: Sender) -> SlowJob:
    """What the leader does every few seconds."""

    async def send() -> None:
        await send_due(sender)

    return SlowJob(name="webhooks", period_s=LOOK_PERIOD_S, run=send)


async def send_due(sender: Sender) -> int:
    """Try every delivery that is due, at most EACH per webhook; returns how many arrived."""
    at = sender.clock.now()
    async with transaction(sender.engine) as connection:
        # In one transaction with taking: what is taken has its next try noted before it is sent, so that a crash in
        # between sends it again and never loses it.
        await webhooks.give_up(connection, at, tries_limit=TRIES)
        await webhooks.record_full(connection, at)
        due = await webhooks.take_due(
            connection,
            at,
            each=EACH,
            tries_limit=TRIES,
            next_at=lambda key, tries: next_try(key, tries, at),
        )
    turn = asyncio.Lock()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_deliver(sender, delivery, turn)) for delivery in due
        ]
    return sum(task.result() for task in tasks)


def next_try(delivery_id: int, tries: int, at: datetime) -> datetime:
    """When it is tried again after this number of tries; after the last: when it is given up."""
    # The last try is under way until then; only afterwards it counts as failed.
    if tries >= TRIES:
        return at + timedelta(seconds=GRACE_S)
    # Seeded, so that tests know the time and processes agree on it.
    jitter = random.Random(f"{delivery_id}/{tries}").uniform(1 - JITTER, 1 + JITTER)
    return at + timedelta(seconds=BACK_OFF_S[tries - 1] * jitter)


def signature(secret: str, message_id: str, timestamp: str, body: bytes) -> str:
    """HMAC-SHA256 in hexadecimal over `id.timestamp.body`, as in Standard Webhooks."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""The well-known prefix (RFC 6052); what it carries is an IPv4 address."""

GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All that IANA has given out of IPv6 to the internet. Beyond it lie other ways to write an IPv4 address: the local
NAT64 prefix (RFC 8215), IPv4-compatible and IPv4-translated addresses."""

CLOUD_SERVICES = tuple(
    ipaddress.IPv4Network(each)
    for each in ("168.63.129.16/32", "100.100.100.200/32", "192.0.0.0/24")
)
"""What clouds answer their machines at, credentials among it: Azure's, Alibaba's and Oracle's, of which the registries
of addresses call some global. That of all others is link-local."""


def is_public(address: str) -> bool:
    """Whether anybody on the internet has it; an IPv6 address that carries an IPv4 one is judged by that."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return _is_public_v4(found)
    carried = found.ipv4_mapped or found.sixtofour
    if found in NAT64:
        carried = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    # What `is_global` says of the outer address then says nothing of where a request would end.
    if carried is not None:
        return _is_public_v4(carried)
    return found.is_global and found in GLOBAL_UNICAST


def _is_public_v4(found: ipaddress.IPv4Address) -> bool:
    is_of_cloud = any(found in network for network in CLOUD_SERVICES)
    return found.is_global and not found.is_multicast and not is_of_cloud


async def _deliver(sender: Sender, delivery: Delivery, turn: asyncio.Lock) -> bool:
    """Whether it arrived. One at a time takes a connection: the tick shares them."""
    error = await _error_of(sender, delivery)
    async with turn, transaction(sender.engine) as connection:
        if error is None:
            await webhooks.note_delivered(connection, delivery, sender.clock.now())
        else:
            await webhooks.note_failed(connection, delivery, error)
    return error is None


async def _error_of(sender: Sender, delivery: Delivery) -> str | None:
    """What went wrong, in words; None: it arrived."""
    # ValueError: a host that has no form in ASCII.
    try:
        async with asyncio.timeout(sender.limit_s):
            status = await _post(sender, delivery)
    except TimeoutError:
        return f"no answer in {sender.limit_s:g} s"
    except (Refused, OSError, ValueError, httpx2.HTTPError, httpx2.InvalidURL) as error:
        # Shown on one line next to the webhook; messages of libraries may be pages long.
        return _describe(error)[:300]
    return None if 200 <= status < 300 else f"answered {status}"


def _describe(error: BaseException) -> str:
    """The error; what a person can do something about is found beneath those of the libraries."""
    if isinstance(error, Refused):
        return str(error)
    beneath: BaseException | None = error
    while beneath is not None:
        if isinstance(beneath, ssl.SSLCertVerificationError):
            return (
                f"the receiver's certificate is not accepted: {beneath.verify_message}"
            )
        if isinstance(beneath, socket.gaierror):
            return f"the host's address is not found: {beneath.strerror}"
        beneath = beneath.__cause__ or beneath.__context__
    return f"{type(error).__name__}: {error}"


@cache
def authorities() -> ssl.SSLContext:
    """The system's certificate authorities, or those of SSL_CERT_FILE or SSL_CERT_DIR; read once. Raises Refused."""
    try:
        return httpx2.create_ssl_context()
    except OSError as error:
        raise Refused(
            f"the certificates of SSL_CERT_FILE or SSL_CERT_DIR cannot be read: {error}"
        ) from error


async def _post(sender: Sender, delivery: Delivery) -> int:
    """The answer's status. Its body is never read, and a redirect is an answer like any other."""
    url = httpx2.URL(delivery.url)
    address = await _resolve(sender, url)
    body = sender.body(delivery.event)
    headers = _headers(sender, delivery, url, body)
    # The address that was checked is the one connected to: a second look-up might find another. Proxies of the
    # environment are left aside for the same reason; its certificate authorities are not (`trust_env` means both).
    verify = (sender.tls or authorities)() if url.scheme == "https" else False
    async with (
        httpx2.AsyncClient(
            trust_env=False,
            verify=verify,
            follow_redirects=False,
            timeout=sender.limit_s,
        ) as client,
        client.stream(
            "POST",
            url.copy_with(host=address),
            content=body,
            headers=headers,
            # The certificate is checked against the host's name, though the connection goes to the address.
            extensions={"sni_hostname": url.host},
        ) as answer,
    ):
        return answer.status_code


def _headers(
    sender: Sender, delivery: Delivery, url: httpx2.URL, body: bytes
) -> dict[str, str]:
    # The same id in every try, so that a receiver can drop what it has already; the time is new in each.
    message_id = f"whd-{delivery.id}"
    timestamp = str(int(sender.clock.now().timestamp()))
    return {
        "Content-Type": "application/json",
        "Host": url.netloc.decode("ascii"),
        "User-Agent": "plimsoll",
        "Plimsoll-Webhook-Id": message_id,
        "Plimsoll-Webhook-Timestamp": timestamp,
        "Plimsoll-Webhook-Signature": signature(
            delivery.secret, message_id, timestamp, body
        ),
    }


async def _resolve(sender: Sender, url: httpx2.URL) -> str:
    """The first address of the host. Raises Refused where any of them is not public."""
    port = url.port or (443 if url.scheme == "https" else 80)
    found = await asyncio.get_running_loop().getaddrinfo(
        url.host, port, type=socket.SOCK_STREAM
    )
    addresses = [str(each[4][0]) for each in found]
    if not sender.may_be_private and not all(is_public(each) for each in addresses):
        raise Refused(
            f"{url.host} has an address that is not public; PLIMSOLL_WEBHOOK_PRIVATE=true allows it"
        )
    return addresses[0]
