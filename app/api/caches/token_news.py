"""Which families of tokens changed lately, in whatever process: what is remembered of them must be asked for again."""

import asyncio
import contextlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.db.base.listen import RECONNECT
from app.loop.controller import Wakeups

MAX_FAMILIES = 10_000
"""Beyond, all families count as changed when the one that changed longest ago is forgotten."""


class TokenNews:
    """Hears of families that were rotated or revoked, by the root that `app.db.operations.tokens` announces.

    It saves time and proves nothing: whoever remembers a token must look again after some seconds anyway, since a
    connection that died may not have been noticed yet.
    """

    def __init__(self, wakeups: Wakeups) -> None:
        self._wakeups = wakeups
        self._changed_s: OrderedDict[str, float] = OrderedDict()
        self._all_changed_s = 0.0
        self._watchers: defaultdict[str, set[Callable[[], None]]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen; call once, inside a running event loop."""
        self._task = asyncio.create_task(self._listen(), name="plimsoll-token-news")

    async def stop(self) -> None:
        """End listening."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def is_old(self, root: str, asked_s: float) -> bool:
        """Whether a family changed at or after that moment of the event loop's clock."""
        return asked_s <= max(self._all_changed_s, self._changed_s.get(root, 0.0))

    @contextmanager
    def watching(self, root: str, act: Callable[[], None]) -> Iterator[None]:
        """Call `act` whenever that family changes."""
        self._watchers[root].add(act)
        try:
            yield
        finally:
            self._watchers[root].discard(act)
            # Otherwise every token that ever had a page open would be kept.
            if not self._watchers[root]:
                del self._watchers[root]

    async def _listen(self) -> None:
        async for root in self._wakeups.listen():
            self._note(root)

    def _note(self, root: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if root == RECONNECT:
            # What happened before was not heard.
            self._all_changed_s = now_s
            meant = [act for acts in self._watchers.values() for act in acts]
        else:
            self._changed_s[root] = now_s
            self._changed_s.move_to_end(root)
            meant = list(self._watchers.get(root, ()))
        if len(self._changed_s) > MAX_FAMILIES:
            _, self._all_changed_s = self._changed_s.popitem(last=False)
        for act in meant:
            act()
