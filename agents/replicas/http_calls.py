"""HTTP calls to replicas' servers, with a time and a size limit each."""

import json
from http import HTTPStatus

import aiohttp

from agents.processes.logs import error_text, excerpt
from agents.replicas.answers import Json, ServerRefused, ServerUnanswered

ASK_S = 5.0
"""For a question."""
MAX_ANSWER = 4 * 1024 * 1024


class Http:
    """Calls with limits; foreign errors are translated here, once."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def demand(
        self,
        method: str,
        url: str,
        *,
        body: Json = None,
        text: bytes | None = None,
        limit_s: float = ASK_S,
    ) -> bytes:
        """The body of a good answer to JSON, or to a text that holds it.

        Raises ServerRefused where the status is another one, ServerUnanswered where there is none.
        """
        data = json.dumps(body).encode() if body is not None else text
        headers = {"Content-Type": "application/json"} if data is not None else {}
        timeout = aiohttp.ClientTimeout(total=limit_s)
        try:
            async with self._session.request(
                method,
                url,
                data=data,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as answer:
                status = answer.status
                answered = await _read(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServerUnanswered(
                f"{method} {url} has no answer: {error_text(error)}"
            ) from error
        if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            raise ServerRefused(f"{method} {url} answers {status}: {excerpt(answered)}")
        return answered

    async def is_fine(self, url: str) -> bool:
        """Whether a GET is answered well; no answer is a no."""
        try:
            await self.demand("GET", url)
        except ServerUnanswered:
            return False
        return True

    async def is_answered(self, url: str, *, limit_s: float) -> bool:
        """Whether a GET is answered at all, be it by an error."""
        timeout = aiohttp.ClientTimeout(total=limit_s)
        try:
            # The status does not matter: a server that refuses is alive.
            async with self._session.get(url, timeout=timeout, allow_redirects=False):
                return True
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    parts, length = [], 0
    async for part in answer.content.iter_chunked(64 * 1024):
        parts.append(part)
        length += len(part)
        # Cut while it comes: a server that went wrong must not fill the agent's memory.
        if length > MAX_ANSWER:
            answer.close()
            break
    return b"".join(parts)[:MAX_ANSWER]
