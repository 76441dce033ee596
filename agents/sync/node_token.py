"""The token of a node's own: enrolled by a join token, kept in the state directory, renewed long before it ends.

In a Kubernetes cluster the token of the agent's own service account is the join token.

The agent makes its secrets itself and tells the control plane their hashes, so that an answer which is lost can be
asked for again. The secret before the newest is kept, too: a control plane that was restored knows that one.
"""

import hashlib
import logging
import secrets
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import msgspec

from agents.base.durable_files import replace_file
from agents.base.protocol import Observation, SyncReply
from agents.sync.transport import (
    HttpTransport,
    NotAuthorised,
    TransportError,
    Unacceptable,
)

FILE = "token"
JOIN_PREFIX = "plim_join_"
SERVICE_ACCOUNT_PREFIX = "ey"
"""As every JSON Web Token begins: `{"` in base64."""
RENEW_AGAIN_S = 600.0
"""After a renewal that failed; there are days left."""

log = logging.getLogger(__name__)


class Kept(msgspec.Struct, kw_only=True):
    """What the file holds."""

    secrets: list[str] = []
    """The newest first, then the one before it, and one whose answer never came; each of them may be the valid one."""
    pending: str = ""
    """Made and perhaps known to the control plane: its answer has not come."""
    renew_at_s: float = 0.0
    """By the agent's clock, when half of the newest one's time is over; 0 = it does not end."""


class _Made(msgspec.Struct):
    """The parts of an answer that are needed."""

    expires_at: datetime | None = None


def read_kept(directory: Path) -> Kept:
    """What the state directory keeps; nothing where there is no file. Raises OSError, and ValueError when damaged."""
    path = directory / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    except FileNotFoundError:
        return Kept()
    except msgspec.MsgspecError as error:
        raise ValueError(
            f"{path} is damaged ({error}); remove it and give the agent a join token"
        ) from error


def read_token(file: Path) -> str:
    """A token as it stands in a file of its own. Raises OSError."""
    return file.read_text(encoding="utf-8").strip()


def is_exchanged(token: str) -> bool:
    """Whether the node gets a token of its own for that one."""
    return token.startswith((JOIN_PREFIX, SERVICE_ACCOUNT_PREFIX))


class EnrolledTransport:
    """HTTP to the control plane by a token of the node's own."""

    def __init__(
        self,
        reach: HttpTransport,
        *,
        node: str,
        join_token_file: Path | None,
        directory: Path,
        now_s: Callable[[], float],
    ) -> None:
        """`join_token_file`: read when the node enrols, as kubelet renews it; may be None once it is enrolled.

        Raises OSError, ValueError.
        """
        self._http = reach
        self._node = node
        self._join_token_file = join_token_file
        self._path = directory / FILE
        self._now_s = now_s
        self._kept = read_kept(directory)
        self._current = 0
        """Which of the kept secrets is used; their number: none, the node enrols."""

    async def exchange(self, observation: Observation, *, wait_s: float) -> SyncReply:
        if self._current >= len(self._kept.secrets):
            await self._enrol()
        elif 0.0 < self._kept.renew_at_s <= self._now_s():
            await self._renew()
        self._http.token = self._kept.secrets[self._current]
        try:
            return await self._http.exchange(observation, wait_s=wait_s)
        except NotAuthorised:
            # The next attempt takes the secret before it, or enrols; after the last attempt comes the first again.
            attempts = len(self._kept.secrets) + (self._join_token_file is not None)
            self._current = (self._current + 1) % attempts
            raise

    async def post(self, path: str, document: object) -> bytes:
        """Send a document by the token of the newest exchange; see HttpTransport. Raises TransportError."""
        return await self._http.post(path, document)

    async def close(self) -> None:
        await self._http.close()

    async def _enrol(self) -> None:
        """Get a token for the join token. Raises TransportError."""
        if self._join_token_file is None:
            raise NotAuthorised("the node is not enrolled; give it a join token")
        try:
            self._http.token = read_token(self._join_token_file)
        except OSError as error:
            raise NotAuthorised(f"the join token cannot be read: {error}") from error
        try:
            await self._ask(f"nodes/{quote(self._node, safe='')}/enrol", previous=[])
        except (Unacceptable, NotAuthorised) as error:
            # The secrets come first again; a hash that was refused is refused for ever.
            self._current = 0
            self._keep(msgspec.structs.replace(self._kept, pending=""))
            # Not Unacceptable: it is the node that is refused, the observation may be taken later.
            raise NotAuthorised(str(error)) from error
        log.info("node %s is enrolled", self._node)

    async def _renew(self) -> None:
        """Replace the token by a new one; one that cannot be replaced is used on."""
        present = self._kept.secrets[self._current]
        self._http.token = present
        own_id = f"tok-{_hash(present)[:20]}"
        try:
            await self._ask(f"tokens/{own_id}/rotate", previous=[present])
        except TransportError as error:
            log.warning("the node's token cannot be renewed now: %s", error)
            self._keep(self._after_failure(error))

    def _after_failure(self, error: TransportError) -> Kept:
        """What is kept after a renewal that failed."""
        kept = msgspec.structs.replace(
            self._kept, renew_at_s=self._now_s() + RENEW_AGAIN_S
        )
        if not isinstance(error, Unacceptable | NotAuthorised):
            return kept
        # A renewal whose answer was lost has ended the old token meanwhile, which is then refused for good: the secret
        # that was made for it is the way.
        if isinstance(error, NotAuthorised):
            kept.secrets = [*kept.secrets[:2], kept.pending]
        # What was refused once is refused for ever.
        kept.pending = ""
        return kept

    async def _ask(self, path: str, *, previous: list[str]) -> None:
        """Have a secret accepted and use it from now on. Raises TransportError."""
        pending = self._kept.pending or f"plim_agent_{secrets.token_urlsafe(32)}"
        # On disk before it is sent: what the control plane knows must not be lost here.
        self._keep(msgspec.structs.replace(self._kept, pending=pending))
        answer = await self._http.post(path, {"sha256": _hash(pending)})
        made = msgspec.json.decode(answer, type=_Made)
        now_s = self._now_s()
        renew_at_s = 0.0
        if made.expires_at is not None:
            left_s = made.expires_at.timestamp() - now_s
            # Not at once again, also where this clock is ahead of the control plane's.
            renew_at_s = now_s + max(left_s / 2.0, RENEW_AGAIN_S)
        self._keep(Kept(secrets=[pending, *previous], renew_at_s=renew_at_s))
        self._current = 0

    def _keep(self, kept: Kept) -> None:
        replace_file(self._path, msgspec.json.encode(kept), mode=0o600)
        self._kept = kept


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
