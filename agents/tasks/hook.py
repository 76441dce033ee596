"""How the program of a task is asked: what it has done, and to give its GPU's memory back or take it again.

The other end is `agents.trainer.swap.SwapHooks`, in our trainer or in anybody's training loop.
"""

from http import HTTPStatus
from typing import Literal

import aiohttp
import msgspec

from agents.base.device import DeviceError
from agents.processes.logs import error_text, excerpt
from agents.trainer.swap import SwapStatus

ASK_S = 5.0
MOVE_S = 150.0
"""The hook itself answers within 120 s, that it came to no boundary."""
MAX_ANSWER = 65536


class HookFailed(DeviceError):
    """The program does not answer, or refuses."""


class HookClient:
    """Calls to the hooks of all tasks; made within a running loop."""

    def __init__(self) -> None:
        # Those asked are on this machine: no proxy, no cookies, no pool that outlives a task.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def status(self, url: str) -> SwapStatus:
        """What it says of itself. Raises HookFailed."""
        code, body = await self._call("GET", f"{url}/status", ASK_S)
        if code != HTTPStatus.OK:
            raise HookFailed(f"GET {url}/status answers {code}")
        return _read(url, body)

    async def move(self, url: str, wanted: Literal["offloaded", "running"]) -> bool:
        """Whether it is so now; False: it comes to it at the end of a long step, ask again. Raises HookFailed."""
        path = "offload" if wanted == "offloaded" else "resume"
        code, body = await self._call("PUT", f"{url}/{path}", MOVE_S)
        # It was asked for and is not done yet: the loop is within a long step.
        if code == HTTPStatus.SERVICE_UNAVAILABLE:
            return False
        if code != HTTPStatus.OK:
            raise HookFailed(f"PUT /{path} answers {code}: {excerpt(body)}")
        return _read(url, body).state == wanted

    async def close(self) -> None:
        """Hang up."""
        await self._session.close()

    async def _call(self, method: str, url: str, limit_s: float) -> tuple[int, bytes]:
        try:
            async with self._session.request(
                method,
                url,
                timeout=aiohttp.ClientTimeout(total=limit_s),
                # The task would choose where the agent, which is root, sends its next request.
                allow_redirects=False,
            ) as answer:
                return answer.status, await answer.content.read(MAX_ANSWER)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise HookFailed(
                f"{method} {url} is not answered: {error_text(error)}"
            ) from error


def _read(url: str, body: bytes) -> SwapStatus:
    try:
        return msgspec.json.decode(body, type=SwapStatus)
    # A RecursionError comes of brackets in brackets, a ValueError of text that is not UTF-8.
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise HookFailed(
            f"{url} does not answer as a swap hook does: {error_text(error)}"
        ) from error
